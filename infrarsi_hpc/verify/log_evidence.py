"""What a log says about how a program ended.

The dialects are those of torch 1.x to 2.x, its allocators and compilers, other frameworks where they name memory, NCCL
and gloo, Slurm, the kernel's out-of-memory killer, and NVIDIA's driver (`verify.log_table`, `verify.log_memory`).

Covers: several ranks in one log (the cause comes before its consequences, by time where lines have one), colour codes,
carriage returns, labels, wrapped messages, errors that the program says it handled, and errors quoted in its data.
Does not cover: a program that prints such a text itself; exit codes and marks decide first, in `verify.ending`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.verify.log_lines import Line, lines_of, raw_lines, read_line
from infrarsi_hpc.verify.log_memory import Allocation, read_allocation, read_peak, to_gib
from infrarsi_hpc.verify.log_table import HANDLED, NEAR_HOST_LIMIT, QUOTED, ROWS, SOURCE, Row, Weight, may_speak

__all__ = ["Finding", "LogEvidence", "Weight", "find", "lines_of", "read_log"]

MAX_EVIDENCE = 400
#: A log that says the same a million times says it often enough.
MAX_FINDINGS = 2000
#: A message may be wrapped to the width of a terminal.
WRAPPED_LINES = 12

_HEADLINE = re.compile(r"\b(?:CUDA|HIP|[A-Z]{3}|MPS backend) out of memory\b")
_TASK = re.compile(r"\btasks? (\d{1,6})[\d,-]*:")
_ROOT_RANK = re.compile(r"rank\s+: (\d{1,6}) \(local_rank")
_FINAL_ERROR = re.compile(
    r"(?:(?:ERROR|CRITICAL|FATAL)\b[\s:|\]-]{0,8})?"
    r"((?:[\w.]+\.)?(?:[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Unsupported|Failed)\b|Exception(?=:)).*)"
)
_CPU_REQUEST = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory: you tried to allocate (\d{1,19}) bytes"
)
_ARRAY = re.compile(r"MemoryError: Unable to allocate (\d{1,9}(?:\.\d{0,6})?) (bytes|KiB|MiB|GiB|TiB)")
_USAGE = re.compile(r"[\w./-]{1,200}(?: [\w.-]{1,80}){0,3}: error: .")
_KILLED = re.compile(r"\bKilled\b|SIGKILL|-9\b|137\b|SIGNAL: 9\b")
MAX_WARNINGS = 100
#: More than any one card or process is asked for in earnest, where the log does not say how large the card is.
OVERSIZED_GIB = 1024.0
_MEMORY = (Outcome.DEVICE_OOM, Outcome.HOST_OOM)


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
    #: A cap on the allocator that the text names, and the card's size.
    cap_gib: float | None = None
    total_gib: float | None = None
    #: The process's own memory ran out: whose fault that is depends on who set the limit.
    is_process_memory: bool = False
    #: `(kind, key)`, where the line has a time.
    time: tuple[str, str] | None = None


@dataclass
class LogEvidence:
    """All that one pass over a log brings."""

    #: The best explanation first: causes, faults, consequences, echoes; within each the earliest.
    findings: list[Finding] = field(default_factory=list)
    #: Memory that ran out and of which the program says that it went on.
    handled: list[Finding] = field(default_factory=list)
    #: What came near something and is no outcome by itself.
    warnings: list[str] = field(default_factory=list)
    #: By rank, the last line that names an error and no more, with its place in the log.
    errors: dict[int | None, tuple[int, str]] = field(default_factory=dict)
    #: The line with which an argument parser refused the command line.
    usage: str | None = None
    #: The rank that torchrun names as the first to fail.
    root_rank: int | None = None
    #: Peak memory in GiB by rank, as the program logged it.
    peaks_gib: dict[int | None, float] = field(default_factory=dict)

    def final_error(self, rank: int | None = None) -> tuple[int | None, str] | None:
        """The rank and text of the last line that names an error: what a traceback ends with.

        With a rank, that of this rank or of none.
        """
        own = [(place, of, text) for of, (place, text) in self.errors.items() if rank is None or of in (None, rank)]
        return max(own)[1:] if own else None

    def own_peak_gib(self, rank: int | None) -> float | None:
        """The peak that a rank has logged, or the highest of any where that rank has logged none."""
        return self.peaks_gib.get(rank) or max(self.peaks_gib.values(), default=None)


def read_log(text: str) -> LogEvidence:
    """Read a log of any length, in one pass; time grows with its length alone.

    Lines that only say that another rank is gone count as consequences, not as errors.
    """
    evidence = LogEvidence()
    found: dict[Weight, list[Finding]] = {weight: [] for weight in Weight}
    has_usage = is_root = has_timed_out = False
    raws = raw_lines(text)
    for number, raw in enumerate(raws):
        if not may_speak(raw.lower()):
            continue
        for line in read_line(raw):
            has_usage = has_usage or line.text.startswith("usage:")
            is_root = is_root or line.text.startswith("Root Cause")
            if is_root and (root := _ROOT_RANK.match(line.text)) is not None:
                evidence.root_rank, is_root = int(root[1]), False
            if (peak := read_peak(line.text)) is not None:
                evidence.peaks_gib[line.rank] = max(peak, evidence.peaks_gib.get(line.rank, 0.0))
            if NEAR_HOST_LIMIT.search(line.text) is not None:
                if len(evidence.warnings) < MAX_WARNINGS:
                    evidence.warnings.append(_shown(line.text, 0))
                continue
            finding, is_handled = _finding(line, raws[number + 1 : number + 1 + WRAPPED_LINES])
            if finding is not None:
                has_timed_out = has_timed_out or (finding.outcome is Outcome.TIMEOUT and finding.detail == "hang")
                if has_timed_out and _is_debris(finding):
                    finding = _after_a_time_out(finding)
                kept = evidence.handled if is_handled else found[finding.weight]
                if len(kept) < MAX_FINDINGS:
                    kept.append(finding)
            is_own = finding is None or (not is_handled and finding.weight < Weight.CONSEQUENCE)
            if is_own and (error := _FINAL_ERROR.match(line.text)) is not None:
                evidence.errors[line.rank] = number, error[1][:MAX_EVIDENCE]
            if has_usage and evidence.usage is None and _USAGE.match(line.text):
                evidence.usage = line.text[:MAX_EVIDENCE]
    evidence.findings = _ordered(found)
    if evidence.warnings:
        evidence.findings = [_explained(f, evidence.warnings[0]) for f in evidence.findings]
    return evidence


def find(text: str) -> list[Finding]:
    """Everything in a log that explains an ending, the best explanation first."""
    return read_log(text).findings


def _is_debris(finding: Finding) -> bool:
    """A request for more than any card has, or than this one: its size came out of a buffer that was never filled."""
    most = finding.total_gib or OVERSIZED_GIB
    is_memory = finding.outcome in _MEMORY or finding.outcome is Outcome.CRASHED
    return is_memory and finding.requested_gib is not None and finding.requested_gib > most


def _after_a_time_out(finding: Finding) -> Finding:
    text = f"a request of {finding.requested_gib:.3g} GiB, after a collective had timed out: {finding.evidence}"
    return replace(
        finding,
        outcome=Outcome.TIMEOUT,
        detail="hang",
        weight=Weight.CONSEQUENCE,
        evidence=text[:MAX_EVIDENCE],
        requested_gib=None,
    )


def _explained(finding: Finding, warning: str) -> Finding:
    """A kill that nobody explains, in a step that had come to its limit on the host's memory: that was it."""
    if finding.outcome is not Outcome.UNKNOWN or _KILLED.search(finding.evidence) is None:
        return finding
    evidence = f"{warning} {finding.evidence}"[:MAX_EVIDENCE]
    return replace(finding, outcome=Outcome.HOST_OOM, detail="cgroup", weight=Weight.FAULT, evidence=evidence)


# ---- one line


def _finding(line: Line, following: Sequence[str]) -> tuple[Finding | None, bool]:
    """What a line means, if anything, and whether the program says that it went on."""
    text = line.text
    if SOURCE.match(text) is not None:
        return None, False
    finding: Finding | None = None
    if (headline := _HEADLINE.search(text)) is not None and (allocation := _allocation(line, following)) is not None:
        start, finding = headline.start(), _of_allocation(allocation, line, headline.start())
    elif (request := _CPU_REQUEST.search(text)) is not None:
        start, finding = request.start(), _process_memory(line, request, int(request[1]) / 2**30)
    elif (array := _ARRAY.search(text)) is not None:
        start, finding = array.start(), _process_memory(line, array, to_gib(array[1], array[2]))
    elif (spoken := _row_of(text)) is not None:
        start, finding = spoken[1].start(), _of_row(*spoken, line)
    if finding is None or ((quote := QUOTED.search(text)) is not None and quote.start() <= start):
        return None, False
    # an iteration's line counts skipped steps, whatever its loss
    return finding, finding.outcome is not Outcome.DIVERGED and HANDLED.search(text) is not None


@lru_cache(maxsize=4096)  # logs repeat themselves
def _row_of(text: str) -> tuple[Row, re.Match[str]] | None:
    for row in ROWS:
        if (match := row.pattern.search(text)) is not None:
            return row, match
    return None


def _of_row(row: Row, match: re.Match[str], line: Line) -> Finding:
    task = _TASK.search(line.text)
    number = next((group for group in match.groups() if group), None) if row.has_request else None
    return Finding(
        row.outcome,
        row.detail,
        row.weight,
        _shown(line.text, match.start()),
        int(task[1]) if task else line.rank,
        requested_gib=int(number.replace(",", "") or 0) / 2**30 if number else None,
        is_process_memory=row.is_process_memory,
        time=line.time,
    )


def _process_memory(line: Line, match: re.Match[str], requested_gib: float) -> Finding:
    shown = _shown(line.text, match.start())
    return Finding(
        Outcome.HOST_OOM,
        "allocator",
        Weight.CAUSE,
        shown,
        line.rank,
        requested_gib,
        is_process_memory=True,
        time=line.time,
    )


def _of_allocation(allocation: Allocation, line: Line, start: int) -> Finding:
    if allocation.is_absurd:
        shown = (
            f"a request of {allocation.requested_gib:.3g} GiB, which no setting asks for: {_shown(line.text, start)}"
        )
        requested = allocation.requested_gib
        return Finding(Outcome.CRASHED, None, Weight.FAULT, shown[:MAX_EVIDENCE], line.rank, requested, time=line.time)
    detail = "fraction_cap" if allocation.cap_gib is not None else "hip" if allocation.backend == "HIP" else "torch"
    shown = _shown(line.text, start)
    outcome = Outcome.DEVICE_OOM
    if allocation.is_paradox:
        outcome = Outcome.INFRA
        shown = (
            f"fragmentation or driver paradox, {allocation.free_gib or 0:.2f} GiB free and a request of "
            f"{allocation.requested_gib:.3g} GiB failed: {shown}"
        )
    elif allocation.foreign_gib is not None:
        outcome = Outcome.INFRA
        shown = f"foreign process, {allocation.foreign_gib:.2f} GiB of the device were others': {shown}"
    return Finding(
        outcome,
        detail if outcome is Outcome.DEVICE_OOM else None,
        Weight.CAUSE,
        shown[:MAX_EVIDENCE],
        line.rank,
        allocation.requested_gib,
        allocation.allocated_gib,
        allocation.cap_gib,
        allocation.total_gib,
        time=line.time,
    )


def _allocation(line: Line, following: Sequence[str]) -> Allocation | None:
    allocation = read_allocation(line.text)
    if allocation is not None and allocation.allocated_gib is not None:
        return allocation
    return read_allocation(_joined(line, following)) or allocation


def _joined(line: Line, following: Sequence[str]) -> str:
    """A message with the lines that it was wrapped into: those of the same rank, up to the next error."""
    parts = [line.text]
    for raw in following:
        for other in read_line(raw):
            if other.rank == line.rank and len(parts) < WRAPPED_LINES:
                if "out of memory" in other.text:
                    return " ".join(parts)
                parts.append(other.text.strip("│| "))
    return " ".join([parts[0].strip("│| "), *parts[1:]])


def _shown(text: str, start: int) -> str:
    """As much of a line as people read, around what was found in it."""
    begin = 0 if len(text) <= MAX_EVIDENCE else max(0, min(start - MAX_EVIDENCE // 4, len(text) - MAX_EVIDENCE))
    return text[begin : begin + MAX_EVIDENCE]


# ---- several findings


def _ordered(found: dict[Weight, list[Finding]]) -> list[Finding]:
    ordered = [f for weight in Weight for f in _by_time(found[weight])]
    ordered = _with_ranks(ordered)
    # a device error without numbers that another line explains with numbers is the same event
    if any(f.outcome is Outcome.DEVICE_OOM and f.allocated_gib is not None for f in ordered):
        ordered = [f for f in ordered if f.detail not in ("no_number", "lib_alloc", "nccl")]
    # libraries fail to start on a device that an assertion has left unusable: then it was not memory
    if any(f.outcome is Outcome.CRASHED and "assert" in f.evidence.lower() for f in ordered):
        ordered = [f for f in ordered if f.detail != "lib_alloc"]
    return ordered


def _by_time(found: list[Finding]) -> list[Finding]:
    """In the log's order, except that lines with times of one kind stand in the order of their times."""
    kinds = Counter(f.time[0] for f in found if f.time is not None)
    if not kinds:
        return found
    kind = kinds.most_common(1)[0][0]
    places = [place for place, f in enumerate(found) if f.time is not None and f.time[0] == kind]
    timed: Iterator[Finding] = iter(sorted((found[place] for place in places), key=lambda f: f.time or ("", "")))
    for place in places:
        found[place] = next(timed)
    return found


def _with_ranks(found: Sequence[Finding]) -> list[Finding]:
    """With the rank that another line about the same kind of end names (Slurm's own line does not say whose it was)."""
    first: dict[tuple[Outcome, str | None], int] = {}
    for f in found:
        if f.rank is not None and f.outcome in _MEMORY:
            first.setdefault((f.outcome, f.detail), f.rank)
    return [replace(f, rank=first.get((f.outcome, f.detail))) if f.rank is None else f for f in found]
