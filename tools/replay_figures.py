"""Figures of replays: how soon a method is near the best, what it wasted, how long it thought; with intervals.

Definitions: a trial is within x% if its time is at most (1 + x%) of the table's best; where none was, the budget plus
one is counted. `best_after_k` is the best time of the first k trials over the table's best; while nothing ran, the
table's slowest time stands for it. `failed_k` is the share of the first k trials that ran out of memory, or failed and
break a rule that we know; `error_k` the share that failed for another reason, which no method can know beforehand. Over
seeds, ratios are averaged as logarithms, everything else as it is; over tables, each table counts once.

Intervals: 95%, bootstrap over tables, and over seeds inside each (Efron & Tibshirani 1993, ch. 8). The same draws for
every method, as all ran on the same tables and seeds. With one table they are over its seeds alone. Not covered: how
far these tables stand for others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from replay_methods import Run
from replay_tables import Table

#: By figure, whether it is averaged as a logarithm.
FIGURES = {
    "trials_to_5_percent": False,
    "trials_to_1_percent": False,
    "best_after_8": True,
    "best_after_16": True,
    "failed_8": False,
    "failed_16": False,
    "failed_all": False,
    "error_8": False,
    "error_16": False,
    "error_all": False,
}
_DRAWS, _SEED, _CONFIDENCE = 2000, 20260101, 0.95


def curve(run: Run, table: Table, budget: int) -> np.ndarray:
    """Best so far over the table's best, after each of `budget` trials; level once all rows were tried."""
    seconds = np.minimum.accumulate(table.seconds[list(run.places)])
    seconds = np.where(np.isfinite(seconds), seconds, table.worst_seconds)
    return np.concatenate([seconds, np.full(budget - len(seconds), seconds[-1])]) / table.best_seconds


def figures_of(run: Run, table: Table, budget: int) -> dict[str, float]:
    """The figures of one run."""
    seconds, best = table.seconds[list(run.places)], curve(run, table, budget)
    values: dict[str, float] = {}
    for percent in (5, 1):
        near = np.flatnonzero(seconds <= (1 + percent / 100) * table.best_seconds)
        values[f"trials_to_{percent}_percent"] = float(near[0] + 1 if len(near) else budget + 1)
    for k in (8, 16):
        values[f"best_after_{k}"] = float(best[min(k, budget) - 1])
    outcomes = [table.configurations[place].outcome for place in run.places]
    known = [
        outcome == "oom" or bool(table.broken_rules[place]) for place, outcome in zip(run.places, outcomes, strict=True)
    ]
    is_failed = np.array([o != "ok" and k for o, k in zip(outcomes, known, strict=True)])
    is_error = np.array([o != "ok" and not k for o, k in zip(outcomes, known, strict=True)])
    for name, k in (("8", 8), ("16", 16), ("all", budget)):
        values[f"failed_{name}"] = float(is_failed[:k].mean())
        values[f"error_{name}"] = float(is_error[:k].mean())
    return {name: values[name] for name in FIGURES}


def summarise(runs: Sequence[Run], tables: Sequence[Table], budget: int) -> dict[str, Any]:
    """Everything that the JSON says: figures and regret curves by table and method, and over all tables by method."""
    by_name = {table.name: table for table in tables}
    methods, seeds = list(dict.fromkeys(run.method for run in runs)), sorted({run.seed for run in runs})
    cells: dict[tuple[str, str], list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        cells.setdefault((run.table, run.method), []).append(run)
    draws = _Draws(len(tables), len(seeds))
    by_table: dict[str, Any] = {table.name: {} for table in tables}
    overall: dict[str, Any] = {}
    for method in methods:
        curves = []
        values: dict[str, list[list[float]]] = {name: [] for name in FIGURES}
        for table in tables:
            own = cells[table.name, method]
            found = [figures_of(run, by_name[run.table], budget) for run in own]
            for name in FIGURES:
                values[name].append([row[name] for row in found])
            curves.append(np.log([curve(run, table, budget) for run in own]))
            mean = {name: _mean([row[name] for row in found], is_log) for name, is_log in FIGURES.items()}
            regret = _Draws(1, len(seeds)).curve(curves[-1][None])
            by_table[table.name][method] = {"figures": {**mean, **_thought(own)}, "regret": regret}
        with_intervals = {name: draws.figure(np.array(values[name]), is_log) for name, is_log in FIGURES.items()}
        thought = _thought([run for run in runs if run.method == method])
        overall[method] = {"figures": {**with_intervals, **thought}, "regret": draws.curve(np.array(curves))}
    return {"overall": overall, "by_table": by_table}


def _thought(runs: Sequence[Run]) -> dict[str, float]:
    """Seconds a proposal over runs: mean, and of the slowest batch."""
    return {
        "proposal_seconds_mean": float(np.mean([run.mean_seconds for run in runs])),
        "proposal_seconds_max": max(run.max_seconds for run in runs),
    }


def _mean(values: Iterable[float], is_log: bool) -> float:
    array = np.array(list(values), float)
    return float(np.exp(np.log(array).mean()) if is_log else array.mean())


class _Draws:
    """Tables drawn with replacement, and seeds inside each; the same draws for every figure and method."""

    def __init__(self, num_tables: int, num_seeds: int) -> None:
        rng = np.random.default_rng(_SEED)
        self.tables = rng.integers(num_tables, size=(_DRAWS, num_tables, 1))
        self.seeds = rng.integers(num_seeds, size=(_DRAWS, num_tables, num_seeds))

    def figure(self, values: np.ndarray, is_log: bool) -> dict[str, float]:
        """Mean and interval of (tables, seeds)."""
        value, low, high = self._interval(np.log(values) if is_log else values)
        if is_log:
            value, low, high = np.exp([value, low, high])
        return {"value": float(value), "low": float(low), "high": float(high)}

    def curve(self, logs: np.ndarray) -> dict[str, list[float]]:
        """Mean log ratio by trial, with its band, of (tables, seeds, trials)."""
        rows = [self._interval(logs[:, :, k]) for k in range(logs.shape[2])]
        names = ("mean_log", "low", "high")
        return {name: [float(row[i]) for row in rows] for i, name in enumerate(names)}

    def _interval(self, values: np.ndarray) -> tuple[float, float, float]:
        drawn = values[self.tables, self.seeds].mean(axis=(1, 2))
        tail = (1 - _CONFIDENCE) / 2
        low, high = np.quantile(drawn, [tail, 1 - tail])
        return float(values.mean()), float(low), float(high)


OVERALL_HEADINGS = (
    "method", "trials to 5%", "trials to 1%", "best after 8", "best after 16", "failed of 8", "failed of 16", "failed",
    "other errors", "s a proposal", "slowest",
)  # fmt: skip
TABLE_HEADINGS = ("table", "method", *OVERALL_HEADINGS[1:])
_SHOWN = (
    "trials_to_5_percent", "trials_to_1_percent", "best_after_8", "best_after_16", "failed_8", "failed_16",
    "failed_all", "error_all", "proposal_seconds_mean", "proposal_seconds_max",
)  # fmt: skip


def overall_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """One row a method over all tables, intervals beside the first figures."""
    return [
        [method, *(_cell(name, found["figures"][name]) for name in _SHOWN)]
        for method, found in summary["overall"].items()
    ]


def table_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """One row a table and method."""
    return [
        [table, method, *(_cell(name, found["figures"][name]) for name in _SHOWN)]
        for table, methods in summary["by_table"].items()
        for method, found in methods.items()
    ]


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as Markdown; names of tables and methods hold no pipes that count."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _cell(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return f"{_cell(name, value['value'])} [{_cell(name, value['low'])}, {_cell(name, value['high'])}]"
    if name.startswith(("failed", "error")):
        return f"{value:.0%}"
    if name.startswith("trials"):
        return f"{value:.1f}"
    return f"{value:.3f}" if name.startswith("best") else f"{value:.2g}"
