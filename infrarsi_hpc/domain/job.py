"""Slurm jobs as nouns: ids with their cluster and array task, states, and what a witness saw of a task."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class JobState(StrEnum):
    """Base states of a job (squeue(1), JOB STATE CODES), by what they mean for us."""

    BOOT_FAIL = "BOOT_FAIL"
    CANCELLED = "CANCELLED"
    COMPLETED = "COMPLETED"
    COMPLETING = "COMPLETING"
    CONFIGURING = "CONFIGURING"
    DEADLINE = "DEADLINE"
    FAILED = "FAILED"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    PENDING = "PENDING"
    PREEMPTED = "PREEMPTED"
    RECONFIG_FAIL = "RECONFIG_FAIL"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    RESIZING = "RESIZING"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    REVOKED = "REVOKED"
    RUNNING = "RUNNING"
    SIGNALING = "SIGNALING"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    STAGE_OUT = "STAGE_OUT"
    STOPPED = "STOPPED"
    SUSPENDED = "SUSPENDED"
    TIMEOUT = "TIMEOUT"
    #: A word that no list of states has: never taken for an end.
    UNKNOWN = "UNKNOWN"

    @property
    def is_over(self) -> bool:
        """Whether a record in this state will not change any more, unless the job is requeued."""
        return self in _OVER

    @property
    def is_waiting(self) -> bool:
        """Whether the job has not begun, or is to begin again."""
        return self in _WAITING


_OVER = frozenset(
    {
        JobState.BOOT_FAIL,
        JobState.CANCELLED,
        JobState.COMPLETED,
        JobState.DEADLINE,
        JobState.FAILED,
        JobState.LAUNCH_FAILED,
        JobState.NODE_FAIL,
        JobState.OUT_OF_MEMORY,
        JobState.PREEMPTED,
        JobState.RECONFIG_FAIL,
        JobState.REVOKED,
        JobState.TIMEOUT,
    }
)
_WAITING = frozenset(
    {
        JobState.CONFIGURING,
        JobState.PENDING,
        JobState.REQUEUED,
        JobState.REQUEUE_FED,
        JobState.REQUEUE_HOLD,
        JobState.RESV_DEL_HOLD,
        JobState.SPECIAL_EXIT,
    }
)


@dataclass(frozen=True, order=True)
class JobId:
    """A job or one task of an array, with the cluster whose number it is (empty: the default one)."""

    number: int
    task: int | None = None
    cluster: str = ""

    def __str__(self) -> str:
        return f"{self.number}" if self.task is None else f"{self.number}_{self.task}"


@dataclass(frozen=True)
class JobRecord:
    """One allocation as squeue or sacct shows it; steps are folded into it.

    `exit_code` and `signal` are the batch script's; `derived_exit_code` is the highest of the steps'.
    `step_states` are the states of the steps, `.batch` and `.extern` included. Times are Unix seconds, none where
    unknown. `elapsed_seconds` is Slurm's own count, which daylight saving does not touch.
    """

    job: JobId
    state: JobState
    exit_code: int | None = None
    signal: int | None = None
    derived_exit_code: int | None = None
    nodes: tuple[str, ...] = ()
    elapsed_seconds: int | None = None
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    time_limit_seconds: int | None = None
    max_rss_gib: float | None = None
    requested_memory_gib: float | None = None
    #: Why it waits, or who cancelled it.
    reason: str = ""
    name: str = ""
    comment: str = ""
    #: Requeues so far.
    restarts: int = 0
    step_states: tuple[JobState, ...] = ()
    num_nodes: int | None = None
    num_gpus: int | None = None
