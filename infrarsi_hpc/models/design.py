"""From settings and patches to matrices: components, log-factor columns with their priors, and codes.

Names are kept beside columns, so that a price can be traced to what it is made of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from infrarsi_hpc.domain.knobs import Configuration, Knob
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.models.basis import BoolArray, FactorPrior, FloatArray, Prior
from infrarsi_hpc.models.normal import Normal, separate
from infrarsi_hpc.models.problem import Problem

#: A patch about which nobody said anything: log-factors of time and of memory.
_SILENT_TIME, _SILENT_MEMORY = Prior(0.0, 0.10), Prior(0.0, 0.12)
#: A stated expectation is held with this width, plus half of what it claims.
_STATED_WIDTH = 0.08


@dataclass(frozen=True)
class Points:
    """Rows of settings (one column a knob) and patches (n, p)."""

    settings: Mapping[str, Any]
    patches: BoolArray

    def __len__(self) -> int:
        return int(self.patches.shape[0])

    def take(self, index: Any) -> Points:
        """Some of the rows."""
        return Points({name: column[index] for name, column in self.settings.items()}, self.patches[index])


@dataclass(frozen=True)
class Matrices:
    """What a model sees of some points."""

    components: FloatArray
    factors: FloatArray

    def __len__(self) -> int:
        return int(self.components.shape[0])

    def take(self, index: Any) -> Matrices:
        """Some of the rows."""
        return Matrices(self.components[index], self.factors[index])


@dataclass(frozen=True)
class _Column:
    """One log-factor: a knob's value (or its trend) or a patch."""

    name: str
    prior: Prior
    knob: str | None = None
    value: str | None = None
    patch: int | None = None


@dataclass(frozen=True)
class Design:
    """Builds matrices for one problem. `patch_ids` holds the digests of the patch columns."""

    problem: Problem
    patch_ids: tuple[str, ...]

    def points(self, rows: Sequence[tuple[Configuration, tuple[str, ...]]]) -> Points:
        """Columns for (configuration, patches) pairs; a missing knob has its baseline value."""
        settings: dict[str, Any] = {}
        for name, knob in self.problem.knob_set.knobs.items():
            settings[name] = column(knob, [configuration.get(name, knob.baseline) for configuration, _ in rows])
        place = {sha: i for i, sha in enumerate(self.patch_ids)}
        patches = np.zeros((len(rows), len(self.patch_ids)), bool)
        for i, (_, chosen) in enumerate(rows):
            for sha in chosen:
                patches[i, place[sha]] = True
        return Points(settings, patches)

    def memory(self, points: Points) -> Matrices:
        """GiB by component, and the log-factor columns of memory."""
        parts = self.problem.basis.memory_components(points.settings, self.problem.shape)
        return self._matrices(parts, self.problem.basis.memory_priors, self.memory_columns, points)

    def time(self, points: Points) -> Matrices:
        """Seconds by component, and the log-factor columns of step time."""
        parts = self.problem.basis.time_components(points.settings, self.problem.shape)
        return self._matrices(parts, self.problem.basis.time_priors, self.time_columns, points)

    def codes(self, points: Points) -> FloatArray:
        """Settings and patches as numbers whose L1 distance counts differing ones.

        Numeric knobs are placed evenly by rank from 0 to 1, so that neighbouring values are nearer than the ends.
        """
        columns: list[FloatArray] = []
        for name, knob in self.problem.knob_set.knobs.items():
            values = points.settings[name]
            if knob.is_numeric:
                ordered = np.sort(np.array(knob.values, float))
                rank = np.interp(values, ordered, np.arange(len(ordered), dtype=float))
                columns.append(rank / max(len(ordered) - 1, 1))
            else:
                columns += [0.5 * (values == str(value)) for value in knob.values]
        columns += [points.patches[:, j].astype(float) for j in range(points.patches.shape[1])]
        return np.column_stack(columns).astype(float)

    def features(self, points: Points) -> BoolArray:
        """Which settings differ from the baseline's, and which patches are in, for the validity model."""
        columns = [_is(points.settings[name], value) for name, value in self.feature_settings]
        stacked: BoolArray = np.column_stack([*columns, points.patches]) if columns else points.patches
        return stacked

    @cached_property
    def feature_settings(self) -> tuple[tuple[str, Any], ...]:
        """(knob, value) of the validity features that are settings; those of patches follow."""
        return tuple(
            (name, value)
            for name, knob in self.problem.knob_set.knobs.items()
            for value in knob.values
            if value != knob.baseline
        )

    @cached_property
    def memory_columns(self) -> tuple[_Column, ...]:
        """Log-factors of memory."""
        basis = self.problem.basis
        columns = self._knob_columns("memory", basis.memory_scale)
        return tuple(columns + self._patch_columns([self._memory_prior(sha) for sha in self.patch_ids]))

    @cached_property
    def time_columns(self) -> tuple[_Column, ...]:
        """Log-factors of step time."""
        columns = self._knob_columns("time", self.problem.basis.time_scale)
        return tuple(columns + self._patch_columns([self._time_prior(sha) for sha in self.patch_ids]))

    @cached_property
    def time_names(self) -> tuple[str, ...]:
        """Names of the step-time model's parameters: components, then log-factors."""
        return (*self.problem.basis.time_priors, *(c.name for c in self.time_columns))

    @cached_property
    def memory_names(self) -> tuple[str, ...]:
        """Names of the memory model's parameters: components, then log-factors."""
        return (*self.problem.basis.memory_priors, *(c.name for c in self.memory_columns))

    @cached_property
    def time_prior(self) -> Normal:
        """What the textbook, and the authors of patches, believe of the step-time model's parameters."""
        return separate([*self.problem.basis.time_priors.values(), *(c.prior for c in self.time_columns)])

    @cached_property
    def memory_prior(self) -> Normal:
        """What the textbook, and the authors of patches, believe of the memory model's parameters."""
        return separate([*self.problem.basis.memory_priors.values(), *(c.prior for c in self.memory_columns)])

    def _knob_columns(self, what: str, scale: Prior) -> list[_Column]:
        columns = [_Column("all", scale)]
        basis = self.problem.basis
        for name, knob in self.problem.knob_set.knobs.items():
            prior: FactorPrior = basis.memory_factor(name) if what == "memory" else basis.time_factor(name)
            if prior.trend_width and _has_trend(knob):
                columns.append(_Column(f"{name} (a doubling)", Prior(0.0, prior.trend_width), knob=name))
            for value in knob.values:
                # a list of configurations has no baseline: every value may differ from what they have in common
                if prior.width and (value != knob.baseline or self.problem.pool is not None):
                    expected = Prior(prior.means.get(str(value), 0.0), prior.width)
                    columns.append(_Column(f"{name}={value}", expected, knob=name, value=str(value)))
        return columns

    def _patch_columns(self, priors: Sequence[Prior]) -> list[_Column]:
        named = zip(self.patch_ids, priors, strict=True)
        return [_Column(sha[:12], prior, patch=j) for j, (sha, prior) in enumerate(named)]

    def _time_prior(self, sha: str) -> Prior:
        patch = next((p for p in self.problem.patches if p.sha256 == sha), None)
        factor = None if patch is None else expected_factor(patch)
        if factor is None:
            return _SILENT_TIME
        mean = math.log(factor)
        return Prior(mean, _STATED_WIDTH + 0.5 * abs(mean))

    def _memory_prior(self, sha: str) -> Prior:
        patch = next((p for p in self.problem.patches if p.sha256 == sha), None)
        if patch is None or patch.expected_memory_gib is None or not math.isfinite(patch.expected_memory_gib):
            return _SILENT_MEMORY
        # never below a tenth: a patch that claims to save more than there is saves most of it
        mean = math.log(max(1 + patch.expected_memory_gib / self._baseline_gib, 0.1))
        return Prior(mean, _STATED_WIDTH + 0.5 * abs(mean))

    @cached_property
    def _baseline_gib(self) -> float:
        """What the formulas alone expect of the baseline, GiB."""
        basis = self.problem.basis
        bare = Design(self.problem, ()).points([(self.problem.knob_set.baseline(), ())])
        parts = basis.memory_components(bare.settings, self.problem.shape)
        expected = sum(float(np.ravel(parts[name])[0]) * math.exp(p.mean) for name, p in basis.memory_priors.items())
        return expected * math.exp(basis.memory_scale.mean)

    def _matrices(
        self,
        parts: Mapping[str, FloatArray],
        priors: Mapping[str, Prior],
        columns: Sequence[_Column],
        points: Points,
    ) -> Matrices:
        num = len(points)
        components = np.empty((num, len(priors)))
        for k, name in enumerate(priors):
            components[:, k] = parts[name]
        factors = np.zeros((num, len(columns)))
        for j, entry in enumerate(columns):
            if entry.patch is not None:
                factors[:, j] = points.patches[:, entry.patch]
            elif entry.knob is None:
                factors[:, j] = 1.0
            elif entry.value is None:
                baseline = float(self.problem.knob_set[entry.knob].baseline)
                factors[:, j] = np.log2(points.settings[entry.knob] / baseline)
            else:
                factors[:, j] = _is(points.settings[entry.knob], entry.value)
        return Matrices(components, factors)


def column(knob: Knob, values: Sequence[Any]) -> Any:
    """Values of one knob as an array: numbers where every value is one, words elsewhere."""
    if knob.is_numeric:
        return np.array([float(v) for v in values], float)
    return np.array([str(v) for v in values], dtype=str)


def _is(values: Any, value: Any) -> BoolArray:
    wanted = float(value) if values.dtype.kind == "f" else str(value)
    result: BoolArray = values == wanted
    return result


def _has_trend(knob: Knob) -> bool:
    return knob.is_numeric and len(knob.values) > 1 and all(float(v) > 0 for v in knob.values)


def expected_factor(patch: Patch) -> float | None:
    """The step-time factor that a patch's author states, if it can be one: finite and above zero."""
    value = patch.expected_time_factor
    return value if value is not None and math.isfinite(value) and value > 0 else None
