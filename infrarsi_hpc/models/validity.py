"""Which settings and patches cannot run: learned from failures that are not about memory.

Every setting that differs from the baseline, and every patch, may break a trial on its own (a noisy-or). A trial
that finished clears all of its settings; a failure blames those that have not been cleared. Memory and infrastructure
failures never count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.models.basis import BoolArray, FloatArray

#: Endings that speak against the configuration or patch itself.
BREAKING = frozenset({Outcome.INVALID, Outcome.CRASHED, Outcome.DIVERGED, Outcome.REFUSED, Outcome.TIMEOUT})
#: Endings that show that it can run (an out-of-memory trial was never judged: it shows neither).
RUNNING = frozenset({Outcome.OK})
#: A setting breaks a trial with this probability before anything is seen, held as strongly as so many trials.
_PRIOR_BROKEN = 0.02
_PRIOR_TRIALS = 1.0
_ROUNDS = 60


@dataclass(frozen=True)
class ValidityModel:
    """Probability that each feature (setting or patch) breaks a trial, (d,)."""

    broken: FloatArray

    def probability_valid(self, features: BoolArray) -> FloatArray:
        """Probability that a trial with these features runs, (n,)."""
        return np.exp(features @ np.log1p(-self.broken))


def fit_validity(features: BoolArray, has_failed: BoolArray) -> ValidityModel:
    """Blame features for failures, by expectation-maximisation of a noisy-or.

    Parameters
    ----------
    features : (n, d)
        Whether a trial had a setting (other than the baseline's) or patch.
    has_failed : (n,)
        Whether it broke; the others ran.
    """
    broken = np.full(features.shape[1], _PRIOR_BROKEN)
    if not has_failed.any():
        seen = features.sum(axis=0)
        return ValidityModel(_PRIOR_BROKEN * _PRIOR_TRIALS / (_PRIOR_TRIALS + seen))
    active = features.astype(float)
    seen = active.sum(axis=0)
    failed = active[has_failed]
    for _ in range(_ROUNDS):
        any_breaks = 1 - np.exp(failed @ np.log1p(-broken))
        blame = failed * broken / np.maximum(any_breaks, 1e-9)[:, None]
        broken = (blame.sum(axis=0) + _PRIOR_BROKEN * _PRIOR_TRIALS) / (seen + _PRIOR_TRIALS)
        broken = np.clip(broken, 1e-6, 0.98)
    return ValidityModel(broken)
