"""Step time: log t = log(sum theta_k c_k) + log-factors of settings and patches + what is local + noise.

The components carry what is known (compute at a rate, overheads that come once a micro-batch, synchronisation), the
factors what a formula cannot see (a kernel, a patch). Cliffs and interactions (a cache that overflows, two settings
that only help together) are local: a Gaussian process over settings, whose kernel falls with the number of settings
that differ. Far from all trials it is zero and the physics speaks alone, so that extrapolation is kept. How large the
scatter is, how much of it is the configuration's own (a repeat would show it again), and how far it reaches, is
weighed by the marginal likelihood with the parameters integrated out. The own share is never zero: a trial that was
faster than the formulas say is mostly faster, not mostly lucky.

Rasmussen & Williams (2006), ch. 2 and 5; sec. 2.7 for a process around a linear part. Around the mode everything is
linear. The fastest `MOST_LOCAL` trials are correlated with each other, the others only through the formulas, so that
the cost grows linearly with the trials.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from infrarsi_hpc.models.basis import BoolArray, FloatArray, IntArray, Prior
from infrarsi_hpc.models.normal import Normal
from infrarsi_hpc.models.positive_sum import PositiveSum, checked, checked_matrices, log_sum_jacobian

#: Scatter of step times around the formulas: machine noise and what the formulas miss.
SIGMA_PRIOR = Prior(mean=float(np.log(0.05)), width=0.6)
#: Grid of log sigma (in prior widths), share of its variance that is the configuration's own, and reach in settings.
_SIGMAS = np.array([-2.0, -1.25, -0.5, 0.25, 1.0, 1.75, 2.5])
_SHARES = (0.5, 0.75, 0.95)
_REACHES = (0.25, 1.5, 4.0)
#: Times that mode and scatter are found in turn; in each, this much more than usual is no stall yet.
_HEAT = (100.0, 10.0, 1.0)
_TURNS = len(_HEAT)
_STEPS = 12
#: Trials that tell of their neighbours, the fastest ones: where the search looks.
MOST_LOCAL = 128
#: Degrees of freedom of the tail of slow runs, and the weight below which a run is taken as stalled.
_TAIL = 3.0
_STALLED = 0.2


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
    belief
        (log theta, log-factors), p parameters.
    num_components
        How many of them are scales of components.
    scatter
        Size and reach of what the formulas miss.
    codes : (l, d), weights : (l,), root : (l, l), jacobian : (l, p)
        The l trials that have something local: settings, solved residuals, inverse Cholesky factor of their
        covariance, and derivatives whitened by it.
    is_stalled : (n,)
        Rows so much slower than the formulas that they hardly count.
    log_evidence
        Log of how probable the times were under the prior, up to what all priors share.
    """

    belief: Normal
    num_components: int
    scatter: Scatter
    codes: FloatArray
    weights: FloatArray
    root: FloatArray
    jacobian: FloatArray
    is_stalled: BoolArray
    log_evidence: float

    @property
    def theta(self) -> FloatArray:
        """Scales of the components and factors (both as multipliers) at the mode, (p,)."""
        return np.exp(self.belief.mean)

    def predict(self, view: View) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation, (n,) each."""
        mean, seen, free = self._parts(view)
        variance = self.scatter.own - (seen**2).sum(axis=1) + (free**2).sum(axis=1)
        return mean, np.sqrt(np.maximum(variance, 0.0))

    def joint(self, view: View) -> tuple[FloatArray, FloatArray]:
        """Mean (n,) and covariance (n, n)."""
        mean, seen, free = self._parts(view)
        return mean, _kernel(view.codes, view.codes, self.scatter) - seen @ seen.T + free @ free.T

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

    def _parts(self, view: View) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mean (n,), what the trials tell of the local part (n, l), and what is left open by the formulas (n, p)."""
        num_factors = self.belief.mean.size - self.num_components
        components, factors = checked_matrices(view.components, view.factors, num_factors)
        mean, jac = log_sum_jacobian(components, factors, self.belief.mean)
        local = _kernel(view.codes, self.codes, self.scatter)
        seen = local @ self.root.T
        return mean + local @ self.weights, seen, (jac - seen @ self.jacobian) @ self.belief.root


def fit_step_time(
    view: View,
    step_seconds: FloatArray,
    prior: Normal,
    *,
    noise: FloatArray | None = None,
    sigma_prior: Prior = SIGMA_PRIOR,
    has_local: bool = True,
) -> StepTimeModel:
    """Fit component rates and factors, and the size and reach of what they miss.

    Parameters
    ----------
    view
        The n trials.
    step_seconds : (n,)
        Measured step times.
    prior
        Of the logs of the components' scales and of the log-factors, k + f parameters.
    noise : (n,)
        Known relative standard error of each row.
    has_local
        Whether trials tell of their neighbours beyond the formulas; without, the scatter is each trial's own.

    Raises
    ------
    ObservationRefused
        A time is not a finite number above zero, or a component negative or not finite.
    """
    data = checked(view.components, view.factors, prior, step_seconds, "a step time", None, noise)
    num = data.log_value.size
    codes = np.asarray(view.codes, float)
    near = np.argsort(data.log_value, kind="stable")[: MOST_LOCAL if has_local else 0]
    known = data.noise
    sigma2 = float(np.exp(2 * sigma_prior.mean))
    scatter, score = Scatter(0.5 * sigma2, _REACHES[1], 0.5 * sigma2), 0.0
    x = np.zeros(prior.mean.size)
    for turn in range(_TURNS if num else 0):
        excess = _excess(data, x, _Readings(codes, near, known, scatter), _HEAT[turn])
        data = replace(data, noise=np.sqrt(known**2 + excess))
        x = _mode(data, x, _Readings(codes, near, data.noise, scatter))
        if turn < _TURNS - 1:
            scatter, score = _most_likely_scatter(data, x, codes, near, sigma_prior)
    readings = _Readings(codes, near, data.noise, scatter)
    mu, jac = data.linearised(x)
    slope = readings.whitened(jac)
    precision = np.eye(x.size) + (slope @ prior.root).T @ (slope @ prior.root)
    residual = readings.whitened((data.log_value - mu)[:, None])[: near.size, 0]
    return StepTimeModel(
        belief=Normal(prior.mean + prior.root @ x, prior.root @ np.linalg.inv(np.linalg.cholesky(precision)).T),
        num_components=data.num_components,
        scatter=scatter,
        codes=codes[near],
        weights=readings.root.T @ residual,
        root=readings.root,
        jacobian=slope[: near.size],
        is_stalled=data.noise**2 - known**2 > (1 / _STALLED - 1) * (scatter.own + scatter.noise + known**2),
        log_evidence=score,
    )


def _kernel(left: FloatArray, right: FloatArray, scatter: Scatter) -> FloatArray:
    from scipy.spatial.distance import cdist

    return scatter.own * np.exp(-np.asarray(cdist(left, right, "cityblock"), float) / scatter.reach)


class _Readings:
    """Covariance of the trials' readings around the formulas: a block for those that are near, the rest apart."""

    def __init__(
        self,
        codes: FloatArray,
        near: IntArray,
        noise: FloatArray,
        scatter: Scatter,
        correlation: FloatArray | None = None,
    ) -> None:
        num = noise.size
        self.near, self.rest = near, np.setdiff1d(np.arange(num), near)
        unit = replace(scatter, own=1.0)
        shape = _kernel(codes[near], codes[near], unit) if correlation is None else correlation
        block = scatter.own * shape + np.diag(scatter.noise + noise[near] ** 2 + 1e-9)
        lower = np.linalg.cholesky(block)
        self.root = np.linalg.inv(lower)
        self.apart = np.sqrt(scatter.own + scatter.noise + noise[self.rest] ** 2)
        self.log_determinant = 2 * float(np.log(np.diag(lower)).sum()) + 2 * float(np.log(self.apart).sum())

    def whitened(self, columns: FloatArray) -> FloatArray:
        """Columns (n, m) with uncorrelated rows of variance 1; those that are near come first."""
        return np.vstack([self.root @ columns[self.near], columns[self.rest] / self.apart[:, None]])


def _excess(data: PositiveSum, x: FloatArray, readings: _Readings, heat: float) -> FloatArray:
    """Variance that rows far slower than formulas and neighbours say have beside the usual one, (n,).

    Stalls (a slow node, a congested network, a collective that falls back) make some runs many times slower and none
    faster, so that readings above what is expected have the tail of Student's t with `_TAIL` degrees of freedom, as a
    mixture of normals (Lange et al., 1989): a row's variance grows with its residual, left out of what it is held to
    (Rasmussen & Williams, eq. 5.12). `readings` have the usual covariance alone; `heat` multiplies it: at first the
    formulas are given the chance to explain slow rows by what they have in common.
    """
    residual = data.log_value - data.linearised(x)[0]
    precision = readings.root.T @ readings.root
    usual = np.empty(residual.size)
    usual[readings.near], usual[readings.rest] = 1 / np.diag(precision), readings.apart**2
    residual[readings.near] = usual[readings.near] * (precision @ residual[readings.near])
    weight = (_TAIL + 1) / (_TAIL + np.maximum(residual, 0.0) ** 2 / (heat * usual))
    return usual * np.maximum(1 / weight - 1, 0.0)


def _mode(data: PositiveSum, x: FloatArray, readings: _Readings) -> FloatArray:
    """Whitened parameters at the mode under a full covariance of the readings: damped Gauss-Newton."""

    def loss(at: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        mu, jac = data.linearised(at)
        both = readings.whitened(np.column_stack([data.log_value - mu, jac @ data.prior.root]))
        error = both[:, 0]
        return float(0.5 * at @ at + 0.5 * error @ error), error, both[:, 1:]

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
    data: PositiveSum, x: FloatArray, codes: FloatArray, near: IntArray, sigma_prior: Prior
) -> tuple[Scatter, float]:
    """The scatter with the highest marginal likelihood, parameters integrated out around x, and the log of that."""
    mu, jac = data.linearised(x)
    # residual from the prior's mean, as far as the formulas are linear around x
    error = data.log_value - mu + jac @ (data.prior.root @ x)
    columns = np.column_stack([error, jac @ data.prior.root])
    correlations = {r: _kernel(codes[near], codes[near], Scatter(1.0, r, 0.0)) for r in _REACHES}

    def score(place: float, share: float, reach: float) -> tuple[float, Scatter]:
        variance = float(np.exp(2 * (sigma_prior.mean + sigma_prior.width * place)))
        scatter = Scatter(share * variance, reach, (1 - share) * variance)
        readings = _Readings(codes, near, data.noise, scatter, correlations[reach])
        both = readings.whitened(columns)
        slope = both[:, 1:].T @ both
        lower = np.linalg.cholesky(slope[:, 1:] + np.eye(x.size))
        fitted = np.linalg.solve(lower, slope[:, 0])
        value = -0.5 * float(both[:, 0] @ both[:, 0] - fitted @ fitted) - 0.5 * readings.log_determinant
        return value - float(np.log(np.diag(lower)).sum()) - 0.5 * place**2, scatter

    # how much first; then how far it reaches and how much stays, with the amounts next to the best
    amounts = [score(place, _SHARES[1], _REACHES[1])[0] for place in _SIGMAS]
    middle = int(np.argmax(amounts))
    around = _SIGMAS[max(middle - 1, 0) : middle + 2]
    best_score, best = max(
        (score(place, share, reach) for reach in _REACHES for share in _SHARES for place in around),
        key=lambda found: found[0],
    )
    return best, best_score
