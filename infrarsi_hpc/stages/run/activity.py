"""What goes on in a campaign now: its head, its open jobs, the trials that run and those that wait.

Read from the outside and without a trace: from the ledger, the lock, and what agents wrote beside their rounds. Slurm
is not asked; `stages/run/waiting.py` does that for those who want to know why a job waits.

Does not cover: a head on another host whose lock is fresh but which has died (shown as running for ten minutes).
"""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infrarsi_hpc.domain.campaign import CampaignState, RoundRecord, TrialRecord
from infrarsi_hpc.domain.outcome import RETRIED
from infrarsi_hpc.edges import batches
from infrarsi_hpc.edges.ledger import HEAD_LOCK
from infrarsi_hpc.edges.local import is_alive
from infrarsi_hpc.edges.lock import STALE_SECONDS, Holder, is_running, read_holder

#: Tasks of a job whose heartbeats are looked at, at most: a look must stay light on a shared file system.
MAX_TASKS_LOOKED_AT = 256
MAX_NAME = 100


@dataclass(frozen=True)
class OpenJob:
    """A batch that was handed out and has not all come back.

    `kind` is `slurm`, `local`, or `unanswered` while nobody knows whether its submission was taken. By task: `trials`
    that are still out, and `ended_at`, when the last of the others ended (Unix seconds, 0 where none has).
    """

    round: int
    attempt: int
    kind: str
    id: str
    cluster: str
    num_devices: int
    trials: dict[int, tuple[str, ...]]
    ended_at: dict[int, float]


@dataclass(frozen=True)
class RunningTask:
    """A task that an agent has begun. `seconds` are of its present trial; silent: no heartbeat of late."""

    round: int
    task: int
    trial: str
    node: str
    seconds: float
    num_devices: int
    is_silent: bool = False


@dataclass(frozen=True)
class WaitingTask:
    """A task that no agent has begun."""

    round: int
    task: int
    trials: tuple[str, ...]
    job: OpenJob


@dataclass(frozen=True)
class Activity:
    """What goes on now."""

    head: Holder | None
    jobs: tuple[OpenJob, ...]
    running: tuple[RunningTask, ...]
    waiting: tuple[WaitingTask, ...]
    #: By `infrarsi cancel`; whoever goes on with the campaign takes it back.
    is_asked_to_stop: bool = False

    @property
    def running_device_seconds(self) -> float:
        """What running trials have cost so far, as far as their heartbeats tell; not in the ledger yet."""
        return sum(task.seconds * task.num_devices for task in self.running)


def stop_file(campaign: Path) -> Path:
    """A file that asks the head of a campaign to stop, wherever it runs."""
    return campaign / "stop"


def head_of(campaign: Path) -> Holder | None:
    """The process that runs the campaign now, as far as its lock says; the lock is left as it is."""
    lock = campaign / HEAD_LOCK
    holder = read_holder(lock)
    if holder is None or not is_running(holder):
        return None
    if holder.host == socket.gethostname():
        return holder
    try:
        return holder if time.time() - lock.stat().st_mtime < STALE_SECONDS else None
    except OSError:
        return None


def activity_of(campaign: Path, state: CampaignState, now: float) -> Activity:
    """Everything that goes on; `now` is Unix seconds."""
    jobs = open_jobs(campaign, state)
    running: list[RunningTask] = []
    waiting: list[WaitingTask] = []
    for job in jobs:
        for task, trials in list(job.trials.items())[:MAX_TASKS_LOOKED_AT]:
            found = _running(campaign, job, task, now)
            if found is not None:
                running.append(found)
            else:
                waiting.append(WaitingTask(job.round, task, trials, job))
    return Activity(head_of(campaign), jobs, tuple(running), tuple(waiting), stop_file(campaign).exists())


def open_jobs(campaign: Path, state: CampaignState) -> tuple[OpenJob, ...]:
    """Batches that may still be queued or running, as ledger and folders say."""
    return tuple(job for record in state.rounds.values() if (job := _open_job(campaign, state, record)) is not None)


def is_at_work(campaign: Path) -> bool:
    """Whether an agent of any round shows signs of life, whatever the ledger says."""
    return any(batches.is_agent_alive(folder) for folder in (campaign / "rounds").glob("r*"))


def _open_job(campaign: Path, state: CampaignState, record: RoundRecord) -> OpenJob | None:
    if record.job is None and not record.is_submitting:
        return None
    folder = batches.round_folder(campaign, record.round)
    if (folder / "cancel").exists() and not batches.is_agent_alive(folder):
        return None
    out: dict[int, tuple[str, ...]] = {}
    ended_at: dict[int, float] = {}
    for number, names in _tasks(folder, record):
        trials = [state.trials[name] for name in names if name in state.trials]
        if still := tuple(t.plan.trial for t in trials if _is_out(campaign, t)):
            out[number] = still
            ended_at[number] = max((t.finished_at or 0.0 for t in trials), default=0.0)
    if not out:
        return None
    job = record.job or {}
    kind = str(job.get("kind", "unanswered"))
    if kind == "unanswered" and not (folder / f"submission-{record.attempt}.json").exists():
        kind = "local"
    if kind == "local" and not (_process_lives(job) or batches.is_agent_alive(folder)):
        return None
    job_id, cluster = str(job.get("id" if kind == "slurm" else "pid", "")), str(job.get("cluster", ""))
    devices = max(1, int(_number(job.get("num_devices"))))
    return OpenJob(record.round, record.attempt, kind, job_id, cluster, devices, out, ended_at)


def _tasks(folder: Path, record: RoundRecord) -> Iterator[tuple[int, list[str]]]:
    try:
        yield from enumerate(batches.read_tasks(folder))
    except (OSError, ValueError, KeyError, TypeError):
        yield 0, record.trials  # not there, or not readable: at least the ledger knows which they are


def _is_out(campaign: Path, trial: TrialRecord) -> bool:
    """Whether the attempt of a trial that was handed out last has not come back."""
    if trial.ending is None:
        return True
    if trial.is_final or trial.ending.outcome not in RETRIED:
        return False
    spec = _read(batches.trial_folder(campaign, trial.plan.trial) / "spec.json")
    return _number(spec.get("attempt")) > trial.attempt


def _process_lives(job: dict[str, Any]) -> bool:
    return {"host", "pid", "started"} <= job.keys() and is_alive(job)


def _running(campaign: Path, job: OpenJob, task: int, now: float) -> RunningTask | None:
    folder = batches.round_folder(campaign, job.round)
    claim = batches.read_claim(folder, job.attempt, task)
    if claim is None or claim.by != "agent":
        return None
    trials = job.trials[task]
    said = batches.read_heartbeat(folder, task)
    if said is None:
        node = str(_read(folder / f"claim-{job.attempt}-{task}").get("node", ""))[:MAX_NAME]
        return RunningTask(job.round, task, trials[0], node, 0.0, job.num_devices, is_silent=True)
    trial = said["trial"] if said.get("trial") in trials else trials[0]
    # an agent says when it began; its later trials began when the one before had ended
    since = max(_number(said.get("started")) or now, job.ended_at[task])
    return RunningTask(
        job.round, task, trial, str(said.get("node", ""))[:MAX_NAME], max(0.0, now - since), job.num_devices
    )


def _read(path: Path) -> dict[str, Any]:
    """A small JSON object that somebody else writes; empty where it cannot be read."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read(2**20))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float:
    """A number from outside; 0 where it is none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else 0.0  # type: ignore[arg-type]  # is_number says so
