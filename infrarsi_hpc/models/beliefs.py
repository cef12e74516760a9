"""All that is believed at one moment: step time, peak memory and validity, fitted to every trial so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.knobs import Configuration
from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.models.basis import FloatArray
from infrarsi_hpc.models.design import Design, Matrices, Points
from infrarsi_hpc.models.memory import PeakMemoryModel, fit_peak_memory
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
        """Places of the observations that finished, are believed and have a step time."""
        return [int(i) for i in time_rows(self.observations).index]

    def points_of(self, candidates: Sequence[Candidate]) -> Points:
        """Columns for candidates. Their patches must be known to the problem or to an observation."""
        return self.design.points([(c.configuration, c.patches) for c in candidates])


def fit_beliefs(problem: Problem, observations: Sequence[Observation]) -> Beliefs:
    """Fit everything to the campaign's own observations and, further off, to the problem's experience.

    Raises
    ------
    ObservationRefused
        A measured time or peak is not a finite number above zero.
    """
    own = tuple(observations)
    known = [p.sha256 for p in problem.patches]
    seen = [sha for row in own for sha in row.patches]
    design = Design(problem, tuple(dict.fromkeys([*known, *seen])))
    elsewhere = tuple(usable_experience(problem, design))
    points = design.points([(row.configuration, row.patches) for row in own])
    far = design.points([(row.configuration, row.patches) for row in elsewhere])
    features = design.features(points)
    is_broken = np.array([row.outcome in BREAKING for row in own], bool)
    is_counted = is_broken | np.array([row.outcome in RUNNING for row in own], bool)
    return Beliefs(
        problem=problem,
        design=design,
        observations=own,
        points=points,
        time=_fit_time(design, points, own, far, elsewhere),
        memory=_fit_memory(design, points, own, far, elsewhere),
        validity=fit_validity(features[is_counted], is_broken[is_counted]),
    )


def usable_experience(problem: Problem, design: Design) -> list[Observation]:
    """Experience rows that speak this problem's words.

    Left out: rows with patches that are unknown here, with words or non-finite numbers where a knob takes numbers,
    or with words that are not among a knob's values. Numbers beyond a knob's values stay: the formulas know them.
    """
    patches = set(design.patch_ids)
    return [row for row in problem.experience if set(row.patches) <= patches and _speaks(problem, row.configuration)]


def _speaks(problem: Problem, configuration: Configuration) -> bool:
    for name, knob in problem.knob_set.knobs.items():
        value = configuration.get(name, knob.baseline)
        if knob.is_numeric:
            if isinstance(value, str) or not np.isfinite(value) or float(value) < 0 <= min(map(float, knob.values)):
                return False
        elif str(value) not in {str(v) for v in knob.values}:
            return False
    return bool(problem.basis.allowed(configuration, problem.shape, None).all())


def _fit_time(
    design: Design, points: Points, own: Sequence[Observation], far: Points, elsewhere: Sequence[Observation]
) -> StepTimeModel:
    near_rows, far_rows = time_rows(own), time_rows(elsewhere)
    near, away = points.take(near_rows.index), far.take(far_rows.index)
    matrices = _stacked(design.time(near), design.time(away, is_experience=True))
    run_noise, far_width = design.problem.run_noise, design.problem.experience_width
    return fit_step_time(
        View(matrices.components, matrices.factors, np.vstack([design.codes(near), design.codes(away)])),
        np.exp(np.concatenate([near_rows.log_seconds, far_rows.log_seconds])),
        list(design.problem.basis.time_priors.values()),
        [c.prior for c in design.time_columns],
        noise=np.concatenate([np.hypot(near_rows.noise, run_noise), np.hypot(far_rows.noise, far_width)]),
        is_own=np.arange(len(matrices)) < len(near),
    )


def _fit_memory(
    design: Design, points: Points, own: Sequence[Observation], far: Points, elsewhere: Sequence[Observation]
) -> PeakMemoryModel:
    near_rows = memory_rows(own, design.problem.memory_limit_gib)
    # this problem's limit says nothing about a bound or peak that another campaign did not write down
    far_rows = memory_rows(elsewhere, None)
    near, away = points.take(near_rows.index), far.take(far_rows.index)
    matrices = _stacked(design.memory(near), design.memory(away, is_experience=True))
    width = design.problem.experience_width
    return fit_peak_memory(
        matrices.components,
        np.exp(np.concatenate([near_rows.log_gib, far_rows.log_gib])),
        np.concatenate([near_rows.censoring, far_rows.censoring]),
        list(design.problem.basis.memory_priors.values()),
        factors=matrices.factors,
        factor_priors=[c.prior for c in design.memory_columns],
        noise=np.concatenate([np.zeros(len(near)), np.full(len(away), width)]),
    )


def _stacked(near: Matrices, far: Matrices) -> Matrices:
    return Matrices(np.vstack([near.components, far.components]), np.vstack([near.factors, far.factors]))
