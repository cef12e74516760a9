"""All that is believed at one moment: step time, peak memory and validity, fitted to every trial so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.models.basis import FloatArray
from infrarsi_hpc.models.design import Design, Points
from infrarsi_hpc.models.memory import PeakMemoryModel, fit_peak_memory
from infrarsi_hpc.models.normal import Normal
from infrarsi_hpc.models.owners import MOST_JUDGED, TEXTBOOK, TEXTBOOK_TRUST, Owner, Trust, pooled, trusted
from infrarsi_hpc.models.problem import Problem
from infrarsi_hpc.models.rows import memory_rows, time_rows
from infrarsi_hpc.models.step_time import StepTimeModel, View, fit_step_time
from infrarsi_hpc.models.validity import BREAKING, RUNNING, ValidityModel, fit_validity


@dataclass(frozen=True)
class Beliefs:
    """Fitted models with the design that feeds them.

    `points` are the campaign's own observations, in their order.
    """

    problem: Problem
    design: Design
    observations: tuple[Observation, ...]
    points: Points
    time: StepTimeModel
    memory: PeakMemoryModel
    validity: ValidityModel
    trust: Trust = field(default_factory=Trust)

    def log_seconds(self, points: Points) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of log step time, (n,) each."""
        return self.time.predict(self.time_view(points))

    def time_view(self, points: Points) -> View:
        """What the step-time model sees of points."""
        matrices = self.design.time(points)
        return View(matrices.components, matrices.factors, self.design.codes(points))

    def log_gib(self, points: Points) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of log peak memory, (n,) each."""
        matrices = self.design.memory(points)
        return self.memory.predict(matrices.components, matrices.factors)

    def probability_fits(self, points: Points) -> FloatArray:
        """Probability that the peak stays below the limit, (n,)."""
        matrices = self.design.memory(points)
        return self.memory.probability_fits(matrices.components, self.problem.memory_limit_gib, matrices.factors)

    def probability_valid(self, points: Points) -> FloatArray:
        """Probability of running at all, (n,)."""
        return self.validity.probability_valid(self.design.features(points))

    @cached_property
    def measured(self) -> list[int]:
        """Places of the observations that finished, are believed and have a step time, stalled ones aside.

        What stalled was slow, whatever the formulas say; only where nothing else ran it is what there is.
        """
        index = time_rows(self.observations).index
        clear = index[~self.time.is_stalled[: index.size]]
        return [int(i) for i in (clear if clear.size else index)]

    def points_of(self, candidates: Sequence[Candidate]) -> Points:
        """Columns for candidates. Their patches must be known to the problem or to an observation."""
        return self.design.points([(c.configuration, c.patches) for c in candidates])


def fit_beliefs(problem: Problem, observations: Sequence[Observation]) -> Beliefs:
    """Fit everything to the campaign's own observations, starting from what the problem's owners believe.

    Raises
    ------
    ObservationRefused
        A measured time or peak is not a finite number above zero.
    """
    own = tuple(observations)
    known = [p.sha256 for p in problem.patches]
    seen = [sha for row in own for sha in row.patches]
    design = Design(problem, tuple(dict.fromkeys([*known, *seen])))
    points = design.points([(row.configuration, row.patches) for row in own])
    features = design.features(points)
    is_broken = np.array([row.outcome in BREAKING for row in own], bool)
    is_counted = is_broken | np.array([row.outcome in RUNNING for row in own], bool)
    time, time_trust = _fit_time(design, points, own)
    memory, memory_trust = _fit_memory(design, points, own)
    return Beliefs(
        problem=problem,
        design=design,
        observations=own,
        points=points,
        time=time,
        memory=memory,
        validity=fit_validity(features[is_counted], is_broken[is_counted]),
        trust=Trust(time_trust, memory_trust),
    )


def _fit_time(design: Design, points: Points, own: Sequence[Observation]) -> tuple[StepTimeModel, dict[str, float]]:
    rows = time_rows(own)
    near = points.take(rows.index)
    matrices, codes = design.time(near), design.codes(near)
    noise = np.hypot(rows.noise, design.problem.run_noise)

    def fitted(prior: Normal, num: int, has_local: bool) -> StepTimeModel:
        view = View(matrices.components[:num], matrices.factors[:num], codes[:num])
        seconds = np.exp(rows.log_seconds[:num])
        return fit_step_time(view, seconds, prior, noise=noise[:num], has_local=has_local)

    owners = design.problem.owners
    beliefs = [design.time_prior, *(o.time.within(design.time_names, design.time_prior) for o in owners)]
    trusts = _trust(owners, beliefs, lambda prior: fitted(prior, MOST_JUDGED, False).log_evidence)
    return fitted(pooled(beliefs, trusts), len(near), True), trusts


def _fit_memory(design: Design, points: Points, own: Sequence[Observation]) -> tuple[PeakMemoryModel, dict[str, float]]:
    rows = memory_rows(own, design.problem.memory_limit_gib)
    near = points.take(rows.index)
    matrices = design.memory(near)

    def fitted(prior: Normal, num: int) -> PeakMemoryModel:
        peaks, censoring = np.exp(rows.log_gib[:num]), rows.censoring[:num]
        return fit_peak_memory(matrices.components[:num], peaks, censoring, prior, factors=matrices.factors[:num])

    owners = design.problem.owners
    beliefs = [design.memory_prior, *(o.memory.within(design.memory_names, design.memory_prior) for o in owners)]
    trusts = _trust(owners, beliefs, lambda prior: fitted(prior, MOST_JUDGED).posterior.log_evidence)
    return fitted(pooled(beliefs, trusts), len(near)), trusts


def _trust(
    owners: Sequence[Owner], beliefs: Sequence[Normal], log_evidence: Callable[[Normal], float]
) -> dict[str, float]:
    """Shares of the textbook and of each owner."""
    if not owners:
        return {TEXTBOOK: 1.0}
    total = sum(owner.trust for owner in owners)
    weights = [TEXTBOOK_TRUST, *((1 - TEXTBOOK_TRUST) * owner.trust / total for owner in owners)]
    names = [TEXTBOOK, *(owner.name for owner in owners)]
    return trusted(names, weights, [log_evidence(belief) for belief in beliefs])
