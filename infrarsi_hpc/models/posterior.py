"""Fit a positive sum and say how sure we are: mode by L-BFGS-B, spread by Laplace, scatter by evidence.

The scatter sigma is not fitted beside the parameters: with as many parameters as trials the mode would explain every
reading and call sigma zero. It is weighed on a grid by the Laplace evidence, in which the parameters are integrated
out (MacKay 2003, ch. 27 and 28). Around the mode the posterior of (log theta, log-factors) is taken as normal. Means
and widths of single predictions come from the linearisation; probabilities that must stay monotone (fits or not) are
averages over a fixed set of draws, each of which has positive parts, so that more is never less likely to be too much.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infrarsi_hpc.models.basis import FloatArray, Prior
from infrarsi_hpc.models.positive_sum import PositiveSum, checked_matrices, log_sum_jacobian

#: Draws that stand for the posterior, in pairs mirrored at the mode.
NUM_DRAWS = 128
#: Whitened parameters are searched within this many prior widths.
_REACH = 8.0
#: The prior alone gives curvature 1; a mode on a flank may have less, but a direction is never freer than this.
_LEAST_CURVATURE = 0.3
#: Places of the grid of log sigma, in prior widths from the prior's mean.
_GRID = np.array([2.0, 1.25, 0.5, -0.25, -1.0, -1.75, -2.5])


@dataclass(frozen=True)
class Posterior:
    """What is believed about the parameters of a positive sum.

    Attributes
    ----------
    mode : (p,)
        (log theta, log-factors).
    covariance : (p, p)
    sigma
        Scatter of log y that neither components nor known noise explain: its mean (of logs).
    num_components, num_factors
        How `mode` divides.
    draws, drawn_sigma : (NUM_DRAWS, p), (NUM_DRAWS,)
        Fixed draws from the normal around the mode, and of sigma from its weights.
    log_evidence
        Log of how probable the rows were under the prior, up to what all priors share.
    """

    mode: FloatArray
    covariance: FloatArray
    sigma: float
    num_components: int
    num_factors: int
    draws: FloatArray
    drawn_sigma: FloatArray
    log_evidence: float = 0.0

    def latent(self, components: FloatArray, factors: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of log y without scatter, (n,) each."""
        mu, jac = self.linearised(components, factors)
        return mu, np.sqrt(np.maximum(np.einsum("ij,ij->i", jac @ self.covariance, jac), 0.0))

    def linearised(self, components: FloatArray, factors: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
        """mu (n,) at the mode and its derivatives (n, p)."""
        components, factors = checked_matrices(components, factors, self.num_factors)
        return log_sum_jacobian(components, factors, self.mode)

    def drawn(self, components: FloatArray, factors: FloatArray | None = None) -> FloatArray:
        """Log y without scatter under each draw, (NUM_DRAWS, n)."""
        components, factors = checked_matrices(components, factors, self.num_factors)
        k = self.num_components
        total = np.exp(self.draws[:, :k]) @ components.T
        logs: FloatArray = np.log(total) + self.draws[:, k:] @ factors.T
        return logs


def fit(problem: PositiveSum, sigma_prior: Prior) -> Posterior:
    """Mode, Laplace spread and scatter of a positive sum; with no rows this is the prior."""
    num = problem.prior.mean.size
    sigmas = np.exp(sigma_prior.mean + sigma_prior.width * _GRID)
    log_weights = -0.5 * _GRID**2
    modes, roots = [], []
    x = np.zeros(num)
    for i, sigma in enumerate(sigmas):
        value = 0.0
        curvature = np.eye(num)
        if problem.log_value.size:
            # from wide to narrow scatter, each fit starting where the last one ended
            x, value = find_mode(problem, x, float(sigma))
            curvature = problem.hessian(x, float(sigma))
        values, vectors = np.linalg.eigh(curvature)
        values = np.maximum(values, _LEAST_CURVATURE)
        log_weights[i] -= value + 0.5 * float(np.log(values).sum())
        modes.append(x)
        roots.append(vectors / np.sqrt(values))
    weights = np.exp(log_weights - log_weights.max())
    best = int(np.argmax(weights))
    scaled = problem.prior.root @ roots[best]
    mode = problem.prior.mean + problem.prior.root @ modes[best]
    return Posterior(
        mode=mode,
        covariance=scaled @ scaled.T,
        sigma=float(np.exp(weights @ np.log(sigmas) / weights.sum())),
        num_components=problem.num_components,
        num_factors=int(problem.factors.shape[1]),
        draws=mode + standard_draws(num) @ scaled.T,
        drawn_sigma=_spread(sigmas, weights / weights.sum()),
        log_evidence=float(log_weights.max() + np.log(weights.mean())),
    )


def find_mode(problem: PositiveSum, start: FloatArray, sigma: float) -> tuple[FloatArray, float]:
    """Whitened parameters at the mode for a given scatter, and the negative log posterior there."""
    from scipy.optimize import minimize

    found = minimize(
        problem.objective,
        start,
        args=(sigma,),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-_REACH, _REACH)] * start.size,
        options={"maxiter": 300, "ftol": 1e-7, "gtol": 1e-3, "maxcor": 20},
    )
    return np.asarray(found.x, float), float(found.fun)


def standard_draws(num: int) -> FloatArray:
    """(NUM_DRAWS, num) standard normal numbers, mirrored at zero: always the same ones, so that fits repeat."""
    half = np.random.Generator(np.random.PCG64(20)).standard_normal((NUM_DRAWS // 2, num))
    return np.vstack([half, -half])


def _spread(values: FloatArray, weights: FloatArray) -> FloatArray:
    """(NUM_DRAWS,) of the values in proportion to their weights, shuffled the same way every time."""
    places = (np.arange(NUM_DRAWS) + 0.5) / NUM_DRAWS
    drawn = values[np.minimum(np.searchsorted(np.cumsum(weights), places), values.size - 1)]
    shuffled: FloatArray = np.random.Generator(np.random.PCG64(21)).permutation(drawn)
    return shuffled
