"""Slurm's ways to write which job: `510_1`, `500_[6-9%2]`, `500_[1,3-5:2]`, `77+1`, `500_0.batch`, `410024;willow`.

Received text, so an index list is counted before it is expanded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from infrarsi_hpc.domain.job import JobId

#: Most tasks that one bracket is expanded to.
MAX_TASKS = 100_000
MAX_LENGTH = 1_000_000

_ID = re.compile(
    r"(?P<number>[0-9]{1,10})"
    r"(?:_(?:(?P<task>[0-9]{1,10})|\[(?P<tasks>[^\]]*)\]))?"
    r"(?:\+(?P<component>[0-9]{1,4}))?"
    r"(?:\.(?P<step>[A-Za-z0-9_+]{1,40}))?"
    r"(?:;(?P<cluster>[A-Za-z0-9][A-Za-z0-9_.-]{0,99}))?"
)
_RANGE = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10})(?::([0-9]{1,10}))?)?")


@dataclass(frozen=True)
class ParsedId:
    """What one id names: a job, tasks of its array, a component of a heterogeneous job, or a step of one of them.

    `tasks` is none where the id has no array part. `throttle` is how many tasks may run at a time. `is_cut` says that
    Slurm shortened the list of tasks with `...` (it does so unless SLURM_BITSTR_LEN=0).
    """

    number: int
    tasks: tuple[int, ...] | None = None
    throttle: int | None = None
    is_cut: bool = False
    component: int | None = None
    step: str = ""
    cluster: str = ""

    @property
    def jobs(self) -> tuple[JobId, ...]:
        """The job, or every task named."""
        if self.tasks is None:
            return (JobId(self.number, cluster=self.cluster),)
        return tuple(JobId(self.number, task, self.cluster) for task in self.tasks)


def parse_id(text: str) -> ParsedId:
    """Read one id.

    Raises
    ------
    ValueError
        It is none, or names more than `MAX_TASKS` tasks.
    """
    text = text.strip()
    match = _ID.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if match is None or int(match["number"]) == 0:
        raise ValueError(f"{text[:80]!r} is no job id")
    tasks: tuple[int, ...] | None = None
    throttle, is_cut = None, False
    if match["task"] is not None:
        tasks = (int(match["task"]),)
    elif match["tasks"] is not None:
        tasks, throttle, is_cut = parse_tasks(match["tasks"])
    return ParsedId(
        int(match["number"]),
        tasks,
        throttle,
        is_cut,
        None if match["component"] is None else int(match["component"]),
        match["step"] or "",
        match["cluster"] or "",
    )


def parse_tasks(text: str) -> tuple[tuple[int, ...], int | None, bool]:
    """Read what stands in an array's brackets (`1,3-9:2%4`): task numbers in order, the throttle, whether it is cut.

    Raises
    ------
    ValueError
        It is no such list, or names more than `MAX_TASKS` tasks.
    """
    listed, percent, limit = text.strip().partition("%")
    if percent and not re.fullmatch(r"[0-9]{1,10}", limit):
        raise ValueError(f"{text[:80]!r} is no list of array tasks")
    is_cut = listed.endswith("...")
    if is_cut:
        # up to the last comma: in `17,1...` the last number is cut as well
        listed = listed.removesuffix("...").rpartition(",")[0]
    tasks: set[int] = set()
    for part in listed.split(",") if listed else []:
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{text[:80]!r} is no list of array tasks")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        step = 1 if match[3] is None else int(match[3])
        if step < 1 or last < first:
            raise ValueError(f"{part[:80]!r} is no range of array tasks")
        if len(tasks) + (last - first) // step + 1 > MAX_TASKS:
            raise ValueError(f"{text[:80]!r} names more than {MAX_TASKS} tasks")
        tasks.update(range(first, last + 1, step))
    if not tasks and not is_cut:
        raise ValueError("an array without tasks")
    return tuple(sorted(tasks)), int(limit) if percent else None, is_cut
