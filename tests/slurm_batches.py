"""Batches on a real Slurm whose trials sleep or allocate: without a framework, so that a fault is what takes time."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tiny_program import commit_all, git

from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.domain.trial import TrialLimits, TrialSpec
from infrarsi_hpc.edges import batches
from infrarsi_hpc.edges.sites import read_profile
from infrarsi_hpc.edges.slurm.dispatcher import SlurmDispatcher
from infrarsi_hpc.stages.run.collect import Collector, Taken, collect
from infrarsi_hpc.verify.ending import classify
from infrarsi_hpc.verify.job_ending import with_witness

SLEEPER = """
import argparse, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--seed", type=int)
parser.add_argument("--seconds", type=float, default=0)
parser.add_argument("--mib", type=int, default=0)
parser.add_argument("--fill", default="")
parser.add_argument("--until", default="")
args = parser.parse_args()
held = bytearray(args.mib * 2**20)
for at in range(0, len(held), 4096):
    held[at] = 1
if args.fill:
    open(args.fill, "wb").write(b"x" * 2**24)
time.sleep(args.seconds)
while args.until and not os.path.exists(args.until):
    time.sleep(0.1)
print("slept")
"""


def make_sleeper(folder: Path) -> str:
    """A committed project whose program sleeps; gives the commit."""
    (folder / "prog").mkdir(parents=True)
    (folder / "prog" / "__main__.py").write_text(SLEEPER)
    commit_all(folder)
    return git(folder, "rev-parse", "HEAD")


class Bench:
    """A campaign's folder with trials that sleep, and a dispatcher to the testbed as its site profile says."""

    def __init__(self, home: Path, partition: str = "h100", **changes: dict[str, Any]) -> None:
        self.project = home / "project"
        self.commit = make_sleeper(self.project)
        self.campaign = home / "campaign"
        self.words: list[str] = []
        #: Programs with `--until` this file end when it is there: whenever that is, nothing has been missed.
        self.go = home / "go"
        self.tag = f"test-{uuid.uuid4().hex[:8]}"
        self.partition = partition
        profile = read_profile("testbed", {}, home).model_dump()
        for section, values in {"storage": {"result_grace_seconds": 2.0}, **changes}.items():
            profile[section] = {**profile[section], **values}
        self.site = SiteProfile.model_validate(profile)

    def dispatcher(self, *, is_timed: bool = False, **options: Any) -> SlurmDispatcher:
        return SlurmDispatcher(
            self.site,
            self.campaign,
            self.tag,
            partition=self.partition,
            said=self.words.append,
            is_timed=is_timed,
            **options,
        )

    def spec(self, name: str, *arguments: str, wall_seconds: float = 600.0, attempt: int = 1) -> TrialSpec:
        return TrialSpec(
            trial=name,
            attempt=attempt,
            purpose="search",
            project=str(self.project),
            baseline_commit=self.commit,
            configuration={},
            command=("python", "-m", "prog", "--steps", "{steps}", "--seed", "{seed}", *arguments),
            lengths=(1,),
            seed=1,
            limits=TrialLimits(wall_seconds=wall_seconds, idle_seconds=wall_seconds),
        )

    def write(self, tasks: Sequence[Sequence[TrialSpec]], attempt: int = 1) -> Path:
        return batches.write_batch(self.campaign, 1, attempt, tasks, {})

    def submit(self, *tasks: Sequence[TrialSpec], **options: Any) -> Running:
        """Submit tasks as round 1."""
        dispatcher = self.dispatcher(**options)
        folder = self.write(tasks)
        return Running(self, dispatcher, folder, tasks, dispatcher.submit(folder, 1, tasks))


class Running:
    """A submitted batch."""

    def __init__(
        self, bench: Bench, dispatcher: SlurmDispatcher, folder: Path, tasks: Any, job: dict[str, Any]
    ) -> None:
        self.bench, self.dispatcher, self.folder, self.tasks, self.job = bench, dispatcher, folder, tasks, job
        self.id = str(job["id"])

    def results(self, *, seconds: float = 300, on_poll: Callable[[], None] = lambda: None) -> dict[str, Taken]:
        """What came back of every trial."""
        deadline = time.monotonic() + seconds
        collector = Collector(self.bench.campaign, 1, 1, self.job, self.tasks, self.dispatcher)

        def polled(_: object) -> None:
            assert time.monotonic() < deadline, f"not all in within {seconds} s: {collector.sights} {self.bench.words}"
            on_poll()

        return {taken.spec.trial: taken for taken in collect(collector, on_poll=polled)}

    def labels(self, **options: Any) -> dict[str, str]:
        """Outcome and detail of every trial, as a campaign would have them."""
        return {name: label(taken) for name, taken in self.results(**options).items()}


def label(taken: Taken) -> str:
    """How a trial ended. A program that sleeps and ends well is `crashed` to the harness, since nothing was trained:
    here that is called `slept`."""
    if taken.result is None:
        assert taken.ending is not None
        return taken.ending.label
    if taken.result.runs and "slept" in taken.result.runs[-1].log_tail:
        return "slept"
    record = taken.sight.record if taken.sight.phase == "over" else None
    return with_witness(classify(taken.result, taken.spec), record).label


def agent_started(running: Running, trial: str = "t1") -> Callable[[], bool]:
    """Whether a trial's program is under way."""
    return lambda: (running.bench.campaign / "trials" / trial / "log.txt").exists()
