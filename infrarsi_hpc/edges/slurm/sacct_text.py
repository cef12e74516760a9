"""What sacct says: rows by column name, steps folded into their allocation, the last of several attempts deciding.

Covers: `--parsable`, `--parsable2` and the default fixed columns, any order of columns, banners, arrays, requeues.
Does not cover: whether a job that is COMPLETED did what it should: that needs the job's own end mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from infrarsi_hpc.domain.job import JobId, JobRecord, JobState
from infrarsi_hpc.edges.slurm.ids import MAX_TASKS, parse_id
from infrarsi_hpc.edges.slurm.quantities import Memory
from infrarsi_hpc.edges.slurm.records import jobs_of, read, record_of, requested_memory
from infrarsi_hpc.edges.slurm.tables import Table, read_table

#: Columns to ask for, with `--parsable2 -D`; sites without some of them refuse the whole call, so these are old ones.
FORMAT = (
    "JobID,JobIDRaw,Cluster,State,ExitCode,DerivedExitCode,Submit,Start,End,Elapsed,Timelimit,"
    "ReqMem,MaxRSS,NNodes,NodeList,AllocTRES,JobName,Comment"
)
#: States that a job may be started again from.
RETURNING = frozenset(
    {
        JobState.BOOT_FAIL,
        JobState.LAUNCH_FAILED,
        JobState.NODE_FAIL,
        JobState.PREEMPTED,
        JobState.RECONFIG_FAIL,
        JobState.REQUEUED,
        JobState.REQUEUE_FED,
        JobState.REQUEUE_HOLD,
        JobState.RESIZING,
        JobState.SPECIAL_EXIT,
    }
)
#: Local times repeat for this long when daylight saving ends, and attempts of that night may be in a wrong order.
CLOCK_CHANGE_SECONDS = 3600.0


@dataclass(frozen=True)
class SacctTask:
    """What sacct knows of a task: the attempt that counts, those before it in order, and its request for memory."""

    record: JobRecord
    earlier: tuple[JobRecord, ...] = ()
    memory: Memory | None = None

    @property
    def is_final(self) -> bool:
        """Whether the last attempt is over; earlier ones never decide."""
        return self.record.state.is_over


@dataclass(frozen=True)
class SacctAnswer:
    """All tasks in order of first mention; `unreadable` are rows below the header that name no job."""

    tasks: tuple[SacctTask, ...]
    unreadable: tuple[str, ...] = ()
    is_fixed_width: bool = False


@dataclass(frozen=True)
class SacctProblem:
    """Why sacct gave no answer: there is no accounting, or its database is away for now."""

    kind: Literal["disabled", "down"]
    evidence: str


_DISABLED = re.compile(
    r"accounting storage is (?:disabled|not configured)|accounting_storage/none|acct_gather.*none", re.I
)
_DOWN = re.compile(
    r"Problem talking to the database|slurm_persist_conn|PersistInit|Unable to connect to database|"
    r"(?:sacct|slurmdb\w*): (?:error|fatal):.*(?:connect|connection|timed out|database|slurmdbd)|"
    r"Database connection reference is invalid",
    re.IGNORECASE,
)


def sacct_problem(text: str) -> SacctProblem | None:
    """Whether sacct says, on either stream, that it cannot answer."""
    for kind, pattern in (("disabled", _DISABLED), ("down", _DOWN)):
        for line in text.splitlines():
            if pattern.search(line[:2000]):
                return SacctProblem("disabled" if kind == "disabled" else "down", line.strip()[:500])
    return None


def parse_sacct(text: str) -> list[JobRecord]:
    """One record a task; empty also where sacct has no rows yet, which is no end: it lags behind the controller.

    Raises
    ------
    ValueError
        There is no header with `JobID` and `State`.
    """
    return [task.record for task in read_sacct(text).tasks]


def read_sacct(text: str) -> SacctAnswer:
    """As `parse_sacct`, with the attempts before the last, and rows that could not be read."""
    table = read_table(text, ("jobid", "state")) or read_table(text, ("jobid",))
    if table is None:
        raise ValueError("no header with JobID and State: ask sacct with --parsable2 and --format")
    attempts, memory, unreadable = _attempts(table)
    tasks = tuple(_task(records, memory.get(job)) for job, records in attempts.items())
    return SacctAnswer(tasks, tuple(unreadable), table.is_fixed_width)


def group_attempts(records: Iterable[JobRecord]) -> list[SacctTask]:
    """Tasks of records in which a requeued job may stand several times."""
    attempts: dict[JobId, list[JobRecord]] = {}
    for record in records:
        attempts.setdefault(record.job, []).append(record)
    return [_task(of_one, None) for of_one in attempts.values()]


def _task(records: list[JobRecord], memory: Memory | None) -> SacctTask:
    last = _last(records)
    earlier = tuple(record for record in records if record is not last)
    return SacctTask(replace(last, restarts=max(last.restarts, len(earlier))), earlier, memory)


def _attempts(table: Table) -> tuple[dict[JobId, list[JobRecord]], dict[JobId, Memory], list[str]]:
    """Records by job in the file's order, every step folded into the allocation above it."""
    attempts: dict[JobId, list[JobRecord]] = {}
    memory: dict[JobId, Memory] = {}
    unreadable = []
    num_jobs = 0
    for row, line in zip(table.rows, table.lines, strict=True):
        parsed = read(parse_id, row["jobid"])
        num_jobs += 1 if parsed is None else len(parsed.jobs)
        if parsed is None or num_jobs > 2 * MAX_TASKS:
            unreadable.append(line[:500])
            continue
        jobs = jobs_of(parsed, row)
        asked = requested_memory(row)
        first = record_of(row, jobs[0]) if jobs else None
        for job in jobs:
            record = replace(first, job=job) if first is not None else record_of(row, job)
            known = attempts.setdefault(job, [])
            if not parsed.step:
                # steps that stood above it were no attempt of their own
                orphan = (
                    known.pop() if known and known[-1].state is JobState.UNKNOWN and known[-1].step_states else None
                )
                known.append(_folded(record, orphan) if orphan else record)
            elif known:
                known[-1] = _with_step(known[-1], record)
            else:
                known.append(_with_step(JobRecord(job, JobState.UNKNOWN), record))
            if asked is not None:
                memory[job] = asked
    return attempts, memory, unreadable


def _with_step(record: JobRecord, step: JobRecord) -> JobRecord:
    return replace(
        record,
        step_states=(*record.step_states, step.state),
        max_rss_gib=_largest(record.max_rss_gib, step.max_rss_gib),
    )


def _folded(record: JobRecord, orphan: JobRecord) -> JobRecord:
    return replace(record, step_states=orphan.step_states, max_rss_gib=_largest(record.max_rss_gib, orphan.max_rss_gib))


def _largest(*values: float | None) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _last(records: list[JobRecord]) -> JobRecord:
    """The attempt submitted and started last; one without a time has not started yet, equal ones go by their row."""

    def when(record: JobRecord) -> tuple[float, float]:
        late = float("inf")
        start = record.started_at if record.started_at is not None else late
        return record.submitted_at if record.submitted_at is not None else late, start

    if all(record.submitted_at is None and record.started_at is None for record in records):
        return records[-1]
    at = max(range(len(records)), key=lambda row: (when(records[row]), row))
    last = records[at]
    if last.state in RETURNING and last.started_at is not None:
        # a job comes back after such an end: a row below it that began "before" it began in the repeated hour
        for later in reversed(records[at + 1 :]):
            began = later.started_at
            is_near = began is not None and 0 <= last.started_at - began <= CLOCK_CHANGE_SECONDS
            if is_near and later.state not in RETURNING:
                return later
    return last
