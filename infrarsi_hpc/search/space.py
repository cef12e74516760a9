"""The space of configurations: every combination of the contract's knob values that breaks no rule.

Rows are integers, one column a knob, each the place of a value in the knob's list.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from infrarsi_hpc.domain.knobs import Configuration
from infrarsi_hpc.models.basis import BoolArray, IntArray
from infrarsi_hpc.models.design import column
from infrarsi_hpc.models.problem import Problem

#: Up to this many combinations are listed; beyond it, some are drawn.
_MOST_LISTED = 60_000
#: Draws, as a multiple of what is wanted, before a tightly ruled space is taken as found.
_DRAWS_A_ROW = 30


@dataclass(frozen=True)
class Space:
    """All configurations of a problem."""

    problem: Problem

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Knobs, one a column."""
        return tuple(self.problem.knob_set)

    @cached_property
    def counts(self) -> IntArray:
        """How many values each knob has."""
        return np.array([len(self.problem.knob_set[name].values) for name in self.names], np.int64)

    @property
    def num_combinations(self) -> int:
        """Combinations before rules."""
        total = 1
        for count in self.counts:
            total *= int(count)
        return total

    @cached_property
    def _columns(self) -> tuple[Any, ...]:
        knobs = self.problem.knob_set
        return tuple(column(knobs[name], knobs[name].values) for name in self.names)

    def settings(self, rows: IntArray) -> dict[str, Any]:
        """One column of values a knob."""
        named = zip(self.names, self._columns, strict=True)
        return {name: values[rows[:, k]] for k, (name, values) in enumerate(named)}

    def configuration(self, row: Iterable[int]) -> Configuration:
        """One row as a configuration, values as the contract wrote them."""
        return {n: self.problem.knob_set[n].values[int(i)] for n, i in zip(self.names, row, strict=True)}

    def encode(self, configuration: Configuration) -> tuple[int, ...] | None:
        """The row of a configuration (missing knobs at their baseline), or none if it has values from elsewhere."""
        row = []
        for name in self.names:
            knob = self.problem.knob_set[name]
            value = configuration.get(name, knob.baseline)
            if value not in knob.values:
                return None
            row.append(knob.values.index(value))
        return tuple(row)

    def allowed(self, rows: IntArray) -> BoolArray:
        """Which rows break no rule and lie in the pool, if there is one."""
        if not len(rows):
            return np.zeros(0, bool)
        good = self.problem.basis.allowed(self.settings(rows), self.problem.shape, self.problem.cores)
        if self._pool is not None:
            good = good & np.array([tuple(row) in self._pool for row in rows.tolist()], bool)
        return good

    def meets(self, rows: IntArray, needs: Configuration) -> BoolArray:
        """Which rows have these settings; a setting that the space does not have is met by none."""
        good = np.ones(len(rows), bool)
        for name, value in needs.items():
            values = self.problem.knob_set[name].values if name in self.names else ()
            good &= rows[:, self.names.index(name)] == values.index(value) if value in values else False
        return good

    @cached_property
    def _pool(self) -> frozenset[tuple[int, ...]] | None:
        if self.problem.pool is None:
            return None
        return frozenset(row for row in map(self.encode, self.problem.pool) if row is not None)

    def rows(self, most: int, rng: np.random.Generator) -> IntArray:
        """Allowed rows: all of them if there are at most `most`, else `most` of them at random, without repeats."""
        if self._pool is not None:
            listed = np.array(sorted(self._pool), np.int64).reshape(-1, len(self.names))
            found = listed[self.allowed(listed)]
        elif self.num_combinations <= _MOST_LISTED:
            listed = self._unravel(np.arange(self.num_combinations))
            found = listed[self.allowed(listed)]
        else:
            drawn = rng.integers(0, self.counts, size=(most * _DRAWS_A_ROW // 4, len(self.names)))
            found = np.unique(drawn[self.allowed(drawn)], axis=0)
            if len(found) < most:
                more = rng.integers(0, self.counts, size=(most * _DRAWS_A_ROW, len(self.names)))
                found = np.unique(np.vstack([found, more[self.allowed(more)]]), axis=0)
        if len(found) > most:
            found = found[np.sort(rng.choice(len(found), size=most, replace=False))]
        return found

    def neighbours(self, rows: IntArray) -> IntArray:
        """Allowed rows that differ from one of the given ones in one knob, each once."""
        changed = [rows]
        for k, count in enumerate(self.counts):
            for value in range(int(count)):
                moved = rows[rows[:, k] != value].copy()
                moved[:, k] = value
                changed.append(moved)
        stacked = np.unique(np.vstack(changed), axis=0)
        return stacked[self.allowed(stacked)]

    def _unravel(self, flat: IntArray) -> IntArray:
        return np.stack(np.unravel_index(flat, tuple(int(c) for c in self.counts)), axis=1).astype(np.int64)
