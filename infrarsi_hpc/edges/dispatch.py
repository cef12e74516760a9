"""Who starts batches of trials, as the stages see it: this machine, or Slurm. One protocol, two implementations.

A batch is a list of tasks, a task a list of trials that one agent makes one after another. Result files say what was
measured; a dispatcher says only whether a task still waits or runs, and how its job ended where no result tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from infrarsi_hpc.domain.job import JobRecord
from infrarsi_hpc.domain.trial import TrialSpec

#: `settling`: its job seems to have ended, and a later look will tell whether that was its end.
Phase = Literal["waiting", "running", "settling", "over", "unknown"]


@dataclass(frozen=True)
class Sight:
    """What the scheduler says of one task.

    When `phase` is `over`: the job's last `record`, if the scheduler has one, and in `words` the end of the job's log,
    or what is known instead of a record.
    """

    phase: Phase
    record: JobRecord | None = None
    words: str = ""
    node: str = ""
    #: Wall clock of its job so far, all starts together.
    job_seconds: float = 0.0
    #: Devices that it holds: what a second of it costs.
    num_devices: int = 1
    #: Why it waits.
    reason: str = ""


@runtime_checkable
class PausingDispatcher(Protocol):
    """One that waits by itself at times, for Slurm to answer: how it does so is the caller's to say."""

    pause: Callable[[float], None]


class Dispatcher(Protocol):
    """Starts, looks at and stops batches."""

    #: `kind` of the jobs that it starts, as the ledger has them.
    kind: str
    #: First and longest interval between two looks, seconds.
    poll_seconds: float
    poll_seconds_max: float
    #: A result may become visible this long after its job has ended.
    result_grace_seconds: float

    def group(self, specs: Sequence[TrialSpec], *, is_one_allocation: bool) -> list[list[TrialSpec]]:
        """Trials by task; all in one where they must share an allocation."""
        ...

    def round_size(self, wanted: int) -> int:
        """Trials of a round, given how much is free now."""
        ...

    def submit(self, folder: Path, attempt: int, tasks: Sequence[Sequence[TrialSpec]]) -> dict[str, Any]:
        """Start a batch; gives the job as the ledger keeps it.

        Raises
        ------
        SiteError
            It cannot be started, and trying again would not help.
        """
        ...

    def adopt(self, folder: Path, attempt: int) -> dict[str, Any] | None:
        """The job of a batch whose submission got no answer; none if there is none."""
        ...

    def look(self, folder: Path, attempt: int, job: Mapping[str, Any] | None) -> list[Sight]:
        """One sight a task, in order. An outage gives what was seen last."""
        ...

    def cancel(self, folder: Path, job: Mapping[str, Any] | None) -> None:
        """Stop a batch, and wait a little until it is gone."""
        ...
