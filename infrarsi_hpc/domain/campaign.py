"""A campaign's state as a pure fold over its ledger: what was planned, what ended, what is believed.

Every event is a dict with `schema_version`, `seq`, `time` (Unix seconds), `event` and the fields below.

| event | fields |
|---|---|
| opened | campaign, contract, contract_sha256, baseline_commit, device_key, seed, doctor, patches |
| planned | round, purpose, trials: list of PlannedTrial |
| submitting / submitted | round, attempt / and job |
| observed | round, state |
| finished | trial, attempt, ending, reading, device_seconds, node |
| judged | trial, verdict |
| stored | round, segment |
| promoted | candidate, speedup, verdict, finalists |
| noted | text |
| closed | reason |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.digest import digest_json
from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.domain.outcome import RETRIED, Ending, Outcome
from infrarsi_hpc.domain.reading import Reading
from infrarsi_hpc.domain.trial import Purpose, TrialId
from infrarsi_hpc.domain.verdict import Speedup, Verdict

SCHEMA_VERSION = 1
#: Lost attempts after which a trial that keeps meeting infrastructure trouble is given up.
MAX_ATTEMPTS = 3


class PlannedTrial(BaseModel):
    """A trial as planned: with it, every attempt can be written again exactly."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trial: TrialId
    candidate: Candidate
    lengths: tuple[int, ...]
    seed: int
    evaluation_seed: int | None = None
    #: For promotion: which finalist's pair this run belongs to, and whether it runs the baseline or the candidate.
    finalist: str | None = None
    pair: int | None = None
    arm: Literal["baseline", "candidate"] | None = None


class PromotionResult(BaseModel):
    """What the re-verification of one finalist gave."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    candidate: Candidate
    speedup: Speedup | None
    verdict: Verdict
    baseline_seconds: float | None = None
    candidate_seconds: float | None = None


@dataclass
class TrialRecord:
    """A trial's life so far."""

    plan: PlannedTrial
    purpose: Purpose
    round: int
    attempt: int = 1
    ending: Ending | None = None
    reading: Reading | None = None
    verdict: Verdict | None = None
    #: Device-seconds of all attempts, failed ones included.
    device_seconds: float = 0.0
    finished_at: float | None = None
    #: Attempts lost to infrastructure, or whose end nobody knows.
    num_lost: int = 0
    #: Attempts that ended in what one attempt alone does not show.
    num_unconfirmed: int = 0

    @property
    def is_final(self) -> bool:
        """Whether nothing more will be tried for it."""
        if self.ending is None:
            return False
        if self.is_retried:
            return self.num_lost >= MAX_ATTEMPTS
        return self.verdict is not None

    @property
    def is_retried(self) -> bool:
        """Whether its last attempt taught nothing, or wants to be confirmed by another."""
        if self.ending is None:
            return False
        return self.ending.outcome in RETRIED or (self.ending.wants_confirmation and self.num_unconfirmed < 2)

    @property
    def next_attempt(self) -> int:
        """The number of the attempt that is due: the first, or one more after a lost one."""
        return 1 if self.ending is None else self.attempt + 1

    def observation(self) -> Observation | None:
        """The row that the models learn from, or none while unfinished or when it teaches nothing."""
        if not self.is_final or self.ending is None or self.ending.outcome in RETRIED:
            return None
        reading = self.reading or Reading()
        is_believed = self.verdict is not None and self.verdict.is_believed
        outcome = self.ending.outcome
        if outcome is Outcome.OK and not is_believed:
            outcome = Outcome.REFUSED
        return Observation(
            trial=self.plan.trial,
            configuration=self.plan.candidate.configuration,
            patches=self.plan.candidate.patches,
            outcome=outcome,
            detail=self.ending.detail,
            step_seconds=reading.step_seconds if outcome is Outcome.OK else None,
            step_noise=reading.step_noise,
            peak_gib=reading.peak_gib if outcome is Outcome.OK else None,
            bound_gib=self.ending.bound_gib,
            device_seconds=self.device_seconds,
            source=self.plan.candidate.source,
            is_believed=is_believed,
        )


@dataclass(frozen=True)
class Visit:
    """One finished attempt, and where it ran: what tells a node's fault from a configuration's.

    `node` is empty where nobody knows, and `a,b` for several nodes. `device_seconds` is what the attempt cost.
    """

    node: str
    trial: str
    attempt: int
    outcome: Outcome
    detail: str | None
    device_seconds: float
    step_seconds: float | None
    #: Round and its submission: attempts that one job lost together have these, the node and the cost in common.
    round: int = 0
    submission: int = 1
    evidence: str = ""


@dataclass
class RoundRecord:
    """A round's life so far."""

    round: int
    purpose: Purpose
    trials: list[str]
    is_submitting: bool = False
    attempt: int = 1
    job: dict[str, Any] | None = None
    stored_segment: str | None = None


@dataclass
class CampaignState:
    """Everything the ledger says, in the order in which it was said."""

    opened: dict[str, Any] | None = None
    trials: dict[str, TrialRecord] = field(default_factory=dict)
    rounds: dict[int, RoundRecord] = field(default_factory=dict)
    #: All attempts in the order in which they ended, lost ones included.
    visits: list[Visit] = field(default_factory=list)
    promotions: list[PromotionResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    closed: dict[str, Any] | None = None
    last_seq: int = 0
    last_time: float = 0.0

    @property
    def uid(self) -> str:
        """A name that no other campaign has, on any machine: its own name and a digest of how it was opened."""
        assert self.opened is not None
        start = {name: self.opened[name] for name in ("time", "seed", "contract_sha256", "device_key")}
        return f"{self.opened['campaign'][:40]}-{digest_json(start)[:12]}"

    def unfinished(self) -> list[TrialRecord]:
        """Trials planned but not final, in the order planned."""
        return [t for t in self.trials.values() if not t.is_final]

    def observations(self) -> list[Observation]:
        """All rows the models may learn from (search trials and baselines; promotion runs are for the verdict)."""
        rows = (t.observation() for t in self.trials.values() if t.purpose in ("search", "baseline"))
        return [row for row in rows if row is not None]

    def device_seconds(self) -> float:
        """What the campaign has cost so far, failed and cancelled attempts included."""
        return sum(t.device_seconds for t in self.trials.values())

    def promoted(self) -> PromotionResult | None:
        """The winner, if one was promoted."""
        return next((p for p in self.promotions if p.verdict.is_believed), None)


def replay(events: Iterable[Mapping[str, Any]]) -> CampaignState:
    """Fold ledger events into the campaign's state. Unknown events and fields are left alone.

    A repeated `finished` or `judged` for the same trial and attempt changes nothing the second time but the cost
    is counted once.
    """
    state = CampaignState()
    for event in events:
        apply_event(state, event)
    return state


def apply_event(state: CampaignState, event: Mapping[str, Any]) -> None:
    """Take one event into the state."""
    state.last_seq = int(event["seq"])
    state.last_time = float(event["time"])
    match event["event"]:
        case "opened":
            state.opened = dict(event)
        case "planned":
            plans = [PlannedTrial.model_validate(p) for p in event["trials"]]
            number = int(event["round"])
            state.rounds[number] = RoundRecord(number, event["purpose"], [p.trial for p in plans])
            for plan in plans:
                state.trials[plan.trial] = TrialRecord(plan, event["purpose"], number)
        case "submitting":
            record = state.rounds[int(event["round"])]
            record.is_submitting, record.attempt, record.job = True, int(event.get("attempt", 1)), None
        case "submitted":
            record = state.rounds[int(event["round"])]
            record.is_submitting, record.job = False, dict(event["job"])
        case "finished":
            _finish(state, state.trials[event["trial"]], event)
        case "judged":
            state.trials[event["trial"]].verdict = Verdict.model_validate(event["verdict"])
        case "stored":
            state.rounds[int(event["round"])].stored_segment = str(event["segment"])
        case "promoted":
            state.promotions = [PromotionResult.model_validate(p) for p in event["finalists"]]
        case "noted":
            state.notes.append(str(event["text"]))
        case "closed":
            state.closed = dict(event)
        case "reopened":
            state.closed = None


def _finish(state: CampaignState, trial: TrialRecord, event: Mapping[str, Any]) -> None:
    attempt = int(event["attempt"])
    if trial.ending is not None and trial.attempt == attempt:
        return
    trial.attempt = attempt
    trial.ending = Ending.model_validate(event["ending"])
    trial.reading = Reading.model_validate(event["reading"]) if event.get("reading") else None
    trial.verdict = None
    # our own cancelling is not counted; what somebody else cancels again and again is given up
    is_ours = trial.ending.outcome is Outcome.CANCELLED and not event.get("is_foreign", False)
    if trial.ending.outcome in RETRIED and not is_ours:
        trial.num_lost += 1
    trial.num_unconfirmed += trial.ending.wants_confirmation
    trial.device_seconds += float(event.get("device_seconds", 0.0))
    trial.finished_at = float(event["time"])
    state.visits.append(_visit(state, trial, event))


def _visit(state: CampaignState, trial: TrialRecord, event: Mapping[str, Any]) -> Visit:
    assert trial.ending is not None
    return Visit(
        node=str(event.get("node") or ""),
        trial=trial.plan.trial,
        attempt=trial.attempt,
        outcome=trial.ending.outcome,
        detail=trial.ending.detail,
        device_seconds=float(event.get("device_seconds", 0.0)),
        step_seconds=trial.reading.step_seconds if trial.reading else None,
        round=trial.round,
        submission=state.rounds[trial.round].attempt,
        evidence=trial.ending.evidence,
    )
