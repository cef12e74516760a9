"""Step time: log t = log(sum theta_k c_k) + log-factors of settings and patches + what is local + noise.

The components carry what is known (compute at a rate, overheads that come once a micro-batch, synchronisation), the
factors what a formula cannot see (a kernel, a patch). Cliffs and interactions (a cache that overflows, two settings
that only help together) are local: a Gaussian process over settings, whose kernel falls with the number of settings
that differ. Far from all trials it is zero and the physics speaks alone, so that extrapolation is kept. How large the
scatter is, how much of it is the configuration's own (a repeat would show it again), and how far it reaches, is
weighed by the marginal likelihood with the parameters integrated out. The own share is never zero: a trial that was
faster than the formulas say is mostly faster, not mostly lucky.

Rasmussen & Williams (2006), ch. 2 and 5. Around the mode everything is linear, so that means and covariances of
predictions are those of one Gaussian process with kernel J D J' + own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from infrarsi_hpc.models.basis import BoolArray, FloatArray, Prior
from infrarsi_hpc.models.positive_sum import PositiveSum, checked, checked_matrices, log_sum_jacobian

#: Scatter of step times around the formulas: machine noise and what the formulas miss.
SIGMA_PRIOR = Prior(mean=float(np.log(0.05)), width=0.6)
#: Grid of log sigma (in prior widths), share of its variance that is the configuration's own, and reach in settings.
_SIGMAS = np.array([-2.0, -1.25, -0.5, 0.25, 1.0, 1.75, 2.5])
_SHARES = (0.5, 0.75, 0.95)
_REACHES = (0.25, 1.5, 4.0)
#: Times that mode and scatter are found in turn.
_TURNS = 3
_STEPS = 12


@dataclass(frozen=True)
class View:
    """What the model sees of n points.

    Attributes
    ----------
    components : (n, k)
        Seconds a step and component at nominal rates.
    factors : (n, f)
        Columns of the log-factors.
    codes : (n, d)
        Settings as numbers whose L1 distance counts differing settings.
    """

    components: FloatArray
    factors: FloatArray
    codes: FloatArray

    def __len__(self) -> int:
        return int(self.components.shape[0])


@dataclass(frozen=True)
class Scatter:
    """What is not in the formulas.

    Attributes
    ----------
    own
        Variance of what belongs to a configuration and shows again in a repeat.
    reach
        Distance in settings over which it falls by e.
    noise
        Variance of what a repeat would not show, beside the known noise of a row.
    """

    own: float
    reach: float
    noise: float


@dataclass(frozen=True)
class StepTimeModel:
    """A fitted model. All predictions are of log seconds of the step itself, not of one noisy reading.

    Attributes
    ----------
    mode : (p,), width : (p,)
        (log theta, log-factors) and the widths of their priors.
    scatter
        Size and reach of what the formulas miss.
    codes : (n, d), jacobian : (n, p), weights : (n,), root : (n, n)
        The trials: settings, derivatives at the mode, solved residuals, inverse Cholesky factor of their covariance.
    is_own : (n,)
        Rows of this campaign; the local part says nothing about others.
    """

    mode: FloatArray
    width: FloatArray
    scatter: Scatter
    codes: FloatArray
    jacobian: FloatArray
    weights: FloatArray
    root: FloatArray
    is_own: BoolArray

    @property
    def num_rows(self) -> int:
        """Trials that the model was fitted to."""
        return int(self.is_own.size)

    @property
    def theta(self) -> FloatArray:
        """Scales of the components and factors (both as multipliers) at the mode, (p,)."""
        return np.exp(self.mode)

    def predict(self, view: View) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation, (n,) each."""
        mean, jac = self._linearised(view)
        local = self._local(view.codes)
        seen = ((jac * self.width**2) @ self.jacobian.T + local) @ self.root.T
        variance = ((jac * self.width) ** 2).sum(axis=1) + self.scatter.own - (seen**2).sum(axis=1)
        return mean + local @ self.weights, np.sqrt(np.maximum(variance, 0.0))

    def joint(self, view: View) -> tuple[FloatArray, FloatArray]:
        """Mean (n,) and covariance (n, n)."""
        mean, jac = self._linearised(view)
        local = self._local(view.codes)
        seen = ((jac * self.width**2) @ self.jacobian.T + local) @ self.root.T
        prior = (jac * self.width**2) @ jac.T + _kernel(view.codes, view.codes, self.scatter)
        return mean + local @ self.weights, prior - seen @ seen.T

    def drawn(self, view: View, normals: FloatArray) -> FloatArray:
        """Joint draws, (s, n), from standard normal numbers (s, n)."""
        mean, covariance = self.joint(view)
        values, vectors = np.linalg.eigh(covariance)
        drawn: FloatArray = mean + normals @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
        return drawn

    def difference(self, here: View, there: View) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of log t(there) - log t(here), (n,) each; `here` is one row."""
        both = View(*(np.vstack([getattr(here, f), getattr(there, f)]) for f in ("components", "factors", "codes")))
        mean, covariance = self.joint(both)
        variance = np.diag(covariance)[1:] + covariance[0, 0] - 2 * covariance[0, 1:]
        return mean[1:] - mean[0], np.sqrt(np.maximum(variance, 0.0))

    def _linearised(self, view: View) -> tuple[FloatArray, FloatArray]:
        num_factors = view.factors.shape[1]
        components, factors = checked_matrices(view.components, view.factors, num_factors)
        return log_sum_jacobian(components, factors, self.mode)

    def _local(self, codes: FloatArray) -> FloatArray:
        return _kernel(codes, self.codes, self.scatter) * self.is_own


def fit_step_time(
    view: View,
    step_seconds: FloatArray,
    priors: Sequence[Prior],
    factor_priors: Sequence[Prior] = (),
    *,
    noise: FloatArray | None = None,
    is_own: BoolArray | None = None,
    sigma_prior: Prior = SIGMA_PRIOR,
) -> StepTimeModel:
    """Fit component rates and factors, and the size and reach of what they miss.

    Parameters
    ----------
    view
        The n trials.
    step_seconds : (n,)
        Measured step times.
    priors, factor_priors
        One for the log of each component's scale, one for each log-factor.
    noise : (n,)
        Known relative standard error of each row.
    is_own : (n,)
        Rows of this campaign; others (experience) shape the formulas, never what is local.

    Raises
    ------
    ObservationRefused
        A time is not a finite number above zero, or a component negative or not finite.
    """
    problem = checked(view.components, view.factors, priors, factor_priors, step_seconds, "a step time", None, noise)
    num = problem.log_value.size
    own = np.ones(num, bool) if is_own is None else np.asarray(is_own, bool)
    codes = np.asarray(view.codes, float)
    sigma2 = float(np.exp(2 * sigma_prior.mean))
    scatter = Scatter(0.5 * sigma2, _REACHES[1], 0.5 * sigma2)
    x = np.zeros(problem.mean.size)
    for turn in range(_TURNS if num else 0):
        x = _mode(problem, x, _covariance(codes, own, problem.noise, scatter))
        if turn < _TURNS - 1:
            scatter = _most_likely_scatter(problem, x, codes, own, sigma_prior)
    mu, jac = problem.linearised(x)
    own_covariance = _covariance(codes, own, problem.noise, scatter)
    root = np.linalg.inv(np.linalg.cholesky((jac * problem.width**2) @ jac.T + own_covariance))
    weights: FloatArray = np.asarray(np.linalg.solve(own_covariance, problem.log_value - mu), float)
    return StepTimeModel(
        mode=problem.mean + problem.width * x,
        width=problem.width,
        scatter=scatter,
        codes=codes,
        jacobian=jac,
        weights=weights,
        root=root,
        is_own=own,
    )


def _kernel(left: FloatArray, right: FloatArray, scatter: Scatter) -> FloatArray:
    from scipy.spatial.distance import cdist

    return scatter.own * np.exp(-np.asarray(cdist(left, right, "cityblock"), float) / scatter.reach)


def _covariance(codes: FloatArray, is_own: BoolArray, noise: FloatArray, scatter: Scatter) -> FloatArray:
    """Covariance of the trials' readings around the formulas, (n, n)."""
    together = _kernel(codes, codes, scatter) * np.outer(is_own, is_own)
    apart = scatter.noise + noise**2 + np.where(is_own, 1e-9, scatter.own)
    return together + np.diag(apart)


def _mode(problem: PositiveSum, x: FloatArray, covariance: FloatArray) -> FloatArray:
    """Whitened parameters at the mode under a full covariance of the readings: damped Gauss-Newton."""
    root = np.linalg.inv(np.linalg.cholesky(covariance))

    def loss(at: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        mu, jac = problem.linearised(at)
        error = root @ (problem.log_value - mu)
        return float(0.5 * at @ at + 0.5 * error @ error), error, root @ (jac * problem.width)

    value, error, jac = loss(x)
    for _ in range(_STEPS):
        step = np.linalg.solve(jac.T @ jac + np.eye(x.size), jac.T @ error - x)
        size = 1.0
        while size > 1e-3:
            tried = loss(x + size * step)
            if tried[0] <= value:
                break
            size /= 2
        else:
            break
        gained = value - tried[0]
        x = x + size * step
        value, error, jac = tried
        if gained < 1e-6:
            break
    return x


def _most_likely_scatter(
    problem: PositiveSum, x: FloatArray, codes: FloatArray, is_own: BoolArray, sigma_prior: Prior
) -> Scatter:
    """The scatter with the highest marginal likelihood of the readings, parameters integrated out around x."""
    mu, jac = problem.linearised(x)
    # residual from the prior's mean, as far as the formulas are linear around x
    error = problem.log_value - mu + jac @ (problem.width * x)
    formulas = (jac * problem.width**2) @ jac.T
    best, best_score = Scatter(1e-4, 1.0, 1e-4), -np.inf
    unit = Scatter(1.0, 1.0, 0.0)
    for reach in _REACHES:
        apart = _kernel(codes, codes, replace(unit, reach=reach)) * np.outer(is_own, is_own)
        apart += np.diag(np.where(is_own, 1e-9, 1.0))
        for place in _SIGMAS:
            variance = float(np.exp(2 * (sigma_prior.mean + sigma_prior.width * place)))
            for share in _SHARES:
                noise = (1 - share) * variance + problem.noise**2
                lower = np.linalg.cholesky(formulas + share * variance * apart + np.diag(noise))
                whitened = np.linalg.solve(lower, error)
                score = -0.5 * float(whitened @ whitened) - float(np.log(np.diag(lower)).sum()) - 0.5 * place**2
                if score > best_score:
                    best, best_score = Scatter(share * variance, reach, (1 - share) * variance), score
    return best
