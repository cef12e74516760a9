"""A running campaign: plan rounds, submit them once, collect what comes back, judge it, keep it.

Every step is written to the ledger before or after it happens in such an order that a head killed at any instruction,
started again with the same command, loses no finished trial and makes none twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infrarsi_hpc.domain.campaign import CampaignState, PlannedTrial, RoundRecord, TrialRecord
from infrarsi_hpc.domain.noise import DoctorReport
from infrarsi_hpc.domain.outcome import Ending, Outcome
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.domain.reading import Reading
from infrarsi_hpc.domain.trial import Purpose, TrialSpec
from infrarsi_hpc.domain.verdict import Belief, Verdict
from infrarsi_hpc.edges import batches
from infrarsi_hpc.edges.dispatch import Dispatcher, Sight
from infrarsi_hpc.edges.ledger import Ledger
from infrarsi_hpc.edges.project import Project
from infrarsi_hpc.edges.store import folder as stores
from infrarsi_hpc.edges.store.rows import campaign_row, round_trials
from infrarsi_hpc.errors import InputRefused, SiteError
from infrarsi_hpc.stages.run.collect import Collector, Taken, collect
from infrarsi_hpc.stages.trials import spec_of
from infrarsi_hpc.verify.checks import judge
from infrarsi_hpc.verify.ending import classify
from infrarsi_hpc.verify.job_ending import with_witness
from infrarsi_hpc.verify.readings import read
from infrarsi_hpc.verify.reference import Reference, reference_of_pair, reference_of_seed


@dataclass
class Observer:
    """Who is told what happens; the defaults say nothing."""

    said: Callable[[str], None] = lambda _: None
    changed: Callable[[CampaignState, dict[str, Any] | None], None] = lambda _state, _heartbeat: None


class Waiting(Exception):
    """A tick is over and trials are not."""

    def __init__(self, num: int, phases: Sequence[str]) -> None:
        running = sum(phase == "running" for phase in phases)
        super().__init__(f"{num} trials are not in yet; {running} of {len(phases)} tasks run")


@dataclass
class Campaign:
    """One campaign's open ledger and everything its trials need."""

    name: str
    project: Project
    doctor: DoctorReport
    ledger: Ledger
    patches: Mapping[str, Patch]
    store: Path | None
    dispatcher: Dispatcher
    observer: Observer = field(default_factory=Observer)
    #: Told at every look what running trials have cost so far, device-seconds; raises to stop them.
    check: Callable[[float], None] = lambda _: None
    #: Take what is there, start what is due, and wait for nothing: a tick of cron's.
    is_one_tick: bool = False
    _running_seconds: float = 0.0

    @property
    def folder(self) -> Path:
        """The campaign's folder."""
        return self.project.campaign_folder(self.name)

    @property
    def state(self) -> CampaignState:
        """What the ledger says."""
        return self.ledger.state

    # ---- rounds

    def plan(self, purpose: Purpose, plans: Sequence[PlannedTrial]) -> int:
        """Write a new round into the ledger; gives its number."""
        number = max(self.state.rounds, default=0) + 1
        self.ledger.append("planned", round=number, purpose=purpose, trials=[p.model_dump(mode="json") for p in plans])
        return number

    def finish_open_rounds(self) -> None:
        """Bring every planned round to its end: what a killed head left first, then what is new."""
        for number in sorted(self.state.rounds):
            self._finish(self.state.rounds[number])

    def _finish(self, record: RoundRecord) -> None:
        if record.job is not None or (record.is_submitting and self._adopt(record)):
            self._collect(record, self._tasks(record))
            self._judge(record)
        while tasks := self._tasks(record):
            self._submit(record, tasks)
            self._collect(record, tasks)
            self._judge(record)
        self._store(record)

    def _adopt(self, record: RoundRecord) -> bool:
        """Whether a batch whose submission got no answer was begun; what was not begun never will be."""
        folder = batches.round_folder(self.folder, record.round)
        job = self.dispatcher.adopt(folder, record.attempt)
        if job is not None:
            self.ledger.append("submitted", round=record.round, job=job)
            return True
        # every one of them is claimed, also after the first that cannot be
        claimed = [batches.claim(folder, record.attempt, t) for t in range(len(batches.read_tasks(folder)))]
        return not all(claimed)

    def _due(self, record: RoundRecord) -> list[TrialRecord]:
        return [t for t in (self.state.trials[name] for name in record.trials) if _needs_running(t)]

    def _tasks(self, record: RoundRecord) -> list[list[TrialSpec]]:
        """Due trials by task: as they were handed out for this attempt, or else anew."""
        specs = [spec_of(self.project, t.plan, t.purpose, t.next_attempt) for t in self._due(record)]
        if record.job is not None or record.is_submitting:
            due = {spec.trial: spec for spec in specs}
            handed = batches.read_tasks(batches.round_folder(self.folder, record.round))
            return [[due[name] for name in task if name in due] for task in handed] if due else []
        return self.dispatcher.group(specs, is_one_allocation=record.purpose == "verify") if specs else []

    def _submit(self, record: RoundRecord, tasks: Sequence[Sequence[TrialSpec]]) -> None:
        is_again = record.job is not None or record.is_submitting
        attempt = record.attempt + 1 if is_again else record.attempt
        if is_again:
            due = [spec for task in tasks for spec in task]
            tasks = self.dispatcher.group(due, is_one_allocation=record.purpose == "verify")
        self._running_seconds = 0.0
        self.check(0.0)
        folder = batches.write_batch(self.folder, record.round, attempt, tasks, self.patches)
        self.ledger.append("submitting", round=record.round, attempt=attempt)
        job = self.dispatcher.submit(folder, attempt, tasks)
        self.ledger.append("submitted", round=record.round, job=job)
        self.observer.changed(self.state, None)

    def _collect(self, record: RoundRecord, tasks: Sequence[Sequence[TrialSpec]]) -> None:
        folder = batches.round_folder(self.folder, record.round)
        is_cancelled = (folder / "cancel").exists()
        collector = self._collector(record, tasks)
        looked = lambda heartbeat: self._looked(collector, heartbeat)  # noqa: E731
        for taken in collect(collector, on_poll=looked, is_one_tick=self.is_one_tick, wait=self.wait):
            if taken.result is None and is_cancelled:
                continue  # it never ran: the same attempt is due again
            self._take(taken)
            self.observer.changed(self.state, None)
        if collector.waiting:
            raise Waiting(len(collector.waiting), [sight.phase for sight in collector.sights])

    def _collector(self, record: RoundRecord, tasks: Sequence[Sequence[TrialSpec]]) -> Collector:
        """What is left of a batch, knowing what of its tasks' cost the ledger has already."""
        handed = batches.read_tasks(batches.round_folder(self.folder, record.round))
        task_of = {name: task for task, names in enumerate(handed) for name in names}
        accounted: dict[int, float] = {}
        for visit in self.state.visits:
            if (visit.round, visit.submission) == (record.round, record.attempt) and visit.trial in task_of:
                task = task_of[visit.trial]
                accounted[task] = accounted.get(task, 0.0) + visit.device_seconds
        return Collector(
            self.folder, record.round, record.attempt, record.job, tasks, self.dispatcher, accounted=accounted
        )

    def wait(self, seconds: float) -> None:
        """Let time pass without losing the campaign's lock, and look up when somebody asks to stop."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 15.0))
            self.ledger.keep_alive()
            self.check(self._running_seconds)

    def _looked(self, collector: Collector, heartbeat: dict[str, Any] | None) -> None:
        self.ledger.keep_alive()
        self._running_seconds = collector.running_seconds()
        self.check(self._running_seconds)
        self.observer.changed(self.state, heartbeat)

    def _take(self, taken: Taken) -> None:
        spec, result = taken.spec, taken.result
        if result is None:
            assert taken.ending is not None
            ending, reading, cost = taken.ending, None, taken.lost_seconds
        else:
            ending, reading, cost = classify(result, spec), read(result, spec), result.device_seconds
            ending = with_witness(ending, taken.sight.record if taken.sight.phase == "over" else None)
        self.ledger.append(
            "finished",
            trial=spec.trial,
            attempt=spec.attempt,
            ending=ending.model_dump(mode="json"),
            reading=reading.model_dump(mode="json") if reading else None,
            device_seconds=cost,
            is_foreign=ending.outcome is Outcome.CANCELLED and taken.is_foreign,
            node=result.node if result is not None else taken.sight.node,
        )
        if self.state.trials[spec.trial].purpose != "verify":
            self._judge_one(self.state.trials[spec.trial])

    # ---- verdicts

    def _judge(self, record: RoundRecord) -> None:
        """Judge what has ended; pairs of a promotion are judged once both arms are in."""
        for name in record.trials:
            self._judge_one(self.state.trials[name])

    def _judge_one(self, trial: TrialRecord) -> None:
        if trial.ending is None or trial.verdict is not None or _needs_running(trial):
            return
        verdict = self._verdict(trial)
        if verdict is not None:
            self.ledger.append("judged", trial=trial.plan.trial, verdict=verdict.model_dump(mode="json"))

    def _verdict(self, trial: TrialRecord) -> Verdict | None:
        assert trial.ending is not None
        if trial.ending.outcome is not Outcome.OK:
            belief = Belief.REFUSED if trial.ending.outcome is Outcome.REFUSED else Belief.UNDECIDED
            return Verdict(belief=belief, reasons=(trial.ending.evidence or trial.ending.label,))
        home = batches.trial_folder(self.folder, trial.plan.trial)
        result = batches.read_result(home, trial.attempt)
        if result is None:
            return Verdict(belief=Belief.UNDECIDED, reasons=("its result file is gone; it cannot be checked",))
        reference = self._reference(trial)
        if reference is None:
            return None
        spec = spec_of(self.project, trial.plan, trial.purpose, trial.attempt)
        patches = [self.patches[p] for p in trial.plan.candidate.patches]
        reading = trial.reading or Reading()
        return judge(result, spec, trial.ending, reading, self.project.contract, reference, patches=patches)

    def _reference(self, trial: TrialRecord) -> Reference | None:
        """What the trial is held to: the doctor's run of its seed, or the baseline arm of its own pair."""
        if trial.purpose != "verify":
            return reference_of_seed(self.doctor, trial.plan.seed)
        twin = next(
            t
            for t in self.state.trials.values()
            if t.purpose == "verify"
            and t.plan.arm == "baseline"
            and (t.plan.finalist, t.plan.pair) == (trial.plan.finalist, trial.plan.pair)
        )
        if twin.ending is None or _needs_running(twin):
            return None
        result = batches.read_result(batches.trial_folder(self.folder, twin.plan.trial), twin.attempt)
        return reference_of_pair(self.doctor, result)

    # ---- keeping

    def _store(self, record: RoundRecord) -> None:
        if self.store is None or record.stored_segment is not None or record.purpose not in ("search", "baseline"):
            return
        try:
            segment = self._append_round(self.store, record)
        except (SiteError, InputRefused) as error:
            # the ledger has it all; the next command tries again
            self.observer.said(f"the experience store was not written: {error.what}")
            return
        self.ledger.append("stored", round=record.round, segment=segment)

    def _append_round(self, store: Path, record: RoundRecord) -> str:
        contract, uid = self.project.contract, self.state.uid
        trials = round_trials(self.state, uid, record.round)
        if not trials:
            return ""
        used = {p for t in trials for p in t.observation.patches}
        row = campaign_row(uid, contract, self.doctor, contract.limits.memory_gib)
        patches = [patch for sha256, patch in self.patches.items() if sha256 in used]
        return stores.append(store, self.doctor.device_key, row, record.round, trials, patches).name

    def cancel_running(self) -> None:
        """Stop the batch that runs now, if one does; take in what it finished and what the rest has cost."""
        self.check = lambda _: None  # what asked for this stop would ask again while its jobs end
        for record in self.state.rounds.values():
            if not self._due(record) or not (record.job is not None or record.is_submitting):
                continue
            folder = batches.round_folder(self.folder, record.round)
            tasks = self._tasks(record)
            collector = self._collector(record, tasks)
            self.dispatcher.cancel(folder, record.job)
            for taken in collector.look():
                if taken.result is not None:
                    self._take(taken)
            for task, specs in enumerate(tasks):
                sight = collector.sights[task] if task < len(collector.sights) else Sight("unknown")
                left = []
                for spec in (s for s in specs if s.trial in collector.waiting and self._was_handed_out(s)):
                    found = batches.read_result(batches.trial_folder(self.folder, spec.trial), spec.attempt)
                    if found is not None:
                        self._take(Taken(spec, found, None, sight))
                    else:
                        left.append(spec)
                if left and (cost := collector.charge(task, sight)) > 0:
                    # one of them is charged with what the task has cost; the others never began
                    ending = Ending(outcome=Outcome.CANCELLED, evidence="stopped by a person or a limit")
                    self._take(Taken(left[0], None, ending, sight, cost))

    def _was_handed_out(self, spec: TrialSpec) -> bool:
        return batches.read_spec(batches.trial_folder(self.folder, spec.trial)).attempt == spec.attempt


def _needs_running(trial: TrialRecord) -> bool:
    """Whether an attempt is due: never run, or lost and not given up, or to be confirmed."""
    return trial.ending is None or (trial.is_retried and not trial.is_final)
