"""A running campaign: plan rounds, submit them once, collect what comes back, judge it, keep it.

Every step is written to the ledger before or after it happens in such an order that a head killed at any instruction,
started again with the same command, loses no finished trial and makes none twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infrarsi_hpc.domain.campaign import CampaignState, PlannedTrial, RoundRecord, TrialRecord
from infrarsi_hpc.domain.noise import DoctorReport
from infrarsi_hpc.domain.outcome import Ending, Outcome
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.domain.reading import Reading
from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.domain.trial import Purpose, TrialResult, TrialSpec
from infrarsi_hpc.domain.verdict import Belief, Verdict
from infrarsi_hpc.edges import batches, local
from infrarsi_hpc.edges import store as stores
from infrarsi_hpc.edges.ledger import Ledger
from infrarsi_hpc.edges.project import Project
from infrarsi_hpc.edges.store_rows import campaign_row, round_trials
from infrarsi_hpc.errors import InputRefused, SiteError
from infrarsi_hpc.stages.trials import results, spec_of
from infrarsi_hpc.verify.checks import judge
from infrarsi_hpc.verify.ending import classify
from infrarsi_hpc.verify.readings import read
from infrarsi_hpc.verify.reference import Reference, reference_of_pair, reference_of_seed


@dataclass
class Observer:
    """Who is told what happens; the defaults say nothing."""

    said: Callable[[str], None] = lambda _: None
    changed: Callable[[CampaignState, dict[str, Any] | None], None] = lambda _state, _heartbeat: None


@dataclass
class Campaign:
    """One campaign's open ledger and everything its trials need."""

    name: str
    project: Project
    doctor: DoctorReport
    ledger: Ledger
    patches: Mapping[str, Patch]
    store: Path | None
    site: SiteProfile
    observer: Observer = field(default_factory=Observer)

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
        is_adopted = record.job is not None or (
            # killed between submission and its answer: whoever gets the claim decides whether it ever runs
            record.is_submitting and not batches.claim(self.folder, record.round, record.attempt)
        )
        if is_adopted:
            self._collect(record, self._specs(record))
            self._judge(record)
        while specs := self._specs(record):
            self._submit(record, specs)
            self._collect(record, specs)
            self._judge(record)
        self._store(record)

    def _due(self, record: RoundRecord) -> list[TrialRecord]:
        return [t for t in (self.state.trials[name] for name in record.trials) if _needs_running(t)]

    def _specs(self, record: RoundRecord) -> list[TrialSpec]:
        return [spec_of(self.project, t.plan, t.purpose, t.next_attempt) for t in self._due(record)]

    def _submit(self, record: RoundRecord, specs: Sequence[TrialSpec]) -> None:
        attempt = record.attempt + 1 if record.job is not None or record.is_submitting else record.attempt
        folder = batches.write_batch(self.folder, record.round, attempt, specs, self.patches)
        self.ledger.append("submitting", round=record.round, attempt=attempt)
        job = local.submit(folder, attempt, scratch=self.site.storage.scratch)
        self.ledger.append("submitted", round=record.round, job=job)
        self.observer.changed(self.state, None)

    def _collect(self, record: RoundRecord, specs: Sequence[TrialSpec]) -> None:
        is_cancelled = (batches.round_folder(self.folder, record.round) / "cancel").exists()
        found = results(
            self.folder,
            record.round,
            record.job,
            specs,
            poll_seconds=self.site.limits.poll_seconds,
            on_poll=self._looked,
        )
        for spec, result in found:
            if isinstance(result, Ending) and is_cancelled:
                continue  # it never ran: the same attempt is due again
            self._take(spec, result)
            self.observer.changed(self.state, None)

    def _looked(self, heartbeat: dict[str, Any] | None) -> None:
        self.ledger.keep_alive()
        self.observer.changed(self.state, heartbeat)

    def _take(self, spec: TrialSpec, found: TrialResult | Ending) -> None:
        if isinstance(found, Ending):
            ending, reading, cost = found, None, 0.0
        else:
            ending, reading, cost = classify(found, spec), read(found, spec), found.device_seconds
        self.ledger.append(
            "finished",
            trial=spec.trial,
            attempt=spec.attempt,
            ending=ending.model_dump(mode="json"),
            reading=reading.model_dump(mode="json") if reading else None,
            device_seconds=cost,
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
        """Stop the batch that runs now, if one does, and take in what it finished."""
        for record in self.state.rounds.values():
            due = self._due(record)
            if due and (record.job is not None or record.is_submitting):
                local.cancel(batches.round_folder(self.folder, record.round), record.job)
                for spec in self._specs(record):
                    found = batches.read_result(batches.trial_folder(self.folder, spec.trial), spec.attempt)
                    if found is not None:
                        self._take(spec, found)


def _needs_running(trial: TrialRecord) -> bool:
    """Whether an attempt is due: never run, or lost and not given up."""
    if trial.ending is None:
        return True
    return trial.ending.outcome in (Outcome.INFRA, Outcome.CANCELLED, Outcome.UNKNOWN) and not trial.is_final
