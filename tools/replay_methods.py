"""Searches over a table's rows, ours and others', behind one pair of calls, and one replay of any of them.

A method sees the configurations, never their times: they stand in an order that is drawn anew for every seed (tables
are often sorted by speed, and whoever breaks ties by place would know it), the same for all methods. Each may propose
any configuration that was not asked before, and is told the outcome, time and peak of what it proposed.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from replay_given import Given, Method, Peer
from replay_tables import Measured, Table

from infrarsi_hpc.errors import InfrarsiError, UsageError
from infrarsi_hpc.stages.pool import PoolSearch


@dataclass(frozen=True)
class Run:
    """One replay: places in the table in the order tried, and seconds a proposal (mean; of the slowest batch)."""

    table: str
    method: str
    seed: int
    places: tuple[int, ...]
    mean_seconds: float
    max_seconds: float


class Ours:
    """`infrarsi`'s own search."""

    def __init__(self, given: Given) -> None:
        self._search = PoolSearch(given.configurations, given.workload, given.seed, given.experience)

    def ask(self, n: int) -> list[int]:
        return self._search.ask(n)

    def tell(self, place: int, seen: Measured) -> None:
        # memory that ran out needed more than the card has: more than any peak that was seen before it
        self._search.tell(place, seen.outcome, seen.step_seconds, seen.peak_gib)

    def close(self) -> None:
        """Nothing is held."""


class Random(Peer):
    """Any open configuration."""

    def propose(self) -> int:
        return self.open[int(self.rng.integers(len(self.open)))]


class Forest(Peer):
    """Expected improvement by a random forest over log seconds, times the chance to run by a second one.

    The usual home-made search: eight random trials, then a hundred trees for each forest; the trees' spread is the
    uncertainty, and trials of the same batch are believed to take what was predicted.
    """

    num_random, num_trees = 8, 100

    def propose(self) -> int:
        from scipy.stats import norm
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        if len(self.seen) + len(self.pending) < self.num_random or len(self.ran()) < 2:
            return self.open[int(self.rng.integers(len(self.open)))]
        x = self._features()
        ran, candidates = self.ran(), x[self.open]
        speed = RandomForestRegressor(self.num_trees, random_state=int(self.rng.integers(2**31)))
        speed.fit(x[list(ran)], list(ran.values()))
        if self.pending:
            believed = [*ran.values(), *speed.predict(x[self.pending])]
            speed.fit(x[[*ran, *self.pending]], believed)
        by_tree = np.array([tree.predict(candidates) for tree in speed.estimators_])
        mean, sd = by_tree.mean(axis=0), np.maximum(by_tree.std(axis=0), 1e-6)
        gain = min(ran.values()) - mean
        improvement = gain * norm.cdf(gain / sd) + sd * norm.pdf(gain / sd)
        if len(ran) < len(self.seen):
            fits = RandomForestClassifier(self.num_trees, random_state=int(self.rng.integers(2**31)))
            fits.fit(x[list(self.seen)], [value is not None for value in self.seen.values()])
            improvement = improvement * fits.predict_proba(candidates)[:, 1]
        return self.open[int(np.argmax(improvement))]

    def _features(self) -> np.ndarray:
        columns = [self.points[:, [i]] for i in np.flatnonzero(~self.is_word)]
        columns += [np.eye(self.points[:, i].max() + 1)[self.points[:, i]] for i in np.flatnonzero(self.is_word)]
        return np.hstack(columns).astype(float)


def _of_peers(name: str) -> Callable[[Given], Method]:
    def make(given: Given) -> Method:
        import replay_peers

        peer: Method = getattr(replay_peers, name)(given)
        return peer

    return make


METHODS: dict[str, Callable[[Given], Method]] = {
    "ours": Ours,
    "random": Random,
    "tpe": _of_peers("Tpe"),
    "gp": _of_peers("Gp"),
    "smac": _of_peers("Smac"),
    "forest": Forest,
}
#: Packages that methods need beside the project's own.
NEEDS = {"tpe": ("optuna",), "gp": ("optuna", "torch"), "smac": ("smac",), "forest": ("sklearn",)}


def lacks(method: str) -> str:
    """Packages of a method that are not installed, as words; empty if it can run."""
    return " and ".join(package for package in NEEDS.get(method, ()) if find_spec(package) is None)


def chosen_methods(text: str | None) -> tuple[list[str], list[str]]:
    """The methods to run, and remarks on those left out; without a list, all that are installed.

    Raises
    ------
    UsageError
        There is no such method, or one that was asked for by name is not installed.
    """
    asked = list(dict.fromkeys(word.strip() for word in text.split(","))) if text is not None else list(METHODS)
    for name in asked:
        if name not in METHODS:
            raise UsageError(f"there is no method {name[:40]!r}", fix=f"some of {','.join(METHODS)}")
        if text is not None and lacks(name):
            raise UsageError(f"{name} needs {lacks(name)}", fix="pip install 'infrarsi-hpc[bench]' (gp: torch as well)")
    remarks = [f"{name} is left out: {lacks(name)} is not installed" for name in asked if lacks(name)]
    return [name for name in asked if not lacks(name)], remarks


def replay(table: Table, method: str, seed: int, *, batch: int, budget: int, experience: tuple[Path, ...] = ()) -> Run:
    """Run one method on one table until `budget` trials were asked or no configuration is left.

    Raises
    ------
    InfrarsiError
        The method proposed what is not in the table or was asked before: its own fault.
    """
    order = np.random.default_rng([seed, zlib.crc32(table.name.encode())]).permutation(len(table.configurations))
    shown = [table.configurations[i] for i in order]
    given = Given([row.configuration for row in shown], table.workload, seed, budget, experience)
    began = time.perf_counter()
    search = METHODS[method](given)
    spent = [time.perf_counter() - began]  # what a method does before its first trial counts as the first batch's
    try:
        places, slowest = _trials(search, method, table.name, shown, batch, budget, spent)
    finally:
        search.close()
    mean = sum(spent) / max(1, len(places))
    return Run(table.name, method, seed, tuple(int(order[place]) for place in places), mean, slowest)


def _trials(
    search: Method, method: str, table: str, shown: Sequence[Measured], batch: int, budget: int, spent: list[float]
) -> tuple[list[int], float]:
    """Places in the order tried, and the slowest batch's seconds a proposal; every batch's seconds go to `spent`."""
    places: list[int] = []
    slowest = 0.0
    while len(places) < min(budget, len(shown)):
        began = time.perf_counter()
        found = search.ask(min(batch, budget - len(places)))
        if not found:
            break
        if len(set(found)) != len(found) or set(found) & set(places) or not set(found) <= set(range(len(shown))):
            raise InfrarsiError(f"{method} proposed {found} on {table}, some of it asked before or unknown")
        for place in found:
            search.tell(place, shown[place])
        spent.append(time.perf_counter() - began)
        slowest = max(slowest, (spent[-1] + (spent[0] if not places else 0.0)) / len(found))
        places += found
    return places, slowest
