"""What scontrol and sinfo say about a cluster: its limits, its partitions, and what their nodes have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from infrarsi_hpc.edges.slurm.quantities import expand_nodes, parse_limit
from infrarsi_hpc.edges.slurm.records import read
from infrarsi_hpc.edges.slurm.tables import clean_lines, read_table

#: Columns to ask sinfo for, with `--format`; its header is kept.
SINFO_FORMAT = "%P|%a|%l|%D|%c|%m|%G|%f|%h|%N"

_PAIR = re.compile(r"([A-Za-z][\w/.:()]{0,60})=(\S*)")
_LINE = re.compile(r"\s*([A-Za-z][A-Za-z0-9_/]{1,60})\s*=\s*(.*?)\s*")
_GRES = re.compile(
    r"(?:gres/)?gpu(?::([A-Za-z][\w.-]{0,60}))?[:=]([0-9]{1,6})\b|(?:gres/)?gpu(?::([A-Za-z][\w.-]{0,60}))?(?=\(|$)"
)
_NONE = {"", "(null)", "N/A", "none", "NONE", "accounting_storage/none", "null"}


@dataclass(frozen=True)
class SlurmConfig:
    """What of `scontrol show config` matters to us; none where the text does not say it."""

    cluster: str = ""
    version: str = ""
    #: Highest index of an array: MaxArraySize less one.
    max_array_index: int | None = None
    max_jobs: int | None = None
    #: Finished jobs are forgotten this long after their end.
    min_job_age_seconds: int | None = None
    #: False: sacct has nothing to say here.
    has_accounting: bool | None = None
    requeues: bool | None = None
    preempt_mode: str = ""
    kill_wait_seconds: int | None = None
    select_parameters: str = ""
    #: False: a job's memory is not counted when it is placed.
    counts_memory: bool | None = None


@dataclass(frozen=True)
class Gpus:
    """GPUs of one type in a node; the type is empty where the site names none."""

    type: str
    count: int


@dataclass(frozen=True)
class PartitionOffer:
    """One partition as the cluster describes it: what a site profile needs. None and empty: not said."""

    name: str
    is_default: bool = False
    is_up: bool = True
    max_time_seconds: int | None = None
    num_nodes: int | None = None
    nodes: tuple[str, ...] = ()
    gpus: tuple[Gpus, ...] = ()
    cpus_per_node: int | None = None
    memory_gib_per_node: float | None = None
    features: tuple[str, ...] = ()
    qos: str = ""
    allow_qos: tuple[str, ...] = ()
    allow_accounts: tuple[str, ...] = ()
    oversubscribe: str = ""
    preempt_mode: str = ""


def parse_config(text: str) -> SlurmConfig:
    """Read `scontrol show config` or an excerpt of it.

    Raises
    ------
    ValueError
        No line of it is `Key = value` with a key that is known.
    """
    found = {match[1].lower(): match[2] for line in clean_lines(text) if (match := _LINE.fullmatch(line[:4000]))}
    if not found.keys() & _KEYS:
        raise ValueError("no line of `scontrol show config`")
    size = _number(found.get("maxarraysize", ""))
    storage = found.get("accountingstoragetype")
    select = found.get("selecttypeparameters", "")
    requeue = _number(found.get("jobrequeue", ""))
    return SlurmConfig(
        cluster=_word(found.get("clustername", "")),
        version=_word(found.get("slurm_version", "")),
        max_array_index=None if size is None else max(0, size - 1),
        max_jobs=_number(found.get("maxjobcount", "")),
        min_job_age_seconds=_number(found.get("minjobage", "")),
        has_accounting=None if storage is None else storage not in _NONE,
        requeues=None if requeue is None else requeue != 0,
        preempt_mode=_word(found.get("preemptmode", "")),
        kill_wait_seconds=_number(found.get("killwait", "")),
        select_parameters=_word(select),
        counts_memory=None if select in _NONE else "MEMORY" in select.upper(),
    )


_KEYS = {
    "maxarraysize", "maxjobcount", "minjobage", "accountingstoragetype", "clustername", "slurm_version", "jobrequeue",
    "preemptmode", "killwait", "selecttypeparameters",
}  # fmt: skip


def parse_partitions(text: str) -> list[PartitionOffer]:
    """Read `scontrol show partition`, with or without `-o`, each partition once.

    Raises
    ------
    ValueError
        It names no partition.
    """
    found: dict[str, PartitionOffer] = {}
    for part in re.split(r"(?m)^(?=\s*PartitionName=)", "\n".join(clean_lines(text))):
        pairs = dict(_PAIR.findall(part))
        if name := pairs.get("PartitionName", ""):
            found.setdefault(name, _of_pairs(name, pairs))
    if not found:
        raise ValueError("no PartitionName= in it")
    return list(found.values())


def parse_sinfo(text: str) -> list[PartitionOffer]:
    """Read sinfo, our own columns or its default table; rows of a partition with the same GPUs are joined.

    Rows without a header (`sinfo --noheader`) are read where their cells show what they are: `headless_rows`.

    Raises
    ------
    ValueError
        There is no header with PARTITION.
    """
    table = read_table(text, ("partition", "nodes")) or read_table(text, ("partition", "gres"))
    rows = list(table.rows) if table else _plain_rows(text)
    if not rows and (headless := headless_rows(text)) is not None:
        rows = headless.rows
    if not rows:
        raise ValueError("no header of sinfo's with PARTITION")
    joined: dict[tuple[str, tuple[Gpus, ...]], PartitionOffer] = {}
    for row in rows:
        offer = _of_row(row)
        if not re.fullmatch(r"[A-Za-z0-9][\w.:+-]{0,99}", offer.name):
            continue
        key = (offer.name, offer.gpus)
        if (known := joined.get(key)) is None:
            joined[key] = offer
        else:
            count = None if known.num_nodes is None else known.num_nodes + (offer.num_nodes or 0)
            is_up = known.is_up or offer.is_up
            joined[key] = replace(known, num_nodes=count, nodes=known.nodes + offer.nodes, is_up=is_up)
    return list(joined.values())


def parse_gpus(text: str) -> tuple[Gpus, ...]:
    """GPUs a node in `gpu:a100:4(S:0-1),nvme:1`, `gpu:8` or `gres/gpu:h100=8`, by type."""
    counts: dict[str, int] = {}
    for part in re.sub(r"\([^)]*\)", "", text[:4000]).split(","):
        if match := _GRES.fullmatch(part.strip()):
            kind = match[1] or match[3] or ""
            counts[kind] = counts.get(kind, 0) + int(match[2] or 1)
    if len(counts) > 1:  # the untyped sum of typed ones
        counts.pop("", None)
    return tuple(Gpus(kind, count) for kind, count in counts.items() if count)


def _of_pairs(name: str, pairs: Mapping[str, str]) -> PartitionOffer:
    nodes = _number(pairs.get("TotalNodes", ""))
    cpus = _number(pairs.get("TotalCPUs", ""))
    tres = dict(part.partition("=")[::2] for part in pairs.get("TRES", "").split(",") if "=" in part)
    memory = re.fullmatch(r"([0-9.]+)([KMGTP]?)", tres.get("mem", ""))
    scale = {"": 2.0**-10, "K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10, "P": 2.0**20}
    gib = read(float, memory[1]) if memory else None
    gpus = parse_gpus(",".join(f"{key}={value}" for key, value in tres.items() if key.startswith("gres/gpu")))
    return PartitionOffer(
        name,
        is_default=pairs.get("Default", "").upper() == "YES",
        is_up=pairs.get("State", "UP").upper() == "UP",
        max_time_seconds=read(parse_limit, pairs.get("MaxTime", "")),
        num_nodes=nodes,
        nodes=read(expand_nodes, pairs.get("Nodes", "")) or (),
        gpus=tuple(Gpus(g.type, -(-g.count // nodes)) for g in gpus) if nodes else (),
        cpus_per_node=cpus // nodes if cpus and nodes else None,
        memory_gib_per_node=gib * scale[memory[2]] / nodes if gib and memory and nodes else None,
        qos="" if pairs.get("QoS", "N/A") in _NONE else pairs["QoS"],
        allow_qos=_list(pairs.get("AllowQos", "")),
        allow_accounts=_list(pairs.get("AllowAccounts", "")),
        oversubscribe=pairs.get("OverSubscribe", pairs.get("Shared", "")),
        preempt_mode=pairs.get("PreemptMode", ""),
    )


def _of_row(row: Mapping[str, str]) -> PartitionOffer:
    name = row.get("partition", "")
    memory = _number(row.get("memory", ""))
    return PartitionOffer(
        name.rstrip("*"),
        is_default=name.endswith("*"),
        is_up=row.get("avail", "up").lower() == "up",
        max_time_seconds=read(parse_limit, row.get("timelimit", "")),
        num_nodes=_number(row.get("nodes", "")),
        nodes=read(expand_nodes, row.get("nodelist", "")) or (),
        gpus=parse_gpus(row.get("gres", "")),
        cpus_per_node=_number(row.get("cpus", "")),
        memory_gib_per_node=None if memory is None else memory / 1024,
        features=_list(row.get("avail_features", "") or row.get("active_features", "") or row.get("features", "")),
        oversubscribe=row.get("oversubscribe", ""),
    )


def _plain_rows(text: str) -> list[dict[str, str]]:
    """Rows of a table separated by blanks, whose header has PARTITION."""
    names: list[str] = []
    rows = []
    for line in clean_lines(text):
        words = line.split()
        if "PARTITION" in words:
            names = [word.lower() for word in words]
        elif names and len(words) == len(names):
            rows.append(dict(zip(names, words, strict=True)))
    return rows


@dataclass(frozen=True)
class HeadlessRows:
    """A table of sinfo's without its header, by columns that their cells show; the others are in no row."""

    rows: list[dict[str, str]]
    unknown_columns: tuple[int, ...]
    separator: str


#: What every cell of a column must look like; the first kind that fits a column, and is still free, is its name.
_SHAPES = (
    ("avail", re.compile(r"up|down|drain|inact")),
    (
        "timelimit",
        re.compile(
            r"infinite|(?:[0-9]+-)?[0-9]{1,2}:[0-9]{2}:[0-9]{2}|[0-9]{1,3}:[0-9]{2}|[0-9]+-[0-9]{1,2}(?::[0-9]{2})?"
        ),
    ),
    (
        "state",
        re.compile(
            r"(?:alloc(?:ated)?|idle|mix(?:ed)?|down|drain(?:ed|ing)?|drng|comp(?:leting)?|resv|reserved|maint|unk(?:nown)?|"
            r"plnd|planned|fail|inval|boot)[*~#!%$@^+-]{0,2}"
        ),
    ),
    ("gres", re.compile(r"\(null\)|(?:[A-Za-z][\w./-]*:)[\w.:(),/=-]*")),
    ("cpusstate", re.compile(r"(?:[0-9]+/){3}[0-9]+")),
    ("oversubscribe", re.compile(r"(?:NO|YES|FORCE|EXCLUSIVE)(?::[0-9]+)?")),
)
_PARTITION_NAME = re.compile(r"[A-Za-z][\w.:+-]{0,99}\*?")
_NODE_LIST = re.compile(r"[A-Za-z][\w.-]*(?:\[[0-9,-]+\])?[\w.,\[\]-]*")
_COUNT = re.compile(r"[0-9]{1,9}\+?")


def headless_rows(text: str) -> HeadlessRows | None:
    """Rows of sinfo without a header, separated by one of the usual signs; none where they are not clearly that.

    The first column names a partition, and one of availability, time limit, state or GRES must be there: other tables
    have none of them. Which of several columns of numbers holds nodes, processors or memory, nothing shows.
    """
    lines = [line.strip() for line in clean_lines(text) if line.strip()]
    for separator in ("|", ";", "\t", "^", ","):
        cells = [[cell.strip() for cell in line.split(separator)] for line in lines[:10_000]]
        if not cells or len(cells[0]) < 3 or len({len(row) for row in cells}) > 1:
            continue
        columns = [list(column) for column in zip(*cells, strict=True)]
        if not all(_PARTITION_NAME.fullmatch(cell) for cell in columns[0]):
            continue
        names = _names_of(columns)
        if {"avail", "timelimit", "state", "gres"} & set(names.values()):
            rows = [{name: row[at] for at, name in names.items()} for row in cells]
            unknown = tuple(at + 1 for at in range(len(columns)) if at not in names)
            return HeadlessRows(rows, unknown, separator)
    return None


def _names_of(columns: list[list[str]]) -> dict[int, str]:
    names = {0: "partition"}
    for at, column in enumerate(columns[1:], start=1):
        for name, shape in _SHAPES:
            if name not in names.values() and all(shape.fullmatch(cell) for cell in column):
                names[at] = name
                break
    counts = [at for at, column in enumerate(columns) if at not in names and all(map(_COUNT.fullmatch, column))]
    if len(counts) == 1:
        names[counts[0]] = "nodes"
    lists = [at for at, column in enumerate(columns) if at not in names and all(map(_NODE_LIST.fullmatch, column))]
    if len(lists) == 1:
        names[lists[0]] = "nodelist"
    return names


def _number(text: str) -> int | None:
    """The whole number that a value begins with: `300 sec`, `1031000+`."""
    match = re.match(r"[0-9]{1,15}(?![\w.])", text)
    return int(match[0]) if match else None


def _word(text: str) -> str:
    return "" if text in _NONE else text[:200]


def _list(text: str) -> tuple[str, ...]:
    return tuple(word for word in text[:4000].split(",") if word and word not in ("ALL", *_NONE))
