"""Joint normal beliefs about parameters: from separate priors, mixed by weight, and as what whitened numbers become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from infrarsi_hpc.models.basis import FloatArray, Prior


@dataclass(frozen=True)
class Normal:
    """A normal belief: parameters are `mean + root @ x` with x standard normal.

    Attributes
    ----------
    mean : (p,)
    root : (p, p)
        Any square root of the covariance: root @ root.T is the covariance.
    """

    mean: FloatArray
    root: FloatArray

    @property
    def width(self) -> FloatArray:
        """Standard deviation of each parameter, (p,)."""
        width: FloatArray = np.sqrt((self.root**2).sum(axis=1))
        return width

    @property
    def covariance(self) -> FloatArray:
        """(p, p)."""
        return self.root @ self.root.T


def separate(priors: Sequence[Prior]) -> Normal:
    """Independent parameters with these priors."""
    return Normal(np.array([p.mean for p in priors], float), np.diag(np.array([p.width for p in priors], float)))


def from_covariance(mean: FloatArray, covariance: FloatArray) -> Normal:
    """A belief with this covariance; directions that rounding made negative have none."""
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    return Normal(np.asarray(mean, float), vectors * np.sqrt(np.maximum(values, 1e-12)))


def mixed(beliefs: Sequence[Normal], weights: Sequence[float]) -> Normal:
    """The normal with mean and covariance of a mixture: where the parts disagree it is wide.

    `weights` are not negative and not all zero.
    """
    share = np.array(weights, float) / float(np.sum(weights))
    if np.count_nonzero(share) == 1:
        return beliefs[int(np.argmax(share))]
    mean = np.sum([s * b.mean for s, b in zip(share, beliefs, strict=True)], axis=0)
    covariance = np.zeros((mean.size, mean.size))
    for s, belief in zip(share, beliefs, strict=True):
        apart = belief.mean - mean
        covariance += s * (belief.covariance + np.outer(apart, apart))
    return from_covariance(mean, covariance)
