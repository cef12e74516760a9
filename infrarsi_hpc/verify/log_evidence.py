"""What a log says about how a program ended: one table of texts, each with what it means.

The dialects are those of torch 1.x to 2.x on CUDA and ROCm, its CPU allocator, NCCL, gloo, Slurm and the kernel's
out-of-memory killer. Numbers are read where the text has them.

Covers: several ranks in one log (the cause comes before its consequences), colour codes, carriage returns, rank labels.
Does not cover: a program that prints such a text itself; exit codes and marks decide first, in `verify.ending`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from infrarsi_hpc.domain.outcome import Outcome

MAX_EVIDENCE = 400

_GIB = {"bytes": 2**-30, "KiB": 2**-20, "MiB": 2**-10, "GiB": 1.0, "TiB": 2.0**10}
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RANK = re.compile(r"\s*(?:\[(?:rank|default)?(\d+)\]:?|(\d+):)\s")
_TASK = re.compile(r"\btask (\d+):")
_SIZE = r"([\d.]+) (bytes|KiB|MiB|GiB|TiB)"
_FINAL_ERROR = re.compile(r"(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Unsupported|Failed)\b.*")


class Weight(IntEnum):
    """How much a text explains: what ended the program, what it ran into on the way, what followed from that."""

    CAUSE = 0
    FAULT = 1
    CONSEQUENCE = 2


@dataclass(frozen=True)
class Finding:
    """One text found, with the numbers that it gives (GiB)."""

    outcome: Outcome
    detail: str | None
    weight: Weight
    evidence: str
    rank: int | None = None
    requested_gib: float | None = None
    allocated_gib: float | None = None
    #: A cap on the allocator that the text names.
    cap_gib: float | None = None
    #: The process's own memory ran out: whose fault that is depends on who set the limit.
    is_process_memory: bool = False


def _row(
    text: str, outcome: Outcome, detail: str | None = None, weight: Weight = Weight.CAUSE
) -> tuple[re.Pattern[str], Outcome, str | None, Weight]:
    return re.compile(text), outcome, detail, weight


_TABLE = (
    _row(r"Detected \d+ oom[-_]kill event", Outcome.HOST_OOM, "cgroup"),
    _row(r"srun: error: .*Out Of Memory", Outcome.HOST_OOM, "cgroup"),
    _row(r"Memory cgroup out of memory|oom-kill:constraint=", Outcome.HOST_OOM, "cgroup"),
    _row(r"insufficient shared memory|out of shared memory|shared memory limit", Outcome.HOST_OOM, "shm"),
    _row(r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED", Outcome.DEVICE_OOM, "lib_alloc"),
    _row(r"NCCL WARN.*(?:out of memory|Failed to CUDA (?:calloc|malloc|host))", Outcome.DEVICE_OOM, "nccl"),
    _row(r"\AFailed to CUDA (?:calloc|malloc)", Outcome.DEVICE_OOM, "nccl"),
    _row(
        r"(?:CUDA|HIP) error: out of memory|hipErrorOutOfMemory|cudaErrorMemoryAllocation",
        Outcome.DEVICE_OOM,
        "no_number",
    ),
    _row(r"out of resource: |too many resources requested for launch", Outcome.INVALID, "kernel_resources"),
    _row(r"DUE TO TIME LIMIT", Outcome.TIMEOUT, "limit"),
    _row(r"DUE TO PREEMPTION|DUE TO NODE FAILURE|DUE to SIGNAL Terminated due to preemption", Outcome.INFRA),
    _row(r"CANCELLED AT \S+ \*\*\*", Outcome.CANCELLED),
    _row(r"No space left on device|Disk quota exceeded|Stale file handle|Remote I/O error", Outcome.INFRA),
    _row(r"uncorrectable ECC|has fallen off the bus|GPU is lost|NVRM: Xid", Outcome.INFRA),
    _row(r"all CUDA-capable devices are busy|no CUDA-capable device is detected", Outcome.INFRA),
    _row(r"Driver/library version mismatch|Failed to initialize NVML", Outcome.INFRA),
    _row(r"Address already in use|EADDRINUSE", Outcome.INFRA),
    _row(r"No route to host|ibv_\w+ failed|NET/IB : .*(?:error|Error)", Outcome.INFRA),
    _row(
        r"torch\._(?:dynamo|inductor)\.exc\.|BackendCompilerFailed|InductorError|CppCompileError",
        Outcome.INVALID,
        "compile",
    ),
    _row(r"No working C\+\+ compiler|triton\.compiler\.errors", Outcome.INVALID, "compile"),
    _row(r"illegal memory access|device-side assert|misaligned address", Outcome.CRASHED, None, Weight.FAULT),
    _row(r"(?i)\bloss\b[ a-z:=]{0,12}\b(?:nan|inf)\b", Outcome.DIVERGED, None, Weight.FAULT),
    _row(r"Watchdog caught collective operation timeout", Outcome.TIMEOUT, "hang", Weight.CONSEQUENCE),
    _row(r"Timed out waiting \d+ ?ms for|DistStoreError: Timed out", Outcome.TIMEOUT, "hang", Weight.CONSEQUENCE),
    _row(r"(?i)connection (?:closed|reset|refused|was closed)|Broken pipe", Outcome.CRASHED, None, Weight.CONSEQUENCE),
    _row(r"DistBackendError|DistNetworkError|ChildFailedError", Outcome.CRASHED, None, Weight.CONSEQUENCE),
)

_ALLOCATOR = re.compile(rf"\b(CUDA|HIP|XPU) out of memory\. Tried to allocate {_SIZE}")
_CPU_REQUEST = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory: you tried to allocate (\d+) bytes"
)
_ARRAY = re.compile(rf"MemoryError: Unable to allocate {_SIZE}")
_PROCESS_MEMORY = re.compile(
    r"(?<![\w.])MemoryError\b|std::bad_alloc|Cannot allocate memory|Error code 12\b|"
    # a thread's stack counts as data memory too (seen with RLIMIT_DATA: libgomp and autograd start theirs lazily)
    r"can't start new thread|Thread creation failed|pthread_create failed"
)
_USAGE = re.compile(r"[\w./-]+(?: [\w.-]+){0,3}: error: .")


def find(text: str) -> list[Finding]:
    """Everything in a log that explains an ending, the best explanation first.

    Causes come before faults and those before consequences; within each, the first in the log comes first.
    """
    found = list(_scan(text))
    # the bare headline of an error that another line explains with numbers is the same event
    if any(f.weight is Weight.CAUSE for f in found):
        found = [f for f in found if f.detail != "no_number" or not _has_numbers(found)]
    return sorted(found, key=lambda f: f.weight)


def final_error(text: str, rank: int | None = None) -> str | None:
    """The last line that names an error (of one rank, if given): what a traceback ends with.

    Lines that only say that another rank is gone do not count.
    """
    consequences = {f.evidence for f in _scan(text) if f.weight is Weight.CONSEQUENCE}
    last = None
    for line_rank, line in lines_of(text):
        shown = line[:MAX_EVIDENCE]
        if (rank is None or line_rank in (None, rank)) and _FINAL_ERROR.match(line) and shown not in consequences:
            last = shown
    return last


def usage_error(text: str) -> str | None:
    """The line with which an argument parser refused the command line, if one did."""
    has_usage = False
    for _, line in lines_of(text):
        has_usage = has_usage or line.startswith("usage:")
        if has_usage and _USAGE.match(line):
            return line[:MAX_EVIDENCE]
    return None


def lines_of(text: str) -> Iterator[tuple[int | None, str]]:
    """A log's lines with the rank that their label names; labels and colours are taken off."""
    for raw in re.split(r"[\r\n]+", text):
        line = _COLOUR.sub("", raw)
        rank = None
        # torchrun's label may stand behind the launcher's own
        while (label := _RANK.match(line)) is not None:
            rank = int(label[1] or label[2])
            line = line[label.end() :]
        if line.strip():
            yield rank, line.strip()


def _scan(text: str) -> Iterator[Finding]:
    for rank, line in lines_of(text):
        if (match := _ALLOCATOR.search(line)) is not None:
            yield _allocator(line, match, rank)
        elif (match := _CPU_REQUEST.search(line)) is not None:
            yield _process_memory(line, rank, int(match[1]) / 2**30)
        elif (match := _ARRAY.search(line)) is not None:
            yield _process_memory(line, rank, _gib(match[1], match[2]))
        elif _PROCESS_MEMORY.search(line) is not None:
            yield _process_memory(line, rank, None)
        else:
            for pattern, outcome, detail, weight in _TABLE:
                if pattern.search(line) is not None:
                    task = _TASK.search(line)
                    yield Finding(outcome, detail, weight, line[:MAX_EVIDENCE], int(task[1]) if task else rank)
                    break


def _process_memory(line: str, rank: int | None, requested_gib: float | None) -> Finding:
    is_thread = "hread" in line
    return Finding(
        Outcome.CRASHED if is_thread else Outcome.HOST_OOM,
        None if is_thread else "allocator",
        Weight.CAUSE,
        line[:MAX_EVIDENCE],
        rank,
        requested_gib=requested_gib,
        is_process_memory=True,
    )


def _allocator(line: str, match: re.Match[str], rank: int | None) -> Finding:
    """torch's own allocator: old and new wording, and numbers that contradict each other."""
    requested = _gib(match[2], match[3])
    total = _number(line, rf"total capacity of {_SIZE}", rf"{_SIZE} total capacity")
    free = _number(line, rf"of which {_SIZE} is free", rf"{_SIZE} free")
    allocated = _number(line, rf"{_SIZE} is allocated by PyTorch", rf"{_SIZE} already allocated")
    cap = _number(line, rf"{_SIZE} allowed")
    detail = "fraction_cap" if cap is not None else "hip" if match[1] == "HIP" else "torch"
    outcome = Outcome.DEVICE_OOM
    # with this much free the request cannot have met the device's limit: a driver or fragmentation paradox
    if (
        cap is None
        and free is not None
        and (free >= 2 * _segment_gib(requested) or (total is not None and free > total))
    ):
        outcome, detail = Outcome.INFRA, ""
    return Finding(outcome, detail or None, Weight.CAUSE, line[:MAX_EVIDENCE], rank, requested, allocated, cap)


def _segment_gib(requested_gib: float) -> float:
    """What the allocator asks the driver for: 2 MiB for the smallest, 20 MiB up to 10 MiB, else steps of 2 MiB."""
    mib = requested_gib * 1024
    return (2.0 if mib <= 1 else 20.0 if mib < 10 else 2.0 * -(-mib // 2)) / 1024


def _number(line: str, *patterns: str) -> float | None:
    for pattern in patterns:
        match = re.search(pattern, line)
        if match is not None:
            return _gib(match[1], match[2])
    return None


def _gib(number: str, unit: str) -> float:
    try:
        return float(number) * _GIB[unit]
    except ValueError:  # "1.2.3": not a number after all
        return 0.0


def _has_numbers(found: list[Finding]) -> bool:
    return any(f.requested_gib is not None for f in found)
