"""What every search in a replay is given and must do, and what the peers share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from replay_tables import Measured

from infrarsi_hpc.domain.knobs import Configuration


class Method(Protocol):
    """A search: places of up to `n` configurations to try next, then what became of each."""

    def ask(self, n: int) -> list[int]: ...

    def tell(self, place: int, seen: Measured) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Given:
    """What a method starts from."""

    configurations: Sequence[Configuration]
    workload: Mapping[str, Any]
    seed: int
    budget: int
    experience: tuple[Path, ...] = ()


class Peer:
    """What the other methods share: settings as numbers, what is open, what was seen.

    Knobs of numbers are ordinal (the place of a value among the knob's values), words are categorical; a knob with one
    value says nothing and is left out. `seen` has log seconds, none where a trial failed.
    """

    def __init__(self, given: Given) -> None:
        names = [n for n in given.configurations[0] if len({c[n] for c in given.configurations}) > 1]
        self.values = {name: sorted({c[name] for c in given.configurations}, key=_order) for name in names}
        self.is_word = np.array([isinstance(self.values[name][0], str) for name in names], bool)
        self.points = np.array([[self.values[n].index(c[n]) for n in names] for c in given.configurations], int)
        self.points = self.points.reshape(len(given.configurations), len(names))
        self.budget = given.budget
        self.rng = np.random.default_rng([given.seed, 1])
        self.seed = given.seed
        self.open = list(range(len(given.configurations)))
        self.pending: list[int] = []
        self.seen: dict[int, float | None] = {}

    def ask(self, n: int) -> list[int]:
        chosen = []
        for _ in range(min(n, len(self.open))):
            place = self.propose() if len(self.open) > 1 else self.open[0]
            self.open.remove(place)
            self.pending.append(place)
            chosen.append(place)
        return chosen

    def tell(self, place: int, seen: Measured) -> None:
        self.pending.remove(place)
        self.seen[place] = None if seen.step_seconds is None else float(np.log(seen.step_seconds))

    def close(self) -> None:
        """Give back what is held outside memory."""

    def propose(self) -> int:
        """One open place; those of this batch are in `pending`."""
        raise AssertionError("a method proposes")

    def ran(self) -> dict[int, float]:
        """Log seconds of those that ran."""
        return {place: value for place, value in self.seen.items() if value is not None}

    def penalty(self) -> float:
        """Log seconds that stand for a failure where a method needs a number: twice the slowest seen so far."""
        return max(self.ran().values(), default=0.0) + float(np.log(2))

    def nearest(self, point: Sequence[int], besides: Sequence[int] = ()) -> int:
        """The open place next to a point: steps over a number's range, or a word that differs."""
        free = [place for place in self.open if place not in besides]
        wanted, open_points = np.asarray(point), self.points[free]
        spans = np.array([max(1, len(values) - 1) for values in self.values.values()])
        apart = np.where(self.is_word, open_points != wanted, np.abs(open_points - wanted) / spans)
        return free[int(np.argmin(apart.sum(axis=1)))]


def _order(value: float | str) -> tuple[bool, float | str]:
    return isinstance(value, str), value
