"""May a node's GPUs carry a measurement? What a campaign makes of an answer of nvidia-smi.

A card that is slowed down, broken or shared gives times that are not the program's: such a node is no place for a
baseline, and what ran there teaches nothing.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.edges.nvidia_smi import MAX_CHARS, GpuReport, GpuRow, ProcessRow, parse_nvidia_smi
from infrarsi_hpc.errors import InputRefused

#: Memory that is in use before a trial and that no desktop explains: this share of the card, and this much.
USED_SHARE = 0.02
USED_GIB = 1.0

_FIT = "the node may carry a baseline; capacity is what the findings say, less what a context takes"
_FAULT = "no baseline and no trial on this node: exclude it (`--exclude`), take another one, and tell the site's people"
_SHARED = "the GPU is not clean before our trial: wait, ask for whole nodes (exclusive), or take another one"


def explain_gpu_file(path: Path) -> dict[str, Any]:
    """`explain_gpu` of a file.

    Raises
    ------
    InputRefused
        It cannot be read, or is no answer of nvidia-smi.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_CHARS + 1).decode("utf-8", "replace")
    except OSError as error:
        raise InputRefused(f"{path} cannot be read", why=error.strerror or str(error), fix="check the path") from error
    return explain_gpu(text, path.name)


def explain_gpu(text: str, name: str = "") -> dict[str, Any]:
    """Outcome `ok` or `infra`, why, what to do, and a finding for each card, slice and process (memory in GiB).

    Raises
    ------
    InputRefused
        It is no answer of nvidia-smi (`name` says whose text it was), or one that could do harm.
    """
    try:
        report = parse_nvidia_smi(text)
    except InputRefused as error:
        raise InputRefused(f"{name}: {error.what}" if name else error.what, why=error.why, fix=error.fix) from error
    faults = [*report.complaints, *_faults(report)]
    shared = _shared(report)
    return {
        "outcome": (Outcome.INFRA if faults or shared else Outcome.OK).value,
        "detail": None,
        "bound_gib": None,
        "rank": None,
        "evidence": "; ".join([*faults, *shared][:20]) or _capacity(report),
        "action": _FAULT if faults else _SHARED if shared else _FIT,
        "findings": _findings(report),
    }


def _faults(report: GpuReport) -> list[str]:
    faults = [f"{_called(gpu)}: {', '.join(gpu.problems)}" for gpu in report.gpus if gpu.problems]
    return faults + [f"slice {s.index} of GPU {s.gpu}: {', '.join(s.problems)}" for s in report.slices if s.problems]


def _shared(report: GpuReport) -> list[str]:
    shared = [_foreign(process) for process in report.processes if process.is_compute]
    for gpu in report.gpus:
        limit = max(USED_GIB, USED_SHARE * (gpu.capacity_gib or 0.0))
        if not shared and not gpu.is_sliced and gpu.used_gib is not None and gpu.used_gib > limit:
            shared.append(f"{_called(gpu)}: {gpu.used_gib:.2f} GiB are in use")
    return shared


def _foreign(process: ProcessRow) -> str:
    pid = "of an unknown number" if process.pid is None else str(process.pid)
    held = "memory" if process.used_gib is None else f"{process.used_gib:.2f} GiB"
    return f"foreign process {pid} holds {held} of {process.gpu or 'a GPU'}"


def _capacity(report: GpuReport) -> str:
    slices = [f"slice {s.index} of GPU {s.gpu} has {s.capacity_gib:.2f} GiB" for s in report.slices if s.capacity_gib]
    gpus = [f"{_called(g)} has {g.capacity_gib:.2f} GiB" for g in report.gpus if g.capacity_gib and not g.is_sliced]
    return "; ".join([*slices, *gpus][:20]) or "nothing runs on the GPUs"


def _called(gpu: GpuRow) -> str:
    return f"GPU {gpu.index}" + (f" ({gpu.name})" if gpu.name else "")


def _findings(report: GpuReport) -> list[dict[str, Any]]:
    # slices first: they are what a program is given
    found = [{"kind": "mig_device", **asdict(part)} for part in report.slices]
    found += [{"kind": "gpu", **asdict(gpu)} for gpu in report.gpus]
    found += [{"kind": "process", **asdict(process)} for process in report.processes]
    found += [{"kind": "complaint", "problems": [text]} for text in report.complaints]
    return [{key: list(value) if isinstance(value, tuple) else value for key, value in row.items()} for row in found]
