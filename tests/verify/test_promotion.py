"""Promotion: false ones are as rare as promised, clear gains are found, and naive rules beside it are neither."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t, ttest_ind

from infrarsi_hpc.domain.verdict import Belief, Speedup
from infrarsi_hpc.verify.promotion import Decision, decide, is_worth_more, paired_speedup
from infrarsi_hpc.verify.schedule import schedule

CONFIDENCE = 0.95
LOOKS = (3, 6, 9, 12)


def promote(pairs: list[tuple[float, float]], num_finalists: int = 3, threshold: float = 1.0) -> Decision:
    """Look after every three pairs, as a campaign does, until it is decided."""
    for num in LOOKS:
        decision = decide(
            pairs[:num],
            threshold=threshold,
            confidence=CONFIDENCE,
            looks_planned=len(LOOKS),
            num_finalists=num_finalists,
            is_last_look=num == LOOKS[-1],
        )
        if decision.action != "continue":
            return decision
    return decision


def pairs_of(
    rng: np.random.Generator, ratio: float, cv: float, drift: float = 0.0, hiccups: float = 0.0
) -> list[tuple[float, float]]:
    """Twelve pairs; `drift` is the spread of what both arms share, `hiccups` how often a run takes twice as long."""
    level = np.exp(drift * rng.standard_normal(12))
    arms = np.exp(cv * rng.standard_normal((2, 12))) * np.where(rng.random((2, 12)) < hiccups, 2.0, 1.0)
    return list(zip(ratio * level * arms[0], level * arms[1], strict=True))


# ---- error rates, by simulation


@pytest.mark.parametrize(
    ("cv", "drift", "hiccups"),
    [(0.02, 0.0, 0.0), (0.02, 0.2, 0.0), (0.02, 0.0, 0.1), (0.1, 0.1, 0.05)],
    ids=["quiet", "drifting", "hiccups", "shared node"],
)
def test_no_more_false_promotions_than_promised(cv, drift, hiccups) -> None:
    """Three finalists that are not faster, four looks each: in at most 5% of campaigns any of them is promoted."""
    rng = np.random.default_rng(6)
    num = 1500
    campaigns = [
        any(promote(pairs_of(rng, 1.0, cv, drift, hiccups)).action == "promote" for _ in range(3)) for _ in range(num)
    ]
    assert np.mean(campaigns) <= 1 - CONFIDENCE


def test_looking_often_without_paying_for_it_promotes_too_often() -> None:
    """The naive rule: after every three pairs a t test at full level, unpaired, for each of three finalists."""
    rng = np.random.default_rng(7)

    def naive() -> bool:
        logs = np.log(np.array(pairs_of(rng, 1.0, 0.02)))
        return any(ttest_ind(logs[:n, 0], logs[:n, 1], alternative="greater").pvalue < 1 - CONFIDENCE for n in LOOKS)

    naively = np.mean([any(naive() for _ in range(3)) for _ in range(150)])
    assert naively > 3 * (1 - CONFIDENCE)


def test_the_best_of_many_looks_faster_than_it_is_until_it_is_measured_anew() -> None:
    rng = np.random.default_rng(8)
    search = np.exp(0.05 * rng.standard_normal((500, 32)))  # 32 candidates, none faster than the baseline's 1.0
    best = np.exp(np.mean(np.log(1 / search.min(axis=1))))
    assert best > 1.08, "naive: the winner's own search measurement"
    anew = [paired_speedup(*zip(*pairs_of(rng, 1.0, 0.05), strict=True), CONFIDENCE) for _ in range(500)]
    assert np.exp(np.mean([math.log(s.ratio) for s in anew if s])) == pytest.approx(1.0, abs=0.005)


@pytest.mark.parametrize(("ratio", "cv", "at_least"), [(1.10, 0.02, 0.95), (1.3, 0.05, 0.95), (2.0, 0.1, 0.95)])
def test_clear_gains_are_promoted(ratio, cv, at_least) -> None:
    rng = np.random.default_rng(9)
    decisions = [promote(pairs_of(rng, ratio, cv, drift=0.2), threshold=1.01) for _ in range(200)]
    assert np.mean([d.action == "promote" for d in decisions]) >= at_least
    covered = [d.speedup.low <= ratio <= d.speedup.high for d in decisions if d.speedup]
    assert np.mean(covered) >= CONFIDENCE


def test_without_pairs_the_machines_drift_drowns_the_same_gain() -> None:
    rng = np.random.default_rng(10)
    found = []
    for _ in range(200):
        logs = np.log(np.array(pairs_of(rng, 1.10, 0.02, drift=0.2)))
        found.append(ttest_ind(logs[:, 0], logs[:, 1], alternative="greater").pvalue < 1 - CONFIDENCE)
    assert np.mean(found) < 0.6, "naive: unpaired"


def test_a_slower_candidate_is_rejected_without_using_all_pairs() -> None:
    rng = np.random.default_rng(11)
    decisions = [promote(pairs_of(rng, 0.8, 0.02)) for _ in range(100)]
    assert all(d.action == "reject" for d in decisions)
    assert np.mean([d.speedup.num_pairs for d in decisions if d.speedup]) < 7


def test_a_proven_gain_is_worth_more_pairs_while_they_say_clearly_more() -> None:
    def proven(low: float, high: float, num_pairs: int) -> Speedup:
        return Speedup(ratio=2.60, low=low, high=high, confidence=0.95, num_pairs=num_pairs)

    assert is_worth_more(proven(1.67, 4.06, 3), 3), "naive: promoted, and done"
    assert is_worth_more(proven(1.67, 4.06, 9), 3)
    assert not is_worth_more(proven(2.57, 2.63, 3), 3), "narrow already"
    assert not is_worth_more(proven(1.67, 4.06, 60), 3), "sixty pairs and three more are the same"


# ---- the interval


def test_two_pairs_are_hardly_anything_and_the_interval_knows() -> None:
    speedup = paired_speedup([1.10, 1.12], [1.0, 1.0], CONFIDENCE)
    assert speedup is not None
    logs = np.log([1.10, 1.12])
    normal = math.exp(logs.mean() - 1.96 * logs.std(ddof=1) / math.sqrt(2))
    assert normal > 1.08, "naive: normal quantiles"
    assert speedup.low < 1.0
    assert speedup.low == pytest.approx(math.exp(logs.mean() - t.ppf(0.975, 1) * logs.std(ddof=1) / math.sqrt(2)))


def test_fewer_than_two_pairs_have_no_interval() -> None:
    assert paired_speedup([1.0], [1.0], CONFIDENCE) is None
    assert paired_speedup([], [], CONFIDENCE) is None


def test_times_that_are_no_times_are_an_error_in_the_interval_and_no_pair_in_the_decision() -> None:
    with pytest.raises(ValueError, match="positive"):
        paired_speedup([1.0, math.nan], [1.0, 1.0], CONFIDENCE)
    with pytest.raises(ValueError, match="shorter"):
        paired_speedup([1.0, 1.0], [1.0], CONFIDENCE)
    decision = promote([(1.2, 1.0), (math.nan, 1.0), (0.0, 1.0)])
    assert decision.speedup is None
    assert decision.action == "undecided"


SECONDS = st.floats(0.01, 100)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=2, max_size=12), st.floats(0.01, 100))
def test_a_speedup_has_no_unit_and_swapping_the_arms_inverts_it(pairs, unit) -> None:
    baseline, candidate = zip(*pairs, strict=True)
    one = paired_speedup(baseline, candidate, CONFIDENCE)
    scaled = paired_speedup([unit * b for b in baseline], [unit * c for c in candidate], CONFIDENCE)
    swapped = paired_speedup(candidate, baseline, CONFIDENCE)
    assert one is not None
    assert scaled is not None
    assert swapped is not None
    assert scaled.ratio == pytest.approx(one.ratio, rel=1e-6)
    assert swapped.ratio == pytest.approx(1 / one.ratio, rel=1e-6)
    assert one.low <= one.ratio * (1 + 1e-9)
    assert one.ratio <= one.high * (1 + 1e-9)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=2, max_size=12), st.integers(1, 20))
def test_more_claims_never_make_an_interval_narrower(pairs, claims) -> None:
    baseline, candidate = zip(*pairs, strict=True)
    one = paired_speedup(baseline, candidate, CONFIDENCE)
    many = paired_speedup(baseline, candidate, CONFIDENCE, num_claims=claims)
    assert one is not None
    assert many is not None
    assert many.low <= one.low * (1 + 1e-12)
    assert many.confidence == CONFIDENCE


# ---- decisions


def test_a_decision_says_what_was_measured_and_against_what() -> None:
    quiet = [(1.2 + 0.001 * k, 1.0) for k in range(12)]
    promoted = promote(quiet, threshold=1.05)
    assert promoted.action == "promote"
    assert promoted.verdict.belief is Belief.BELIEVED
    assert "over 3 pairs: the lower bound exceeds 1.050x" in promoted.verdict.reasons[0]
    rejected = promote(quiet, threshold=1.5)
    assert (rejected.action, rejected.verdict.belief) == ("reject", Belief.REFUSED)
    noisy = [(1.2 * (2.0 if k % 2 else 0.6), 1.0) for k in range(12)]
    open_ended = promote(noisy)
    assert (open_ended.action, open_ended.verdict.belief) == ("undecided", Belief.UNDECIDED)
    assert "no more pairs are planned" in open_ended.verdict.reasons[0]


def test_before_the_first_pair_there_is_nothing_to_decide() -> None:
    decision = decide([], threshold=1.01, confidence=0.95, looks_planned=4, num_finalists=3, is_last_look=False)
    assert (decision.action, decision.speedup) == ("continue", None)


def test_looking_again_at_the_same_pairs_is_not_another_look() -> None:
    pairs = pairs_of(np.random.default_rng(12), 1.05, 0.02)
    assert promote(pairs) == promote(pairs)


# ---- the order of runs


def test_both_orders_come_as_often_and_lengths_stay_near_the_contracts() -> None:
    pairs = schedule(12, 6, 24, np.random.default_rng(13))
    assert sum(pair.order[0] == "baseline" for pair in pairs) == 6
    assert {frozenset(pair.order) for pair in pairs} == {frozenset({"baseline", "candidate"})}
    for pair in pairs:
        short, long = sorted(pair.lengths)
        assert 5 <= short <= 7
        assert 18 <= long <= 30
        assert long >= 2 * short
    assert len({pair.lengths for pair in pairs}) > 4, "nobody knows them beforehand"
    assert len({pair.seed for pair in pairs} | {pair.evaluation_seed for pair in pairs}) == 24
    assert {pair.lengths[0] < pair.lengths[1] for pair in pairs} == {True, False}


def test_an_odd_block_gives_the_extra_turn_at_random() -> None:
    firsts = {
        sum(p.order[0] == "baseline" for p in schedule(3, 6, 24, np.random.default_rng(seed))) for seed in range(20)
    }
    assert firsts == {1, 2}


def test_the_same_generator_draws_the_same_schedule() -> None:
    assert schedule(4, 6, 24, np.random.default_rng(14)) == schedule(4, 6, 24, np.random.default_rng(14))


@given(st.integers(0, 9), st.integers(2, 40), st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_any_contract_gives_lengths_with_a_slope(num, short, factor, seed) -> None:
    for pair in schedule(num, short, short * factor, np.random.default_rng(seed)):
        low, high = sorted(pair.lengths)
        assert low >= 2
        assert high >= 2 * low
