import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infrarsi_hpc.models.basis import Prior
from infrarsi_hpc.models.normal import Normal, separate
from infrarsi_hpc.models.positive_sum import PositiveSum, checked
from infrarsi_hpc.models.rows import Censoring, ObservationRefused

KINDS = [Censoring.NONE, Censoring.RIGHT, Censoring.LEFT]


FACTORS = [Prior(0.0, 0.2), Prior(0.1, 0.4)]
BELIEF = Normal(np.array([0.0, -0.5, 0.3, 0.0, 0.1]), 0.3 * np.random.default_rng(5).standard_normal((5, 5)))


def problem(seed: int, kinds: list[Censoring], rows: int = 9, is_joint: bool = False) -> PositiveSum:
    rng = np.random.default_rng(seed)
    return checked(
        rng.uniform(0, 2, (rows, 3)) + 0.01,
        rng.integers(0, 2, (rows, 2)).astype(float),
        BELIEF if is_joint else separate([Prior(0.0, 0.5), Prior(-0.5, 1.0), Prior(0.3, 0.3), *FACTORS]),
        rng.uniform(0.5, 4, rows),
        "a peak",
        np.array([kinds[i % len(kinds)] for i in range(rows)]),
        rng.uniform(0, 0.1, rows),
    )


@pytest.mark.parametrize("kinds", [[k] for k in KINDS] + [KINDS], ids=["exact", "right", "left", "mixed"])
@pytest.mark.parametrize("sigma", [0.03, 0.4])
@pytest.mark.parametrize("is_joint", [False, True], ids=["separate priors", "a joint prior"])
def test_gradient_and_curvature_agree_with_finite_differences(
    kinds: list[Censoring], sigma: float, is_joint: bool
) -> None:
    rows = problem(3, kinds, is_joint=is_joint)
    rng = np.random.default_rng(1)
    for _ in range(3):
        x = rng.normal(size=5)
        _, gradient = rows.objective(x, sigma)
        hessian = rows.hessian(x, sigma)
        for j, unit in enumerate(np.eye(5)):
            step = 1e-5 * unit
            (up, gradient_up), (down, gradient_down) = rows.objective(x + step, sigma), rows.objective(x - step, sigma)
            assert gradient[j] == pytest.approx((up - down) / 2e-5, rel=1e-4, abs=1e-4)
            np.testing.assert_allclose(hessian[:, j], (gradient_up - gradient_down) / 2e-5, rtol=2e-3, atol=2e-3)


@settings(max_examples=40)
@given(st.floats(1e-6, 1e6), st.sampled_from(KINDS), st.floats(0.004, 2.0))
def test_the_likelihood_stays_finite_however_far_off_a_bound_is(value: float, kind: Censoring, sigma: float) -> None:
    rows = checked(np.ones((1, 1)), None, separate([Prior()]), np.array([value]), "a peak", np.array([kind]), None)
    loss, gradient = rows.objective(np.zeros(1), sigma)
    assert np.isfinite(loss)
    assert np.isfinite(gradient).all()
    assert np.isfinite(rows.hessian(np.zeros(1), sigma)).all()


BAD = {
    "nan peak": {"value": [np.nan, 1.0]},
    "infinite peak": {"value": [np.inf, 1.0]},
    "negative peak": {"value": [-1.0, 1.0]},
    "zero peak": {"value": [0.0, 1.0]},
    "negative component": {"components": [[-1.0], [1.0]]},
    "infinite component": {"components": [[np.inf], [1.0]]},
    "nothing in a row": {"components": [[0.0], [1.0]]},
    "negative noise": {"noise": [-0.1, 0.1]},
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_numbers_that_cannot_be_are_refused(bad: dict[str, list[float]]) -> None:
    good = {"components": [[1.0], [1.0]], "value": [1.0, 2.0], "noise": [0.1, 0.1]}
    given_ = {name: np.array(values) for name, values in {**good, **bad}.items()}
    with pytest.raises(ObservationRefused) as refused:
        checked(given_["components"], None, separate([Prior()]), given_["value"], "a peak", None, given_["noise"])
    assert isinstance(refused.value, ValueError)
    assert refused.value.exit_code == 3
