"""What the censored fit protects against stands beside what the naive one would have said."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infrarsi_hpc.models.basis import Prior
from infrarsi_hpc.models.memory import fit_peak_memory
from infrarsi_hpc.models.normal import separate
from infrarsi_hpc.models.rows import Censoring, NoUpperEstimate, ObservationRefused

WIDE = separate([Prior(0.0, 1.0), Prior(0.0, 1.0)])
THETA = np.array([1.6, 0.7])


def sweep(seed: int, num: int, sigma: float = 0.15, limit: float = 4.4):
    """Two components (static, and growing with the micro-batch), peaks with scatter, bounds above the limit."""
    rng = np.random.default_rng(seed)
    components = np.column_stack([np.ones(num), 2.0 ** rng.integers(0, 4, num)])
    true = components @ THETA * np.exp(sigma * rng.standard_normal(num))
    is_oom = true > limit
    return components, np.where(is_oom, limit, true), np.where(is_oom, Censoring.RIGHT, Censoring.NONE), true


def test_the_censored_fit_recovers_scales_and_scatter_that_dropping_the_ooms_gets_too_low() -> None:
    errors = []
    for seed in range(8):
        components, peak, censoring, _ = sweep(seed, 120, sigma=0.3)
        kept = censoring == Censoring.NONE
        assert 0.2 < 1 - kept.mean() < 0.7
        fitted = fit_peak_memory(components, peak, censoring, WIDE)
        naive = fit_peak_memory(components[kept], peak[kept], censoring[kept], WIDE)
        biggest = np.array([[1.0, 8.0]])
        truth = float(np.log(biggest @ THETA)[0])
        off = [model.predict(biggest)[0][0] - truth for model in (fitted, naive)]
        errors.append([*off, fitted.sigma, naive.sigma])
    censored, dropped, sigma, naive_sigma = np.mean(errors, axis=0)
    assert abs(censored) < 0.08
    assert dropped < -0.25
    assert sigma == pytest.approx(0.3, rel=0.2)
    assert naive_sigma < sigma


def test_a_finished_trial_without_a_reading_lowers_the_estimate() -> None:
    components = np.array([[1.0, 4.0]])
    before = fit_peak_memory(np.zeros((0, 2)), np.zeros(0), np.zeros(0), WIDE).predict(components)
    after = fit_peak_memory(components, np.array([2.0]), np.array([Censoring.LEFT]), WIDE).predict(components)
    assert after[0][0] < before[0][0]
    assert after[1][0] < before[1][0]


def test_when_everything_ran_out_of_memory_there_is_a_lower_bound_and_no_upper_estimate() -> None:
    components, limit = np.array([[1.0, 4.0], [1.0, 8.0]]), np.array([6.0, 6.0])
    model = fit_peak_memory(components, limit, np.array([Censoring.RIGHT] * 2), WIDE)
    assert not model.has_upper_estimate
    with pytest.raises(NoUpperEstimate, match="no upper estimate"):
        model.interval_gib(components)
    assert model.lower_gib(components).shape == (2,)
    prior = fit_peak_memory(components[:0], limit[:0], np.zeros(0), WIDE)
    assert model.probability_fits(components, 6.0)[0] < prior.probability_fits(components, 6.0)[0]
    measured = fit_peak_memory(
        np.vstack([components, [[1.0, 1.0]]]), np.array([6.0, 6.0, 2.0]), np.array([1, 1, 0]), WIDE
    )
    low, high = measured.interval_gib(components)
    assert (low < high).all()


def test_contradictory_repeats_are_kept_and_leave_the_chance_open() -> None:
    components = np.ones((6, 1))
    peak = np.array([4.0, 4.0, 4.0, 3.9, 3.8, 3.9])
    censoring = np.array([Censoring.RIGHT] * 3 + [Censoring.NONE] * 3)
    model = fit_peak_memory(components, peak, censoring, separate([Prior(0.0, 2.0)]))
    assert 0.2 < model.probability_fits(components[:1], 4.0)[0] < 0.8
    assert (model.num_exact, model.num_censored) == (3, 3)


def test_one_trial_is_enough_to_move_the_belief_and_not_to_be_sure() -> None:
    components = np.array([[1.0, 2.0]])
    model = fit_peak_memory(components, np.array([12.0]), np.array([0]), WIDE)
    mean, sd = model.predict(components)
    assert np.exp(mean[0]) == pytest.approx(12.0, rel=0.1)
    assert sd[0] > 0.05
    far = model.predict(np.array([[1.0, 200.0]]))
    assert far[1][0] > sd[0]


def test_the_scatter_of_few_trials_is_not_called_zero() -> None:
    """As many parameters as trials explain every reading; a joint mode would put sigma at its lower end."""
    rng = np.random.default_rng(0)
    components = rng.uniform(0.1, 1, (6, 6))
    peak = components.sum(axis=1) * np.exp(0.1 * rng.standard_normal(6))
    model = fit_peak_memory(components, peak, np.zeros(6), separate([Prior(0.0, 1.0)] * 6))
    residual = np.log(peak) - model.predict(components)[0]
    assert model.sigma > 0.04
    assert np.std(residual) < model.sigma


def test_laplace_agrees_with_the_exact_posterior_on_a_grid() -> None:
    components, peak, censoring, _ = sweep(5, 10)
    sigma = 0.15
    model = fit_peak_memory(components, peak, censoring, WIDE, sigma_prior=Prior(np.log(sigma), 1e-3))
    from scipy.special import log_ndtr

    axis = np.linspace(-2.5, 2.5, 301)
    a, b = (grid.ravel() for grid in np.meshgrid(axis, axis, indexing="ij"))
    log_post = -0.5 * (a**2 + b**2)
    for row, value, kind in zip(components, np.log(peak), censoring, strict=True):
        mu = np.log(row[0] * np.exp(a) + row[1] * np.exp(b))
        log_post += log_ndtr((mu - value) / sigma) if kind == Censoring.RIGHT else -0.5 * ((value - mu) / sigma) ** 2
    weight = np.exp(log_post - log_post.max())
    weight /= weight.sum()
    for micro_batch in (1.0, 4.0, 16.0):
        mu = np.log(np.exp(a) + micro_batch * np.exp(b))
        mean = weight @ mu
        sd = float(np.sqrt(weight @ (mu - mean) ** 2 + sigma**2))
        log_mean, log_sd = model.predict(np.array([[1.0, micro_batch]]))
        assert log_mean[0] == pytest.approx(mean, abs=0.03)
        assert log_sd[0] == pytest.approx(sd, rel=0.12)
        from scipy.special import ndtr

        fits = float(weight @ ndtr((np.log(4.0) - mu) / sigma))
        assert model.probability_fits(np.array([[1.0, micro_batch]]), 4.0)[0] == pytest.approx(fits, abs=0.05)


def test_ninety_percent_intervals_hold_about_ninety_percent() -> None:
    held, seen = 0, 0
    for seed in range(20):
        components, peak, censoring, true = sweep(seed, 40)
        model = fit_peak_memory(components[:14], peak[:14], censoring[:14], WIDE)
        low, high = model.interval_gib(components[14:])
        held += int(((low <= true[14:]) & (true[14:] <= high)).sum())
        seen += 26
    assert 0.85 <= held / seen <= 0.96


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.floats(0.5, 20), st.floats(1.0, 3.0))
def test_more_capacity_and_less_memory_are_never_less_likely_to_fit(seed: int, capacity: float, ratio: float) -> None:
    components, peak, censoring, _ = sweep(seed, 8)
    model = fit_peak_memory(components, peak, censoring, WIDE)
    growing = np.column_stack([np.ones(6), 2.0 ** np.arange(6)])
    fits = model.probability_fits(growing, capacity)
    assert (np.diff(fits) <= 1e-12).all()
    assert (model.probability_fits(growing, capacity * ratio) >= fits - 1e-12).all()


def test_without_a_capacity_everything_fits_and_a_wrong_one_is_refused() -> None:
    model = fit_peak_memory(np.ones((1, 1)), np.ones(1), np.zeros(1), separate([Prior()]))
    assert model.probability_fits(np.ones((3, 1)), None).tolist() == [1.0, 1.0, 1.0]
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ObservationRefused, match="capacity"):
            model.probability_fits(np.ones((3, 1)), wrong)
