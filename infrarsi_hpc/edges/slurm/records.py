"""From a row of named cells to a record; a cell that cannot be read is unknown, the rest of its row still counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from infrarsi_hpc.domain.job import JobId, JobRecord
from infrarsi_hpc.edges.slurm.ids import ParsedId
from infrarsi_hpc.edges.slurm.quantities import (
    Memory,
    duration_seconds,
    expand_nodes,
    parse_elapsed,
    parse_exit,
    parse_limit,
    parse_memory,
    parse_time,
)
from infrarsi_hpc.edges.slurm.states import cancelled_by, parse_state

T = TypeVar("T")
MAX_TEXT = 1000


def read(parse: Callable[[str], T], text: str) -> T | None:
    """What `parse` makes of a cell, none where it cannot."""
    try:
        return parse(text)
    except ValueError:
        return None


def requested_memory(row: Mapping[str, str]) -> Memory | None:
    """Memory that the job asked for."""
    return read(parse_memory, row.get("reqmem", "") or row.get("min_memory", ""))


def record_of(row: Mapping[str, str], job: JobId) -> JobRecord:
    """One row of sacct or squeue, its columns named as either prints them in a header (lower case)."""

    def cell(*names: str) -> str:
        return next((row[name] for name in names if row.get(name)), "")

    state = cell("state", "st")
    ended = read(parse_exit, cell("exitcode", "exit_code"))
    derived = read(parse_exit, cell("derivedexitcode"))
    started, over = read(parse_time, cell("start", "start_time")), read(parse_time, cell("end", "end_time"))
    elapsed = read(parse_elapsed, cell("elapsed", "elapsedraw", "time"))
    nodes = read(expand_nodes, cell("nodelist"))
    limit = read(parse_limit, cell("timelimit", "time_limit", "timelimitraw"))
    rss = read(_rss, cell("maxrss"))
    memory = requested_memory(row)
    restarts = cell("restarts")
    return JobRecord(
        job,
        parse_state(state),
        exit_code=ended[0] if ended else None,
        signal=ended[1] if ended else None,
        derived_exit_code=derived[0] if derived else None,
        nodes=nodes or (),
        elapsed_seconds=duration_seconds(elapsed, started, over),
        submitted_at=read(parse_time, cell("submit", "submit_time")),
        started_at=started,
        ended_at=over,
        time_limit_seconds=limit,
        max_rss_gib=rss.gib if rss else None,
        requested_memory_gib=memory.gib if memory else None,
        reason=(cancelled_by(state) or _reason(cell("reason")))[:MAX_TEXT],
        name=cell("jobname", "name")[:MAX_TEXT],
        comment=cell("comment")[:MAX_TEXT],
        restarts=min(int(restarts), 1_000_000) if restarts.isascii() and restarts.isdigit() else 0,
        num_nodes=read(_count, cell("nnodes", "allocnodes", "nodes")),
        num_gpus=_gpus(cell("alloctres", "reqtres", "tres_alloc")),
    )


def jobs_of(parsed: ParsedId, row: Mapping[str, str]) -> tuple[JobId, ...]:
    """The jobs that a row is about; a component of a heterogeneous job under its own number."""
    cluster = parsed.cluster or row.get("cluster", "")
    if not parsed.component:
        return tuple(JobId(job.number, job.task, cluster) for job in parsed.jobs)
    raw = row.get("jobidraw", "").partition(".")[0]
    number = int(raw) if raw.isascii() and raw.isdigit() and len(raw) <= 10 else parsed.number + parsed.component
    return (JobId(number, cluster=cluster),)


def _rss(text: str) -> Memory | None:
    return parse_memory(text, plain_unit="")


def _count(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ValueError(f"{text[:80]!r} is no count")
    return int(text)


def _reason(text: str) -> str:
    return "" if text in ("None", "N/A", "(null)") else text


def _gpus(text: str) -> int | None:
    """GPUs in `cpu=8,gres/gpu=2,gres/gpu:a100=2`: the sum over types is the untyped count where that is missing."""
    counts: dict[str, int] = {}
    for part in text[:MAX_TEXT].split(","):
        name, _, amount = part.partition("=")
        if name.startswith("gres/gpu") and amount.isascii() and amount.isdigit():
            counts[name] = int(amount[:9])
    return counts.get("gres/gpu", sum(counts.values())) if counts else None
