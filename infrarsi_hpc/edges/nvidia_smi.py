"""What nvidia-smi says about a node's GPUs: its CSV, its XML and its complaints, read strictly into rows.

A campaign needs three answers: how much memory there is (of the slice, where a card is cut into slices), whether the
card runs at its own speed, and whether it is ours alone. A field that is not told is not a fault in itself: drivers
leave out what a card or a permission does not give.

Covers: `--query-gpu` and `--query-compute-apps` with a header, `-q -x`, and the errors that stand in their place.
Does not cover: the table for people, and cards that answer well and compute wrongly.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infrarsi_hpc.errors import InputRefused

MAX_CHARS = 16 * 2**20
MAX_ROWS = 4096
_MAX_DEPTH = 40
_MAX_VALUE = 200
_MAX_LINE = 20_000

#: Reasons for low clocks that make times worthless. A power cap and idleness are how healthy cards live.
_SLOWDOWNS = {
    "hw_slowdown": 0x8,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
_REASON = re.compile(r"clocks_(?:event|throttle)_reasons?[._](\w+)")
_BROKEN = re.compile(r"\[?(?:unknown error|err!|gpu is lost|gpu requires reset|gpu access blocked)\]?", re.I)
_NUMBER = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(?: ?(bytes|KiB|MiB|GiB|B|MHz|W|C|%))?")
_MIB = {"B": 2**-20, "bytes": 2**-20, "KiB": 2**-10, "MiB": 1.0, "GiB": 1024.0}
_COMPLAINT = re.compile(
    r"unable to determine the device handle.*|no devices (?:were )?found.*|.*communicate with the nvidia driver.*|"
    r".*driver/library version mismatch.*|failed to initialize nvml.*|unable to (?:get|query).*|.*gpu is lost.*|"
    r".*gpu requires reset.*|.*nvidia-smi: (?:command )?not found.*|.*has fallen off the bus.*",
    re.I,
)
_FIELD = re.compile(r"[a-z][a-z0-9_.]{0,80}")
_KNOWN_FIELDS = {
    "name", "gpu_name", "memory.total", "memory.used", "uuid", "gpu_uuid", "index", "pci.bus_id", "gpu_bus_id", "pid",
}  # fmt: skip
#: Faults that a card counts itself: none of these may be above zero, or "Yes".
_FAULT = re.compile(
    r"ecc[._]errors?[._]uncorrected[._](?:volatile|aggregate[._]sram)\w*[._]total|remapped_rows[._](?:pending|failure)|retired_pages[._]pending"
)


@dataclass(frozen=True)
class GpuRow:
    """One card. None: not told."""

    index: int | None
    name: str
    uuid: str
    capacity_gib: float | None
    used_gib: float | None
    sm_clock_mhz: float | None
    power_limit_w: float | None
    is_throttled: bool | None
    is_sliced: bool
    problems: tuple[str, ...]


@dataclass(frozen=True)
class SliceRow:
    """One MIG slice: what a program that is given it has."""

    gpu: int
    index: int | None
    capacity_gib: float | None
    used_gib: float | None
    problems: tuple[str, ...]


@dataclass(frozen=True)
class ProcessRow:
    """A process on a card. `is_compute`: not only a desktop."""

    gpu: str
    pid: int | None
    name: str
    used_gib: float | None
    is_compute: bool = True


@dataclass(frozen=True)
class GpuReport:
    """All that one answer says."""

    gpus: tuple[GpuRow, ...] = ()
    slices: tuple[SliceRow, ...] = ()
    processes: tuple[ProcessRow, ...] = ()
    #: Errors in place of rows, and rows that cannot be read.
    complaints: tuple[str, ...] = ()


def parse_nvidia_smi(text: str) -> GpuReport:
    """Read any of nvidia-smi's machine-readable answers; told by its content.

    Raises
    ------
    InputRefused
        It is none of them, too large, cut off, or XML with entities.
    """
    if len(text) > MAX_CHARS:
        raise InputRefused("the answer of nvidia-smi is too large", why=f"{len(text)} characters, {MAX_CHARS} are read")
    text = text.lstrip("\ufeff \t\r\n")
    return parse_xml(text) if text.startswith("<") else parse_csv(text)


def parse_csv(text: str) -> GpuReport:
    """Read `--format=csv` with its header, of `--query-gpu` or `--query-compute-apps`, or both one after the other.

    Raises
    ------
    InputRefused
        There is neither a header nor an error that nvidia-smi is known to write.
    """
    header: list[str] = []
    units: list[str] = []
    gpus: list[GpuRow] = []
    processes: list[ProcessRow] = []
    complaints: list[str] = []
    for number, whole in enumerate(text.splitlines(), start=1):
        line = whole[:_MAX_LINE]
        cells = [cell.strip()[:_MAX_VALUE] for cell in line.split(",")]
        names = [re.sub(r"\s*\[.*\]\Z", "", cell).lower() for cell in cells]
        if not line.strip():
            continue
        if len(gpus) + len(processes) + len(complaints) >= MAX_ROWS:
            complaints.append(f"more than {MAX_ROWS} rows: the rest is not read")
            break
        if any(name in _KNOWN_FIELDS for name in names) and all(_FIELD.fullmatch(name) for name in names):
            header = names
            units = [match[1] if (match := re.search(r"\[(\w+)\]\Z", cell)) else "" for cell in cells]
        elif _COMPLAINT.fullmatch(line.strip()) and (not header or len(cells) != len(header)):
            complaints.append(line.strip()[:_MAX_VALUE])
        elif header and len(cells) != len(header):
            complaints.append(f"line {number} has {len(cells)} fields where the header has {len(header)}")
        elif header:
            values = {
                name: f"{cell} {unit}" if unit and re.fullmatch(r"[\d.]+", cell) else cell
                for name, cell, unit in zip(header, cells, units, strict=True)
            }
            if "pid" in values:
                processes.append(_process(values))
            else:
                gpus.append(_gpu(values, len(gpus)))
    if not header and not complaints:
        raise InputRefused(
            "this is no answer of nvidia-smi that can be read" if text.strip() else "the answer of nvidia-smi is empty",
            why="there is neither a header line, nor XML, nor an error of nvidia-smi's",
            fix="nvidia-smi --query-gpu=name,memory.total,clocks_event_reasons.active --format=csv, or with -q -x",
        )
    return GpuReport(tuple(gpus), (), tuple(processes), tuple(complaints))


def parse_xml(text: str) -> GpuReport:
    """Read `nvidia-smi -q -x`, with the slices of cards that are cut (MIG) and the processes on them.

    Raises
    ------
    InputRefused
        It is malformed, cut off, nested absurdly, of another root, or declares entities.
    """
    root = _xml_root(text)
    gpus: list[GpuRow] = []
    slices: list[SliceRow] = []
    processes: list[ProcessRow] = []
    for number, gpu in enumerate(root.findall("gpu")[:MAX_ROWS]):
        values = _xml_values(gpu)
        parts = gpu.findall("mig_devices/mig_device")[:MAX_ROWS]
        row = _gpu(
            values, number, is_sliced=values.get("mig.mode.current", "").lower() == "enabled", has_slices=bool(parts)
        )
        gpus.append(row)
        slices += [_slice(part, number) for part in parts]
        for entry in gpu.findall("processes/process_info")[:MAX_ROWS]:
            told = {child.tag: (child.text or "").strip()[:_MAX_VALUE] for child in entry}
            told["used_gpu_memory"] = told.get("used_memory", "")
            processes.append(_process(told | {"gpu_uuid": row.uuid or f"GPU {number}"}))
    complaints = () if gpus else ("no devices were found",)
    return GpuReport(tuple(gpus), tuple(slices), tuple(processes), complaints)


# ---- XML


def _xml_root(text: str) -> ElementTree.Element:
    # the driver writes a DOCTYPE that only names its DTD; declarations inside it could define entities
    if re.search(r"<!\s*(?:ENTITY|ELEMENT|ATTLIST|NOTATION)|<!DOCTYPE[^>]*\[", text, re.I):
        raise InputRefused(
            "the XML declares entities or types of its own", why="nvidia-smi never does; it is not expanded"
        )
    parser: Any = ElementTree.XMLPullParser(events=("start", "end"))
    depth = 0
    root: ElementTree.Element | None = None
    try:
        for at in range(0, len(text), 2**16):
            parser.feed(text[at : at + 2**16])
            for event, element in parser.read_events():
                root = element if root is None else root
                depth += 1 if event == "start" else -1
                if depth > _MAX_DEPTH:
                    raise InputRefused(f"the XML is nested deeper than {_MAX_DEPTH}", why="nvidia-smi's is not")
        parser.close()
    except (ElementTree.ParseError, ValueError) as error:
        raise InputRefused(
            "the XML of nvidia-smi cannot be read", why=str(error), fix="nvidia-smi -q -x > gpus.xml"
        ) from error
    if root is None or root.tag != "nvidia_smi_log":
        raise InputRefused("this XML is not nvidia-smi's", why="its root is not nvidia_smi_log", fix="nvidia-smi -q -x")
    return root


_XML_FIELDS = {
    "name": ("product_name",),
    "uuid": ("uuid",),
    "memory.total": ("fb_memory_usage/total",),
    "memory.used": ("fb_memory_usage/used",),
    "clocks.sm": ("clocks/sm_clock",),
    "power.limit": ("gpu_power_readings/current_power_limit", "power_readings/power_limit"),
    "mig.mode.current": ("mig_mode/current_mig",),
    "ecc.errors.uncorrected.volatile.total": (
        "ecc_errors/volatile/dram_uncorrectable", "ecc_errors/volatile/double_bit/total",
    ),
    "remapped_rows.pending": ("remapped_rows/remapped_row_pending",),
    "remapped_rows.failure": ("remapped_rows/remapped_row_failure",),
}  # fmt: skip


def _xml_values(gpu: ElementTree.Element) -> dict[str, str]:
    values = {}
    for field, paths in _XML_FIELDS.items():
        told = next((text for path in paths if (text := gpu.findtext(path)) is not None), None)
        if told is not None:
            values[field] = told.strip()[:_MAX_VALUE]
    for group in ("clocks_event_reasons", "clocks_throttle_reasons"):
        for child in gpu.findall(f"{group}/*")[:64]:
            name = re.sub(r"\Aclocks_(?:event|throttle)_reason_", "", child.tag)
            values[f"clocks_event_reasons.{name}"] = (child.text or "").strip()[:_MAX_VALUE]
    return values


def _slice(part: ElementTree.Element, gpu: int) -> SliceRow:
    total, used = (part.findtext(f"fb_memory_usage/{name}") or "" for name in ("total", "used"))
    index = part.findtext("index") or ""
    capacity = _gib(total)
    problems = () if capacity else (f"its memory is not told: {total.strip()[:_MAX_VALUE] or 'no field'}",)
    return SliceRow(gpu, int(index) if re.fullmatch(r"\s*\d{1,4}\s*", index) else None, capacity, _gib(used), problems)


# ---- values


def _gpu(values: dict[str, str], number: int, is_sliced: bool = False, has_slices: bool = False) -> GpuRow:
    is_sliced = is_sliced or values.get("mig.mode.current", "").lower() == "enabled"
    problems = [f"{field}: {value}" for field, value in values.items() if _BROKEN.fullmatch(value)]
    capacity = _gib(values.get("memory.total", ""))
    if "memory.total" in values and not capacity and not is_sliced:
        problems.append(f"memory.total is not told: {values['memory.total']}")
    if is_sliced and not has_slices and capacity is None:
        problems.append("it is cut into slices (MIG) and none is seen")
    slowdowns, is_told = _slowdowns(values)
    problems += [f"throttled: {name}" for name in slowdowns]
    for field, value in values.items():
        count = _NUMBER.fullmatch(value)
        if _FAULT.fullmatch(field) and (value.lower() == "yes" or (count is not None and float(count[1]) > 0)):
            problems.append(f"{field}: {value}")
    if values.get("compute_mode", "").lower() == "prohibited":
        problems.append("compute_mode: Prohibited")
    index = values.get("index", "")
    return GpuRow(
        int(index) if re.fullmatch(r"\d{1,4}", index) else number,
        values.get("name") or values.get("gpu_name") or "",
        values.get("uuid") or values.get("gpu_uuid") or "",
        None if is_sliced else capacity,
        _gib(values.get("memory.used", "")),
        _number(values.get("clocks.sm") or values.get("clocks.current.sm") or ""),
        _number(values.get("power.limit", "")),
        bool(slowdowns) if is_told else None,
        is_sliced,
        tuple(problems),
    )


def _slowdowns(values: dict[str, str]) -> tuple[Sequence[str], bool]:
    """The slowdowns that are active, and whether the card told at all."""
    active: list[str] = []
    is_told = False
    for field, value in values.items():
        reason = _REASON.fullmatch(field)
        if reason is None:
            continue
        state = value.lower()
        if reason[1] == "active" and re.fullmatch(r"0x[0-9a-f]{1,16}", state):
            is_told = True
            active += [name for name, bit in _SLOWDOWNS.items() if int(state, 16) & bit]
        elif reason[1] in _SLOWDOWNS and state in ("active", "not active"):
            is_told = True
            active += [reason[1]] if state == "active" else []
    return list(dict.fromkeys(active)), is_told


def _process(values: dict[str, str]) -> ProcessRow:
    pid = values.get("pid", "")
    return ProcessRow(
        values.get("gpu_uuid") or values.get("gpu_bus_id") or values.get("gpu_name") or "",
        int(pid) if re.fullmatch(r"\d{1,10}", pid) else None,
        values.get("process_name") or values.get("name") or "",
        _gib(values.get("used_gpu_memory") or values.get("used_memory") or ""),
        values.get("type", "C").upper() != "G",
    )


def _gib(value: str) -> float | None:
    """GiB of a size as nvidia-smi prints it; a bare number is MiB (`nounits`)."""
    match = _NUMBER.fullmatch(value.strip())
    if match is None or (match[2] or "MiB") not in _MIB:
        return None
    return float(match[1]) * _MIB[match[2] or "MiB"] / 1024


def _number(value: str) -> float | None:
    match = _NUMBER.fullmatch(value.strip())
    return None if match is None else float(match[1])
