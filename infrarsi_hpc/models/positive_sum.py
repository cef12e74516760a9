"""The likelihood that peak memory and step time share: a sum of positive parts, seen through a logarithm.

    log y_i = log(sum_k theta_k c_ik) + sum_j z_ij f_j + e_i,   e_i ~ N(0, sigma^2 + noise_i^2)

theta_k = exp(a_k) > 0 with normal a_k, log-factors f_j normal. y may be known exactly, only from below
(right-censored) or only from above (left-censored). Everything here works on whitened parameters
x with p = mean + root x and p = (a, f), so that the prior is a standard normal and the optimiser sees one scale.
Tobin (1958) for the censored terms; Klein & Moeschberger (2003), sec. 3.5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infrarsi_hpc.models.basis import FloatArray, IntArray
from infrarsi_hpc.models.normal import Normal
from infrarsi_hpc.models.rows import ObservationRefused

_HALF_LOG_2PI = 0.5 * float(np.log(2 * np.pi))


@dataclass(frozen=True)
class PositiveSum:
    """Data and priors of one fit.

    Attributes
    ----------
    components : (n, k)
        Analytic parts of each row, at least 0, with a positive sum.
    factors : (n, f)
        Columns of the log-factors.
    log_value : (n,)
        Log of the measured value or of the bound.
    censoring : (n,)
        `Censoring`.
    noise : (n,)
        Known relative standard error of each row, beside sigma.
    prior
        Of (a, f), k + f parameters.
    """

    components: FloatArray
    factors: FloatArray
    log_value: FloatArray
    censoring: IntArray
    noise: FloatArray
    prior: Normal

    @property
    def num_components(self) -> int:
        """How many positive parts there are."""
        return int(self.components.shape[1])

    def objective(self, x: FloatArray, sigma: float) -> tuple[float, FloatArray]:
        """Negative log posterior (without the prior's constant) and its gradient at whitened parameters x."""
        mu, jac = self.linearised(x)
        value, slope, _ = self._pointwise(mu, sigma)
        return float(0.5 * x @ x - value.sum()), x - self.prior.root.T @ (jac.T @ slope)

    def hessian(self, x: FloatArray, sigma: float) -> FloatArray:
        """Second derivatives of `objective` at x."""
        mu, jac = self.linearised(x)
        _, slope, curvature = self._pointwise(mu, sigma)
        k = self.num_components
        second = (jac * curvature[:, None]).T @ jac
        shares = jac[:, :k]
        # d2 log(sum) / da da' = diag(w) - w w'
        second[:k, :k] += np.diag(shares.T @ slope) - (shares * slope[:, None]).T @ shares
        result: FloatArray = np.eye(x.size) - self.prior.root.T @ second @ self.prior.root
        return result

    def linearised(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """mu (n,) at x and its derivatives (n, k + f) by (a, f)."""
        return log_sum_jacobian(self.components, self.factors, self.prior.mean + self.prior.root @ x)

    def _pointwise(self, mu: FloatArray, sigma: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Log-likelihood of each row, with its first and second derivative by mu."""
        from scipy.special import log_ndtr

        variance = sigma**2 + self.noise**2
        s = np.sqrt(variance)
        u = (self.log_value - mu) / s
        value = -0.5 * u**2 - np.log(s) - _HALF_LOG_2PI
        slope, curvature = u / s, -1 / variance
        is_censored = self.censoring != 0
        if is_censored.any():
            sign = self.censoring.astype(float)
            w = -sign * u
            log_cdf = log_ndtr(w)
            # hazard phi / Phi in logs: far in the tail both underflow, their ratio does not
            hazard = np.exp(-0.5 * w**2 - _HALF_LOG_2PI - log_cdf)
            value = np.where(is_censored, log_cdf, value)
            slope = np.where(is_censored, sign * hazard / s, slope)
            curvature = np.where(is_censored, -hazard * (hazard + w) / variance, curvature)
        return value, slope, curvature


def log_sum_jacobian(components: FloatArray, factors: FloatArray, p: FloatArray) -> tuple[FloatArray, FloatArray]:
    """mu (n,) and its derivatives (n, k + f) by (a, f) at parameters p = (a, f)."""
    k = components.shape[1]
    parts = components * np.exp(p[:k])
    total = parts.sum(axis=1)
    mu = np.log(total) + factors @ p[k:]
    return mu, np.hstack([parts / total[:, None], factors])


def checked(
    components: FloatArray,
    factors: FloatArray | None,
    prior: Normal,
    value: FloatArray,
    what: str,
    censoring: IntArray | None,
    noise: FloatArray | None,
) -> PositiveSum:
    """Put data and prior together once they fit each other.

    Raises
    ------
    ObservationRefused
        A number is not finite, `value` not above zero, a component negative, or a row has no positive component.
    ValueError
        Shapes do not fit each other.
    """
    components = np.atleast_2d(np.asarray(components, float))
    components, factors = checked_matrices(components, factors, prior.mean.size - components.shape[1])
    n = components.shape[0]
    value = np.asarray(value, float)
    noise = np.zeros(n) if noise is None else np.asarray(noise, float)
    censoring = np.zeros(n, np.int64) if censoring is None else np.asarray(censoring, np.int64)
    if not value.shape == censoring.shape == noise.shape == (n,):
        raise ValueError(f"{n} rows of components need as many values")
    if not (np.isfinite(value).all() and (value > 0).all()):
        raise ObservationRefused(
            f"{what} is not a finite number above zero",
            why="its logarithm does not exist",
            fix="leave the trial out, or record it as failed",
        )
    if not np.isfinite(noise).all() or (noise < 0).any():
        raise ObservationRefused("a row's noise is negative or not finite", fix="give a relative standard error")
    return PositiveSum(components, factors, np.log(value), censoring, noise, prior)


def checked_matrices(
    components: FloatArray, factors: FloatArray | None, num_factors: int
) -> tuple[FloatArray, FloatArray]:
    """Components and factors as float matrices of the same length.

    Raises
    ------
    ObservationRefused
        A number is not finite, a component negative, or a row has no positive component.
    ValueError
        Shapes do not fit each other.
    """
    components = np.atleast_2d(np.asarray(components, float))
    n = components.shape[0]
    factors = np.zeros((n, num_factors)) if factors is None else np.asarray(factors, float)
    if factors.shape != (n, num_factors):
        raise ValueError(f"{n} rows of {num_factors} factors are needed, not {factors.shape}")
    if not np.isfinite(components).all() or not np.isfinite(factors).all() or (components < 0).any():
        raise ObservationRefused(
            "an analytic component is negative or not finite", why="the workload's formulas met settings they cannot"
        )
    if n and not (components.sum(axis=1) > 0).all():
        raise ObservationRefused("a row has no positive component", why="the workload's formulas give nothing for it")
    return components, factors
