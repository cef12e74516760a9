"""Promotion: the best candidates against the baseline again, in interleaved blocks on the same host.

Pairs are planned a block at a time; after each block the sequential rule promotes, rejects or goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from infrarsi_hpc.domain.campaign import CampaignState, PlannedTrial, PromotionResult, TrialRecord
from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.contract import Contract
from infrarsi_hpc.domain.noise import DoctorReport
from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.domain.reading import Reading
from infrarsi_hpc.domain.verdict import Belief, Verdict
from infrarsi_hpc.verify.promotion import Decision, decide, is_worth_more
from infrarsi_hpc.verify.schedule import Pair, schedule

BLOCK_PAIRS = 3
#: A finalist's measured peak should stay below this share of the limit: the allocator alone moves it by up to 8% from
#: run to run, and what runs out of memory one time in four is no speedup.
ROOMY_SHARE = 0.92
#: Others' load may differ by so many processors between the arms of a pair.
UNEVEN_CORES = 0.5


def threshold(contract: Contract, doctor: DoctorReport) -> float:
    """The ratio that a promotion must exceed: the contract's, or what this machine can tell from noise."""
    return max(contract.measurement.min_speedup, doctor.detectable_speedup)


def finalists_of(state: CampaignState) -> list[Candidate]:
    """The candidates whose promotion has begun, in order."""
    found: dict[str, Candidate] = {}
    for trial in state.trials.values():
        if trial.plan.finalist is not None and trial.plan.arm == "candidate":
            found.setdefault(trial.plan.finalist, trial.plan.candidate)
    return list(found.values())


def with_room(state: CampaignState, contract: Contract, chosen: list[Candidate]) -> list[Candidate]:
    """The same candidates, those with room below the memory limit first, each group in its order."""
    limit = contract.limits.memory_gib
    if limit is None:
        return chosen
    peaks = {
        t.plan.candidate.id: t.reading.peak_gib
        for t in state.trials.values()
        if t.purpose == "search" and t.reading and t.reading.peak_gib is not None
    }
    return sorted(chosen, key=lambda c: peaks.get(c.id, 0.0) > ROOMY_SHARE * limit)


def plan_block(
    state: CampaignState, contract: Contract, finalist: Candidate, rng: np.random.Generator
) -> list[PlannedTrial]:
    """The next block of pairs of one finalist: secret lengths and seeds, random order within each pair."""
    measurement = contract.measurement
    left = min(BLOCK_PAIRS, measurement.max_pairs - len(usable_pairs(state, finalist)))
    done = len(pairs_of(state, finalist))
    number = sum(t.purpose == "verify" for t in state.trials.values())
    baseline = Candidate(configuration=contract.knob_set.baseline(), source="baseline")
    plans = []
    for pair in schedule(left, measurement.short_steps, measurement.long_steps, rng):
        done += 1
        for arm in pair.order:
            number += 1
            plans.append(
                _plan(f"v{number:04d}", finalist if arm == "candidate" else baseline, finalist, pair, done, arm)
            )
    return plans


def _plan(name: str, candidate: Candidate, finalist: Candidate, pair: Pair, number: int, arm: str) -> PlannedTrial:
    return PlannedTrial(
        trial=name,
        candidate=candidate,
        lengths=pair.lengths,
        seed=pair.seed,
        evaluation_seed=pair.evaluation_seed,
        finalist=finalist.id,
        pair=number,
        arm="candidate" if arm == "candidate" else "baseline",
    )


def pairs_of(state: CampaignState, finalist: Candidate) -> list[tuple[TrialRecord, TrialRecord]]:
    """Baseline and candidate arms of a finalist's pairs, by pair."""
    arms: dict[int, dict[str, TrialRecord]] = {}
    for trial in state.trials.values():
        if trial.plan.finalist == finalist.id and trial.plan.pair is not None and trial.plan.arm is not None:
            arms.setdefault(trial.plan.pair, {})[trial.plan.arm] = trial
    return [(pair["baseline"], pair["candidate"]) for _, pair in sorted(arms.items()) if len(pair) == 2]


def usable_pairs(state: CampaignState, finalist: Candidate) -> list[tuple[TrialRecord, TrialRecord]]:
    """Pairs whose arms ran untainted, in one allocation on one node, beside the same load of others'.

    The rest is replaced.
    """
    where = {(v.trial, v.attempt): (v.node, v.round, v.submission) for v in state.visits}

    def place(arm: TrialRecord) -> object:
        return where.get((arm.plan.trial, arm.attempt)) if arm.ending is not None else None

    return [
        (baseline, candidate)
        for baseline, candidate in pairs_of(state, finalist)
        if place(baseline) == place(candidate)
        and not is_uneven(baseline.reading, candidate.reading)
        and not any(arm.ending is not None and arm.ending.is_tainted for arm in (baseline, candidate))
    ]


def is_uneven(baseline: Reading | None, candidate: Reading | None) -> bool:
    """Whether others worked beside one arm of a pair and not beside the other: its ratio is partly theirs."""
    loads = [arm.foreign_cores for arm in (baseline, candidate) if arm is not None and arm.foreign_cores is not None]
    return len(loads) == 2 and abs(loads[0] - loads[1]) > UNEVEN_CORES


def decide_finalist(
    state: CampaignState, contract: Contract, doctor: DoctorReport, finalist: Candidate, num_finalists: int
) -> Decision:
    """What the pairs so far say about a finalist."""
    usable = {baseline.plan.trial for baseline, _ in usable_pairs(state, finalist)}
    seconds: list[tuple[float, float]] = []
    for baseline, candidate in pairs_of(state, finalist):
        reasons = _failed(candidate)
        if reasons is not None:
            return reasons
        times = [arm.reading.slope_seconds if arm.reading else None for arm in (baseline, candidate)]
        if candidate.is_final and not times[1]:
            # leaving the pair out would keep only those that flatter it
            text = f"promotion run {candidate.plan.trial}: longer runs did not take longer, its step time is unknown"
            return Decision("reject", None, Verdict(belief=Belief.UNDECIDED, reasons=(text,)))
        if times[0] and times[1] and baseline.plan.trial in usable:
            seconds.append((times[0], times[1]))
    num_pairs = len(usable_pairs(state, finalist))
    if len(pairs_of(state, finalist)) >= 3 * contract.measurement.max_pairs:
        num_pairs = contract.measurement.max_pairs  # jobs are lost again and again: it ends with what there is
    return decide(
        seconds,
        threshold=threshold(contract, doctor),
        confidence=contract.measurement.confidence,
        looks_planned=-(-contract.measurement.max_pairs // BLOCK_PAIRS),
        num_finalists=num_finalists,
        is_last_look=num_pairs >= contract.measurement.max_pairs,
    )


def may_narrow(state: CampaignState, contract: Contract, finalist: Candidate, decision: Decision) -> bool:
    """Whether a proven finalist's interval is worth another block of pairs, and the contract has some left."""
    left = contract.measurement.max_pairs - len(usable_pairs(state, finalist))
    is_stuck = len(pairs_of(state, finalist)) >= 3 * contract.measurement.max_pairs
    if decision.action != "promote" or decision.speedup is None or left <= 0 or is_stuck:
        return False
    return is_worth_more(decision.speedup, min(left, BLOCK_PAIRS))


def was_looked_at(state: CampaignState, finalist: Candidate) -> bool:
    """Whether a finalist's times were compared with the baseline's: its first block passed without a failed run."""
    first = pairs_of(state, finalist)[:BLOCK_PAIRS]
    return bool(first) and all(_failed(candidate) is None for _, candidate in first)


def _failed(candidate: TrialRecord) -> Decision | None:
    """A finalist that fails or breaks the contract in a promotion run is not promoted."""
    ending, verdict = candidate.ending, candidate.verdict
    if ending is not None and candidate.is_final and ending.outcome is not Outcome.OK:
        text = f"promotion run {candidate.plan.trial} ended as {ending.label}: {ending.evidence}"
        belief = Belief.REFUSED if ending.outcome is Outcome.REFUSED else Belief.UNDECIDED
        return Decision("reject", None, Verdict(belief=belief, reasons=(text,)))
    if verdict is not None and not verdict.is_believed:
        reasons = tuple(f"promotion run {candidate.plan.trial}: {reason}" for reason in verdict.reasons)
        return Decision("reject", None, Verdict(belief=verdict.belief, reasons=reasons))
    return None


def result_of(state: CampaignState, finalist: Candidate, decision: Decision) -> PromotionResult:
    """A finalist's result, with the labels that its runs were given."""
    pairs = pairs_of(state, finalist)
    labels = {label for _, candidate in pairs if candidate.verdict for label in candidate.verdict.labels}
    verdict = decision.verdict.model_copy(update={"labels": tuple(sorted(labels | set(decision.verdict.labels)))})
    return PromotionResult(
        candidate=finalist,
        speedup=decision.speedup,
        verdict=verdict,
        baseline_seconds=_median([b for b, _ in pairs]),
        candidate_seconds=_median([c for _, c in pairs]),
    )


def _median(trials: Sequence[TrialRecord]) -> float | None:
    values = [t.reading.slope_seconds for t in trials if t.reading and t.reading.slope_seconds]
    return float(np.median(values)) if values else None
