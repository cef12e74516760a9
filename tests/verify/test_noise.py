"""Spreads, what can be told from noise with them, and drift; each beside its simulation."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from scipy.stats import t

from infrarsi_hpc.verify.noise import (
    detectable_speedup,
    find_drift,
    pairs_needed,
    relative_spread,
    resolution,
    step_spread,
)


def test_the_spread_of_runs_is_that_of_their_logarithms_whatever_the_unit() -> None:
    rng = np.random.default_rng(1)
    values = list(0.3 * np.exp(0.04 * rng.standard_normal(4000)))
    assert relative_spread(values) == pytest.approx(0.04, rel=0.05)
    assert relative_spread([1000 * v for v in values]) == pytest.approx(relative_spread(values))
    assert relative_spread([1.0]) == relative_spread([]) == 0
    assert relative_spread([1.0, math.inf, -1.0]) == 0


def test_steps_that_agree_say_nothing_about_runs_that_do_not() -> None:
    """Public A/A data: jobs differ by 2.7% to 21.9% while the steps of each agree."""
    rng = np.random.default_rng(2)
    levels = np.exp(0.08 * rng.standard_normal(12))
    runs = [list(level * np.exp(0.01 * rng.standard_normal(16))) for level in levels]
    within, between = step_spread(runs), relative_spread([statistics.median(run) for run in runs])
    assert within == pytest.approx(0.01, rel=0.3)
    assert between > 4 * within
    naive = within * math.sqrt(2 / 16)
    assert naive < 0.005, "naive: steps taken for independent runs"


def test_the_smallest_detectable_speedup_is_found_as_often_as_it_says() -> None:
    """A promotion with that many pairs finds it with 90% power."""
    cv, num, confidence = 0.03, 6, 0.95
    ratio = detectable_speedup(cv, num, confidence)
    rng = np.random.default_rng(3)
    logs = math.log(ratio) + math.sqrt(2) * cv * rng.standard_normal((4000, num))
    half = t.ppf(0.975, num - 1) * logs.std(axis=1, ddof=1) / math.sqrt(num)
    found = np.mean(logs.mean(axis=1) - half > 0)
    assert found == pytest.approx(0.9, abs=0.03)


def test_fewer_pairs_or_more_noise_need_a_larger_speedup() -> None:
    assert detectable_speedup(0.02, 3, 0.95) > detectable_speedup(0.02, 12, 0.95) > 1
    assert detectable_speedup(0.05, 6, 0.95) > detectable_speedup(0.02, 6, 0.95)
    assert detectable_speedup(0.0, 6, 0.95) == 1
    assert detectable_speedup(0.02, 1, 0.95) == math.inf
    assert detectable_speedup(50.0, 2, 0.99) < math.inf


@pytest.mark.parametrize(("cv", "ratio"), [(0.02, 1.01), (0.02, 1.05), (0.1, 1.05), (0.005, 1.01)])
def test_pairs_needed_is_the_fewest_that_are_enough(cv, ratio) -> None:
    num = pairs_needed(cv, ratio, 0.95)
    assert detectable_speedup(cv, num, 0.95) <= ratio
    assert num == 2 or detectable_speedup(cv, num - 1, 0.95) > ratio


def test_a_quiet_machine_needs_two_pairs_and_a_hopeless_one_says_so() -> None:
    assert pairs_needed(0.0, 1.01, 0.95) == 2
    assert pairs_needed(3.0, 1.0001, 0.95) == 100_000
    assert pairs_needed(0.02, 1.0, 0.95) == 100_000


def test_what_an_hour_tells_is_said_instead_of_pairs_that_nobody_has() -> None:
    noisy = resolution(0.15, 20.0, 0.95)
    assert noisy.pairs_an_hour == 180
    assert detectable_speedup(0.15, 180, 0.95) == noisy.speedup_in_an_hour < 1.06
    assert pairs_needed(0.15, 1.01, 0.95) > 4000, "naive: what a promotion at the threshold takes"
    gains = dict(noisy.pairs_for)
    assert list(gains) == [1.03, 1.10, 1.30]
    assert gains[1.03] > gains[1.10] > gains[1.30] >= 2
    hopeless = resolution(8.0, 20.0, 0.95)
    assert dict(hopeless.pairs_for)[1.03] is None
    assert resolution(0.0, 0.0, 0.95).speedup_in_an_hour == 1
    assert resolution(0.1, 1e9, 0.95).pairs_an_hour == 2


def throttled(rng: np.random.Generator) -> list[float]:
    """700 ms for 40 steps, then the clock drops until a step takes 1.3 s."""
    level = np.concatenate([np.full(40, 0.7), np.linspace(0.7, 1.3, 80)])
    return list(level * np.exp(0.01 * rng.standard_normal(120)))


def test_a_throttling_clock_is_seen_and_a_short_run_would_have_missed_it() -> None:
    durations = throttled(np.random.default_rng(4))
    drift = find_drift(durations)
    assert drift is not None
    assert drift.ratio == pytest.approx(1.75, rel=0.1)
    assert 50 < drift.begins < 100
    assert statistics.median(durations[:30]) == pytest.approx(0.7, rel=0.02), "naive: a 30-step run"
    assert find_drift(durations[:30]) is None


def test_steady_runs_show_no_drift() -> None:
    rng = np.random.default_rng(5)
    false = sum(find_drift(list(np.exp(0.05 * rng.standard_normal(24)))) is not None for _ in range(400))
    assert false <= 4
    assert find_drift([1.0] * 30) is None
    assert find_drift([1.0, 2.0]) is None
