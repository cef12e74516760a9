"""Step times, warm-up, noise and slope: what is read, beside what the naive reading says."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi_hpc.verify.readings import median_noise, read, step_durations, wall_slope, warmup_steps

STEADY = [1.00, 1.01, 0.99, 1.00, 1.02, 0.98, 1.00, 1.01]


def ends_of(durations: list[float], start: float = 2.0) -> tuple[float, ...]:
    return tuple(start + sum(durations[: k + 1]) for k in range(len(durations)))


# ---- warm-up


def test_two_compiling_steps_are_left_out_and_a_fixed_single_one_would_not_do() -> None:
    durations = [94.8, 61.0, *STEADY, *STEADY]
    assert warmup_steps(durations) == 2
    assert statistics.fmean(durations[1:]) > 4, "naive: the first step left out, the rest averaged"
    assert statistics.median(durations[warmup_steps(durations) :]) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("durations", "warmup"),
    [
        (STEADY, 0),
        ([1.0] * 8, 0),
        ([3.0, 2.2, 1.6, 1.3, 1.1, *STEADY, *STEADY], 5),
        # a second shape compiles after one quick step
        ([9.0, 1.0, 7.0, *STEADY], 3),
        # a hiccup in mid-run is no warm-up, and the median does not mind it
        ([1.0, 1.01, 0.99, 1.0, 1.01, 9.0, *STEADY], 0),
        ([9.0, *STEADY[:3]], 1),
        ([9.0, 1.0], 0),
        ([9.0], 0),
        ([], 0),
    ],
)
def test_warm_up_ends_where_steps_are_as_fast_as_the_rest(durations, warmup) -> None:
    assert warmup_steps(durations) == warmup


def test_at_least_half_of_the_steps_remain() -> None:
    assert warmup_steps([9.0] * 7 + [1.0] * 3) <= 5


# ---- reading


def test_the_first_step_counts_from_the_end_of_set_up(make_run, make_result, make_spec) -> None:
    run = make_run(8, step_ends=ends_of(STEADY))
    reading = read(make_result(run), make_spec())
    assert reading.step_seconds == pytest.approx(1.0)
    assert reading.warmup_steps == 0
    without = run.model_copy(update={"setup_seconds": None})
    assert len(step_durations(without)) == 7
    assert read(make_result(without), make_spec()).warmup_steps == 1


def test_the_numbers_of_a_trial(make_run, make_result, make_spec) -> None:
    runs = (make_run(4, peak_gib=(0.5, None)), make_run(8, peak_gib=(0.7, 0.9)))
    reading = read(make_result(*runs), make_spec(lengths=(4, 8)))
    assert reading.peak_gib == 0.9
    assert reading.slope_seconds == pytest.approx(0.1)
    assert reading.setup_seconds == 2.0
    assert len(reading.losses) == 8
    assert reading.evaluation_loss == 6.1
    assert reading.num_parameters == 1_000_000
    assert reading.device_seconds == 4.0


def test_a_profiled_run_is_never_a_timing(make_run, make_result, make_spec) -> None:
    runs = (make_run(4, phases={"forward": 0.05}), make_run(8))
    reading = read(make_result(*runs), make_spec(evidence={"profile": True}))
    assert reading.phases == {"forward": 0.05}
    assert (reading.step_seconds, reading.slope_seconds) == (None, None)


def test_a_trial_without_runs_or_steps_reads_as_nothing(make_run, make_result, make_spec) -> None:
    assert read(make_result(), make_spec()).step_seconds is None
    reading = read(make_result(make_run(8, step_ends=(), steps=(), peak_gib=())), make_spec())
    assert (reading.step_seconds, reading.peak_gib, reading.losses) == (None, None, ())


def test_numbers_that_are_none_do_not_become_readings(make_run, make_result, make_spec, step) -> None:
    steps = (step(0, loss=math.nan), step(1))
    run = make_run(2, steps=steps, step_ends=(2.5, 2.4), evaluation_loss=math.inf)
    reading = read(make_result(run), make_spec(lengths=(2,)))
    assert reading.losses[0] is None
    assert reading.evaluation_loss is None
    assert reading.step_seconds is None, "marks that run backwards are not read"


# ---- noise of the median


def test_the_noise_of_the_median_is_the_spread_of_medians() -> None:
    rng = np.random.default_rng(0)
    samples = np.exp(0.05 * rng.standard_normal((3000, 15)))
    truth = np.std(np.log(np.median(samples, axis=1)))
    told = np.mean([median_noise(list(row)) for row in samples])
    assert told == pytest.approx(truth, rel=0.1)


def test_one_hiccup_does_not_blow_the_noise_up_as_it_does_the_standard_error() -> None:
    durations = [*STEADY, *STEADY, 30.0]
    naive = statistics.stdev(durations) / math.sqrt(len(durations)) / statistics.fmean(durations)
    assert naive > 0.5
    assert (median_noise(durations) or 1.0) < 0.01


def test_fewer_than_two_steps_have_no_noise() -> None:
    assert median_noise([1.0]) is None
    assert median_noise([]) is None
    assert median_noise([1.0, 1.0]) == 0


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=40), st.floats(0.01, 100))
def test_noise_is_relative_and_never_negative(durations, unit) -> None:
    noise = median_noise(durations)
    assert noise is not None
    assert noise >= 0
    assert median_noise([unit * d for d in durations]) == pytest.approx(noise, abs=1e-9)


# ---- slope


def test_start_up_and_saving_cancel_in_the_slope(make_run) -> None:
    runs = [make_run(n, wall_seconds=60 + 0.1 * n) for n in (6, 24)]
    assert wall_slope(runs) == pytest.approx(0.1)
    assert runs[1].wall_seconds / 24 > 2.5, "naive: wall over steps"


def test_steps_that_are_claimed_early_do_not_change_the_slope(make_run) -> None:
    runs = [make_run(n, wall_seconds=5 + 0.1 * n, step_ends=tuple(2 + 0.001 * k for k in range(n))) for n in (6, 24)]
    assert statistics.median(step_durations(runs[1])) < 0.002, "naive: the marks"
    assert wall_slope(runs) == pytest.approx(0.1)


def test_one_length_or_an_unfinished_run_has_no_slope(make_run) -> None:
    assert wall_slope([make_run(8)]) is None
    assert wall_slope([make_run(8), make_run(8, wall_seconds=9.0)]) is None
    assert wall_slope([make_run(4), make_run(8, exit_codes=(1,))]) is None
    assert wall_slope([make_run(4), make_run(8, stopped="wall")]) is None
    assert wall_slope([make_run(4, wall_seconds=9.0), make_run(8, wall_seconds=5.0)]) is None, (
        "a negative slope is noise"
    )
