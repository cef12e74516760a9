"""Whose belief: priors with owners, and how much each owner is trusted once trials tell.

The textbook is always an owner; experience of other campaigns is one for each family of runs that are alike. An owner's
trust is its share of the evidence: how probable this campaign's first trials were under its beliefs, times what it was
trusted before (Bayesian model averaging; Hoeting et al., 1999). What enters the models is the mixture as one
normal: owners that disagree make it wide, and one that was wrong has no weight left after a few trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from infrarsi_hpc.models.basis import FloatArray
from infrarsi_hpc.models.normal import Normal, from_covariance, mixed

#: What the textbook is trusted before any trial, where there are others.
TEXTBOOK, TEXTBOOK_TRUST = "textbook", 0.25
#: Trials that trust is told from: the first ones, later ones would be judged by models that know the campaign.
MOST_JUDGED = 32


@dataclass(frozen=True)
class Named:
    """A normal belief about named parameters."""

    names: tuple[str, ...]
    belief: Normal

    def within(self, names: Sequence[str], rest: Normal) -> Normal:
        """The same for parameters `names`: those that this one does not have are as in `rest`, and independent."""
        place = {name: i for i, name in enumerate(self.names)}
        here = [j for j, name in enumerate(names) if name in place]
        there = [place[names[j]] for j in here]
        if not here:
            return rest
        mean, covariance = rest.mean.copy(), rest.covariance
        mean[here] = self.belief.mean[there]
        covariance[here, :] = 0.0
        covariance[:, here] = 0.0
        covariance[np.ix_(here, here)] = self.belief.covariance[np.ix_(there, there)]
        return from_covariance(mean, covariance)


@dataclass(frozen=True)
class Owner:
    """Somebody with beliefs about step time and peak memory; `trust` is before this campaign's trials, a weight."""

    name: str
    time: Named
    memory: Named
    trust: float = 1.0
    num_trials: int = 0


@dataclass(frozen=True)
class Trust:
    """What each owner is trusted now, shares that sum to 1, by name."""

    time: Mapping[str, float] = field(default_factory=lambda: {TEXTBOOK: 1.0})
    memory: Mapping[str, float] = field(default_factory=lambda: {TEXTBOOK: 1.0})


@dataclass(frozen=True)
class Standing:
    """How an owner fares: shares of trust before any trial and now, and the trials that its beliefs rest on."""

    name: str
    num_trials: int
    before: float
    time: float
    memory: float


def trusted(names: Sequence[str], weights: Sequence[float], log_evidence: Sequence[float]) -> dict[str, float]:
    """Share of each owner: its weight before, times how probable the trials were under its beliefs."""
    logs = np.log(np.array(weights, float)) + np.array(log_evidence, float)
    shares = np.exp(logs - logs.max())
    return dict(zip(names, (float(share) for share in shares / shares.sum()), strict=True))


def pooled(beliefs: Sequence[Normal], trusts: Mapping[str, float]) -> Normal:
    """The owners' beliefs as one, by their shares; shares below a thousandth are left out."""
    shares = np.array(list(trusts.values()), float)
    return mixed(beliefs, [float(s) for s in np.where(shares >= 1e-3, shares, 0.0)])


def hierarchy(groups: Sequence[Named], textbook: Named, between: FloatArray) -> Named:
    """What is believed of one more group after some: a normal hierarchy around a common mean.

    Parameters
    ----------
    groups
        Posterior beliefs of each group, all fitted with `textbook` as their prior where names agree.
    textbook
        Prior of the common mean, p parameters: the union of all names.
    between : (p,)
        Expected standard deviation between groups; it is learned with the weight of two groups.

    Expectation-maximisation of the variances; Gelman et al. (2013), Bayesian Data Analysis, ch. 5 and 15.
    """
    names, size = textbook.names, len(textbook.names)
    prior_precision: FloatArray = np.asarray(np.linalg.inv(textbook.belief.covariance), np.float64)
    prior_vector = prior_precision @ textbook.belief.mean
    told: list[tuple[FloatArray, FloatArray]] = []
    for group in groups:
        whole = group.within(names, textbook.belief)
        precision = np.linalg.inv(whole.covariance)
        # what the group's trials alone say: its posterior without the prior
        told.append((precision - prior_precision, precision @ whole.mean - prior_vector))
    tau2 = between**2
    mean: FloatArray = textbook.belief.mean
    covariance: FloatArray = textbook.belief.covariance
    for _ in range(20):
        precision, vector = prior_precision.copy(), prior_vector.copy()
        for information, weighted in told:
            shrunk = np.asarray(np.linalg.inv(np.eye(size) + information * tau2[None, :]), np.float64)
            precision += shrunk @ information
            vector += shrunk @ weighted
        covariance = np.asarray(np.linalg.inv(0.5 * (precision + precision.T)), np.float64)
        mean = np.asarray(covariance @ vector, np.float64)
        spread = 2.0 * between**2
        for information, weighted in told:
            own = np.linalg.inv(information + np.diag(1 / tau2))
            spread = spread + np.asarray(
                (own @ (weighted + mean / tau2) - mean) ** 2 + np.maximum(np.diag(own), 0.0), np.float64
            )
        tau2 = np.maximum(spread / (2 + len(told)), 1e-6)
    return Named(names, from_covariance(mean, covariance + np.diag(tau2)))
