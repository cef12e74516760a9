import numpy as np
import pytest

from infrarsi_hpc.models.basis import Prior
from infrarsi_hpc.models.normal import separate
from infrarsi_hpc.models.rows import ObservationRefused
from infrarsi_hpc.models.step_time import MOST_LOCAL, View, fit_step_time

PRIOR = separate([Prior(0.0, 0.7), Prior(0.0, 0.7), Prior(0.0, 0.3)])


def view(micro_batch: np.ndarray, kernel: np.ndarray) -> View:
    """Compute that stays, overhead that comes once a micro-batch, and a kernel as a factor."""
    micro_batch = np.asarray(micro_batch, float)
    kernel = np.asarray(kernel, float)
    return View(
        np.column_stack([np.ones_like(micro_batch), 1 / micro_batch]),
        kernel[:, None],
        np.column_stack([np.log2(micro_batch) / 4, kernel]),
    )


def seconds(micro_batch: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    return (0.8 + 1.5 / np.asarray(micro_batch, float)) * np.where(np.asarray(kernel) > 0, 0.7, 1.0)


def test_rates_and_factors_are_learned_and_carry_beyond_what_was_measured() -> None:
    rng = np.random.default_rng(0)
    batches, kernels = np.array([1, 2, 4, 1, 2, 4]), np.array([0, 0, 0, 1, 1, 1])
    measured = seconds(batches, kernels) * np.exp(0.01 * rng.standard_normal(6))
    model = fit_step_time(view(batches, kernels), measured, PRIOR, noise=np.full(6, 0.01))
    far = np.array([16, 16])
    mean, sd = model.predict(view(far, np.array([0, 1])))
    truth = np.log(seconds(far, np.array([0, 1])))
    # a straight line through log time against log micro-batch, which knows nothing of the overhead's form
    slope, start = np.polyfit(np.log(batches[:3]), np.log(measured[:3]), 1)
    assert abs(start + slope * np.log(16.0) - truth[0]) > 0.25
    assert np.abs(mean - truth).max() < 0.08
    assert (np.abs(mean - truth) < 3 * sd).all()
    assert model.theta[2] == pytest.approx(0.7, rel=0.05)


def test_a_lucky_reading_is_pulled_back_and_a_repeat_lets_it_stand() -> None:
    batches = np.array([1, 2, 4, 8, 1, 2, 4, 8])
    kernels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    measured = seconds(batches, kernels)
    measured[3] *= 0.85
    once = fit_step_time(view(batches, kernels), measured, PRIOR, noise=np.full(8, 0.05))
    believed = np.exp(once.predict(view(batches[3:4], kernels[3:4]))[0][0])
    assert measured[3] * 1.03 < believed < measured[3] / 0.85
    again = fit_step_time(
        view(np.append(batches, [8] * 4), np.append(kernels, [0] * 4)),
        np.append(measured, [measured[3]] * 4),
        PRIOR,
        noise=np.full(12, 0.05),
    )
    assert np.exp(again.predict(view(batches[3:4], kernels[3:4]))[0][0]) < believed


def test_what_the_formulas_miss_is_learned_near_and_forgotten_far() -> None:
    rng = np.random.default_rng(2)
    batches, kernels = rng.choice([1, 2, 4, 8], 24), rng.integers(0, 2, 24)
    cliff = np.where((batches == 8) & (kernels == 1), 1.3, 1.0)
    measured = seconds(batches, kernels) * cliff
    model = fit_step_time(view(batches, kernels), measured, PRIOR, noise=np.full(24, 0.01))
    at_cliff = view(np.array([8]), np.array([1]))
    mean, _ = model.predict(at_cliff)
    assert mean[0] == pytest.approx(np.log(seconds([8], [1])[0] * 1.3), abs=0.03)
    elsewhere = View(at_cliff.components, at_cliff.factors, at_cliff.codes + 50.0)
    far_mean, far_sd = model.predict(elsewhere)
    formulas = model.belief.mean
    alone = np.log(at_cliff.components @ np.exp(formulas[:2])) + at_cliff.factors @ formulas[2:]
    assert far_mean[0] == pytest.approx(alone[0], abs=1e-6)
    assert far_sd[0] > model.predict(at_cliff)[1][0]


def test_trials_without_neighbours_shape_the_formulas_alone() -> None:
    batches, kernels = np.array([1, 2, 4, 8, 1, 2, 4, 8]), np.array([0, 0, 0, 0, 1, 1, 1, 1])
    model = fit_step_time(
        view(batches, kernels),
        seconds(batches, kernels),
        PRIOR,
        noise=np.full(8, 0.15),
        has_local=False,
    )
    mean, sd = model.predict(view(np.array([4]), np.array([1])))
    assert mean[0] == pytest.approx(np.log(seconds([4], [1])[0]), abs=0.1)
    assert sd[0] ** 2 >= model.scatter.own


def test_differences_are_surer_than_the_two_times_alone() -> None:
    batches, kernels = np.array([1, 2, 4]), np.array([0, 0, 1])
    model = fit_step_time(view(batches, kernels), seconds(batches, kernels), PRIOR)
    here, there = view(np.array([16]), np.array([0])), view(np.array([16]), np.array([1]))
    _, alone = model.predict(there)
    _, apart = model.difference(here, there)
    assert apart[0] < np.hypot(alone[0], model.predict(here)[1][0])
    mean, covariance = model.joint(view(np.array([16, 16]), np.array([0, 1])))
    np.testing.assert_allclose(mean[1], model.predict(there)[0][0])
    np.testing.assert_allclose(np.sqrt(covariance[1, 1]), alone[0])


def test_nothing_measured_gives_the_prior_and_bad_times_are_refused() -> None:
    empty = view(np.zeros(0), np.zeros(0))
    empty = View(np.zeros((0, 2)), np.zeros((0, 1)), empty.codes.reshape(0, 2))
    model = fit_step_time(empty, np.zeros(0), separate([Prior(0.0, 0.7), Prior(0.0, 0.7), Prior(0.2, 0.3)]))
    mean, sd = model.predict(view(np.array([2]), np.array([1])))
    assert mean[0] == pytest.approx(np.log(1.5) + 0.2)
    assert sd[0] > 0.3
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ObservationRefused, match="step time"):
            fit_step_time(view(np.array([2]), np.array([1])), np.array([wrong]), PRIOR)


def test_a_stalled_run_moves_neither_the_formulas_nor_what_is_believed_of_its_neighbours() -> None:
    batches, kernels = np.array([1, 2, 4, 8, 1, 2, 4, 8]), np.array([0, 0, 0, 0, 1, 1, 1, 1])
    measured = seconds(batches, kernels)
    stalled = measured.copy()
    stalled[2] *= 20.0
    model = fit_step_time(view(batches, kernels), stalled, PRIOR, noise=np.full(8, 0.02))
    assert model.is_stalled.tolist() == [False, False, True, False, False, False, False, False]
    mean, sd = model.predict(view(np.array([16]), np.array([0])))
    truth = np.log(seconds([16], [0])[0])
    # least squares gives the stalled run the weight of any other
    naive = np.exp(np.log(stalled).mean() - np.log(measured).mean())
    assert naive > 1.4
    assert abs(mean[0] - truth) < 0.1
    assert sd[0] < 0.2


def test_many_trials_give_what_few_would_and_only_the_fastest_have_neighbours() -> None:
    rng = np.random.default_rng(4)
    batches, kernels = rng.choice([1, 2, 4, 8], 400), rng.integers(0, 2, 400)
    measured = seconds(batches, kernels) * np.exp(0.02 * rng.standard_normal(400))
    many = fit_step_time(view(batches, kernels), measured, PRIOR, noise=np.full(400, 0.02))
    assert many.codes.shape[0] == MOST_LOCAL
    few = fit_step_time(view(batches[:100], kernels[:100]), measured[:100], PRIOR, noise=np.full(100, 0.02))
    at = view(np.array([16, 1]), np.array([1, 0]))
    (mean, sd), (rough, wide) = many.predict(at), few.predict(at)
    np.testing.assert_allclose(mean, np.log(seconds([16, 1], [1, 0])), atol=0.05)
    np.testing.assert_allclose(mean, rough, atol=0.05)
    assert (sd <= wide + 0.01).all()
