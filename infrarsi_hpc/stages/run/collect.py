"""From a submitted batch to its results, as they come; what is missing is accounted for by what the scheduler saw."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from infrarsi_hpc.domain.outcome import Ending, Outcome
from infrarsi_hpc.domain.trial import TrialResult, TrialSpec
from infrarsi_hpc.edges import batches
from infrarsi_hpc.edges.dispatch import Dispatcher, Sight
from infrarsi_hpc.edges.lock import held
from infrarsi_hpc.errors import TrialFileError
from infrarsi_hpc.verify.job_ending import ending_of_job


@contextmanager
def own_folder(home: Path, dispatcher: Dispatcher) -> Iterator[None]:
    """An empty folder for one command's own trials: what an earlier, killed command left running is stopped first.

    Raises
    ------
    SiteError
        Another process uses it now.
    """
    home.parent.mkdir(parents=True, exist_ok=True)
    with held(home.parent / f"{home.name}.lock", wait_seconds=0.0):
        for folder in (home / "rounds").glob("r*"):
            dispatcher.cancel(folder, None)
        shutil.rmtree(home, ignore_errors=True)
        yield


@dataclass(frozen=True)
class Taken:
    """What came back of one trial: a result, or else how its job ended, and what the scheduler saw."""

    spec: TrialSpec
    result: TrialResult | None
    ending: Ending | None
    sight: Sight
    #: Device-seconds of its job that no result accounts for; the first lost trial of a task is charged with them all.
    lost_seconds: float = 0.0
    #: Somebody else ended it: neither this head nor a cancel file.
    is_foreign: bool = False


def ending_of(sight: Sight) -> Ending:
    """How the job of a task that is over ended, as far as scheduler and log tell."""
    if sight.record is not None:
        return ending_of_job(sight.record, sight.words)
    return Ending(outcome=Outcome.INFRA, evidence=sight.words or "its job ended without a result")


class Collector:
    """Takes in the trials of one submitted batch as they end."""

    def __init__(
        self,
        campaign: Path,
        number: int,
        attempt: int,
        job: Mapping[str, Any] | None,
        tasks: Sequence[Sequence[TrialSpec]],
        dispatcher: Dispatcher,
        *,
        accounted: Mapping[int, float] | None = None,
    ) -> None:
        self.campaign, self.attempt, self.job, self.dispatcher = campaign, attempt, job, dispatcher
        self.folder = batches.round_folder(campaign, number)
        self.waiting = {spec.trial: (spec, task) for task, specs in enumerate(tasks) for spec in specs}
        self.num_in_task = [len(specs) for specs in tasks]
        self.sights: list[Sight] = []
        self._over_since: dict[str, float] = {}
        self._accounted: dict[int, float] = dict(accounted or {})

    def look(self) -> list[Taken]:
        """Everything that has ended since the last look."""
        is_ours = (self.folder / "cancel").exists()
        # asked before the results are looked at: whoever is gone now has written all it ever will
        self.sights = self.dispatcher.look(self.folder, self.attempt, self.job)
        found = []
        for spec, task in list(self.waiting.values()):
            sight = self.sights[task] if task < len(self.sights) else Sight("unknown")
            taken = self._taken(spec, task, sight)
            if taken is not None:
                del self.waiting[spec.trial]
                is_given_up = batches.read_claim(self.folder, self.attempt, task) == batches.GIVEN_UP
                found.append(replace(taken, is_foreign=not is_ours and not is_given_up))
        return found

    def _taken(self, spec: TrialSpec, task: int, sight: Sight) -> Taken | None:
        home = batches.trial_folder(self.campaign, spec.trial)
        try:
            result = batches.read_result(home, spec.attempt)
        except TrialFileError as error:
            return Taken(spec, None, Ending(outcome=Outcome.INFRA, evidence=str(error)), sight)
        if result is not None and (sight.phase == "over" or not _wants_a_witness(result)):
            self._accounted[task] = self._accounted.get(task, 0.0) + result.device_seconds
            return Taken(spec, result, None, sight)
        claim = batches.read_claim(self.folder, self.attempt, task)
        if claim == batches.GIVEN_UP:
            ending = Ending(outcome=Outcome.CANCELLED, evidence="its submission was given up before it had begun")
            return Taken(spec, None, ending, sight)
        if sight.phase != "over" or self._runs_elsewhere(task, claim):
            self._over_since.pop(spec.trial, None)
            return None
        since = self._over_since.setdefault(spec.trial, time.monotonic())
        # what we cancelled ourselves is not waited for
        is_ours = (self.folder / "cancel").exists()
        if not is_ours and time.monotonic() - since < self.dispatcher.result_grace_seconds:
            return None
        list(home.iterdir())  # a file server's client looks again at a folder that is opened
        if (result := batches.read_result(home, spec.attempt)) is not None:
            return Taken(spec, result, None, sight)
        return Taken(spec, None, self._ending(spec, task, home, sight), sight, self.charge(task, sight))

    def _ending(self, spec: TrialSpec, task: int, home: Path, sight: Sight) -> Ending:
        """What the end of its job says about one of the task's trials that left no result."""
        ending = ending_of(sight)
        if ending.outcome in (Outcome.CANCELLED, Outcome.INFRA):
            return ending
        if not (home / f"began-{spec.attempt}").exists():
            return Ending(outcome=Outcome.INFRA, evidence=f"its job ended before it began ({ending.evidence})")
        if ending.outcome is Outcome.TIMEOUT and self.num_in_task[task] > 1:
            # each run has a limit of its own; that of the whole job was cut to the partition's
            return Ending(
                outcome=Outcome.INFRA, evidence=f"the job's time was too short for its task ({ending.evidence})"
            )
        return ending

    def _runs_elsewhere(self, task: int, claim: batches.Claim | None) -> bool:
        """Whether a job other than the one we know of makes this task: one whose submission got no answer."""
        ours = str(self.job.get("id", "")) if self.job is not None else ""
        if claim is None or claim.submission in ("", ours):
            return False
        return batches.read_heartbeat(self.folder, task) is not None

    def charge(self, task: int, sight: Sight) -> float:
        """What a task has cost beyond what was taken in or charged for already."""
        cost = max(0.0, sight.job_seconds * sight.num_devices - self._accounted.get(task, 0.0))
        self._accounted[task] = self._accounted.get(task, 0.0) + cost
        return cost

    def heartbeat(self) -> dict[str, Any] | None:
        """What an agent of this batch last said of itself."""
        for task in sorted({task for _, task in self.waiting.values()})[:16]:
            heartbeat = batches.read_heartbeat(self.folder, task)
            if heartbeat is not None:
                return heartbeat
        return None

    def is_settling(self) -> bool:
        """Whether a job seems to have ended and a later look will tell."""
        tasks = {task for _, task in self.waiting.values()}
        return any(s.phase in ("settling", "over") for i, s in enumerate(self.sights) if i in tasks)

    def running_seconds(self) -> float:
        """Device-seconds that tasks not yet taken in have cost so far."""
        costs = ((i, s.job_seconds * s.num_devices) for i, s in enumerate(self.sights))
        tasks = {task for _, task in self.waiting.values()}
        return sum(max(0.0, cost - self._accounted.get(i, 0.0)) for i, cost in costs if i in tasks)


def _wants_a_witness(result: TrialResult) -> bool:
    """A run that was stopped from outside: by whom, only the scheduler can say, once its job has ended."""
    was_killed = any(code == -signal.SIGKILL for run in result.runs for code in run.exit_codes)
    was_stopped_by_us = any(run.stopped not in (None, "cancelled") for run in result.runs)
    was_cancelled = result.problem == "cancelled" or any(run.stopped == "cancelled" for run in result.runs)
    return was_cancelled or (was_killed and not was_stopped_by_us)


def collect(
    collector: Collector,
    *,
    on_poll: Callable[[dict[str, Any] | None], None] = lambda _: None,
    is_one_tick: bool = False,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[Taken]:
    """Everything of a batch, as it comes. `on_poll` is told at every look; what it raises ends the waiting.

    Looks are `poll_seconds` apart, growing by half up to `poll_seconds_max` while nothing changes. One tick takes what
    is there, waits for nothing but what a moment will settle, and leaves the rest in `collector.waiting`.
    """
    pause = collector.dispatcher.poll_seconds
    while True:
        found = collector.look()
        yield from found
        if not collector.waiting:
            return
        on_poll(collector.heartbeat())
        if is_one_tick and not found and not collector.is_settling():
            return
        pause = collector.dispatcher.poll_seconds if found else min(1.5 * pause, collector.dispatcher.poll_seconds_max)
        wait(pause)
