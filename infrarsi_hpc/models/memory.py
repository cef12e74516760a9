"""Peak memory a device: log M = log(sum theta_k c_k) + log-factors + scatter, out-of-memory trials included.

A trial that ran out of memory is not waste: its peak would have been more than the bound. Leaving such trials out
makes every estimate too low (tests/models/test_memory.py shows by how much).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infrarsi_hpc.models.basis import FloatArray, IntArray, Prior
from infrarsi_hpc.models.normal import Normal
from infrarsi_hpc.models.positive_sum import checked
from infrarsi_hpc.models.posterior import Posterior, fit
from infrarsi_hpc.models.rows import Censoring, NoUpperEstimate, ObservationRefused

__all__ = ["Censoring", "PeakMemoryModel", "fit_peak_memory"]

#: Scatter of peaks around the formulas: 0.18 over 3,700 runs of one framework (docs: memory model).
SIGMA_PRIOR = Prior(mean=float(np.log(0.12)), width=0.6)


@dataclass(frozen=True)
class PeakMemoryModel:
    """A fitted model. `has_upper_estimate` is false when every peak seen is censored from above."""

    posterior: Posterior
    has_upper_estimate: bool
    num_exact: int
    num_censored: int

    @property
    def theta(self) -> FloatArray:
        """Scale of each component at the mode, (k,)."""
        return np.exp(self.posterior.mode[: self.posterior.num_components])

    @property
    def sigma(self) -> float:
        """Scatter of log peaks."""
        return self.posterior.sigma

    def predict(self, components: FloatArray, factors: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of log(peak in GiB) of one more trial, (n,) each."""
        mean, sd = self.posterior.latent(components, factors)
        return mean, np.hypot(sd, self.sigma)

    def interval_gib(
        self, components: FloatArray, factors: FloatArray | None = None, confidence: float = 0.9
    ) -> tuple[FloatArray, FloatArray]:
        """Lower and upper bound of the peak, GiB, (n,) each.

        Raises
        ------
        NoUpperEstimate
            Every trial so far ran out of memory: only a lower bound is known (`lower_gib` gives it).
        """
        if not self.has_upper_estimate:
            raise NoUpperEstimate(
                "no upper estimate of peak memory",
                why="every trial so far ran out of memory",
                fix="measure a configuration that fits: smaller micro-batches, full recompute, more devices",
            )
        from scipy.special import ndtri

        mean, sd = self.predict(components, factors)
        half = float(ndtri(0.5 + confidence / 2)) * sd
        return np.exp(mean - half), np.exp(mean + half)

    def lower_gib(
        self, components: FloatArray, factors: FloatArray | None = None, confidence: float = 0.95
    ) -> FloatArray:
        """The peak lies above this with the given confidence, GiB, (n,)."""
        from scipy.special import ndtri

        mean, sd = self.predict(components, factors)
        return np.exp(mean - float(ndtri(confidence)) * sd)

    def probability_fits(
        self, components: FloatArray, capacity_gib: float | None, factors: FloatArray | None = None
    ) -> FloatArray:
        """Probability that the peak stays below the capacity, (n,); 1 without a capacity.

        Raises
        ------
        ObservationRefused
            The capacity is not a finite number above zero.
        """
        if capacity_gib is None:
            return np.ones(np.atleast_2d(components).shape[0])
        chance: FloatArray = self.drawn_fits(components, capacity_gib, factors).mean(axis=0)
        return chance

    def drawn_fits(self, components: FloatArray, capacity_gib: float, factors: FloatArray | None = None) -> FloatArray:
        """Probability of fitting under each draw of the parameters, (NUM_DRAWS, n)."""
        from scipy.special import ndtr

        if not np.isfinite(capacity_gib) or capacity_gib <= 0:
            raise ObservationRefused(
                f"memory capacity is {capacity_gib} GiB", why="a capacity is a finite number above zero"
            )
        log_peak = self.posterior.drawn(components, factors)
        fits: FloatArray = ndtr((np.log(capacity_gib) - log_peak) / self.posterior.drawn_sigma[:, None])
        return fits


def fit_peak_memory(
    components: FloatArray,
    peak_gib: FloatArray,
    censoring: IntArray,
    prior: Normal,
    *,
    factors: FloatArray | None = None,
    noise: FloatArray | None = None,
    sigma_prior: Prior = SIGMA_PRIOR,
) -> PeakMemoryModel:
    """Fit the scale of each memory component by penalised censored likelihood.

    Parameters
    ----------
    components : (n, k)
        Analytic GiB a device and component, one row a trial.
    peak_gib : (n,)
        Measured peak; the bound where the trial ran out of memory; the limit where it ran and the peak is unknown.
    censoring : (n,)
        `Censoring.NONE`, `RIGHT` (out of memory) or `LEFT` (ran, peak unknown).
    prior
        Of the logs of the components' scales and of the log-factors, k + f parameters.
    factors : (n, f)
        Columns whose log-factors multiply the whole (patches, settings outside the formulas).
    noise : (n,)
        Extra relative standard error of each row (experience from elsewhere).

    Raises
    ------
    ObservationRefused
        A peak is not a finite number above zero, or a component negative or not finite.
    """
    censoring = np.asarray(censoring, np.int64)
    problem = checked(components, factors, prior, peak_gib, "a peak or bound", censoring, noise)
    num_exact = int((censoring == Censoring.NONE).sum())
    return PeakMemoryModel(
        posterior=fit(problem, sigma_prior),
        has_upper_estimate=bool((censoring != Censoring.RIGHT).any()),
        num_exact=num_exact,
        num_censored=int(censoring.size) - num_exact,
    )
