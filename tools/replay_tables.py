"""Tables of measured configurations, as `tools/replay` takes them: a CSV file, its workload beside it as JSON.

Columns: `trial_id`, any knobs, `step_time_s` (seconds a global step), `mfu` (a fraction), `peak_gib` (a card's peak,
empty where unknown), `outcome` (`ok`, `oom`, or `error` for what did not start or crashed for another reason). Rows
with the same knobs are repeats of one configuration.

Covers: files that are too large, no text or no table; numbers that cannot be; units that differ inside a table (a time
times its utilisation is the same work in every row). Does not cover: a whole table in another unit of time.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from infrarsi_hpc.domain.knobs import KNOB_NAME, Configuration
from infrarsi_hpc.errors import InfrarsiError, InputRefused
from infrarsi_hpc.stages.pool import PoolSearch

MAX_BYTES, MAX_ROWS, MAX_COLUMNS = 64 * 2**20, 10**6, 64
MAX_WORKLOAD_BYTES = 2**20
OUTCOMES = ("ok", "oom", "error")
#: How far time x utilisation may differ between rows: seen up to 1.2; seconds among milliseconds are 1000.
SAME_WORK = 20.0
#: A peak this much above the card's nominal memory is in another unit.
ABOVE_CARD = 1.25
_NOT_KNOBS = ("trial_id", "step_time_s", "mfu", "peak_gib", "outcome")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\Z")
_NOT_IN_WORDS = re.compile(r"[^A-Za-z0-9_.+:/-]+")


@dataclass(frozen=True)
class Measured:
    """A configuration and what became of it; a time where it is `ok`, a peak where that is known too."""

    configuration: Configuration
    outcome: str
    step_seconds: float | None = None
    peak_gib: float | None = None


@dataclass(frozen=True)
class Table:
    """A sweep.

    Attributes
    ----------
    rows
        As measured, repeats and all.
    configurations
        Each once: `ok` if any repeat was, with the mean time and peak of those; else `oom` if any repeat was.
    num_contradictory
        Configurations whose repeats ended differently.
    broken_rules
        For each configuration, why our rules say that it cannot run; empty if they do not.
    """

    name: str
    workload: dict[str, Any]
    rows: tuple[Measured, ...]
    configurations: tuple[Measured, ...]
    num_contradictory: int
    broken_rules: tuple[tuple[str, ...], ...]

    @cached_property
    def seconds(self) -> np.ndarray:
        """Of each configuration; infinite where it did not run."""
        return np.array([row.step_seconds if row.outcome == "ok" else np.inf for row in self.configurations], float)

    @property
    def best_seconds(self) -> float:
        """The fastest configuration's."""
        return float(self.seconds.min())

    @property
    def worst_seconds(self) -> float:
        """The slowest one's that ran."""
        return float(self.seconds[np.isfinite(self.seconds)].max())

    def facts(self) -> dict[str, Any]:
        """What a reader must know of the table before its figures."""
        outcomes = [row.outcome for row in self.configurations]
        broken = [bool(rules) for rules in self.broken_rules]
        return {
            "configurations": len(outcomes),
            **{outcome: outcomes.count(outcome) for outcome in OUTCOMES},
            "repeated_rows": len(self.rows) - len(outcomes),
            "contradictory": self.num_contradictory,
            "errors_that_rules_predict": sum(b and o == "error" for b, o in zip(broken, outcomes, strict=True)),
            "ok_that_rules_forbid": sum(b and o == "ok" for b, o in zip(broken, outcomes, strict=True)),
            "best_seconds": self.best_seconds,
            "within_5_percent": int(np.sum(self.seconds <= 1.05 * self.best_seconds)),
            "within_1_percent": int(np.sum(self.seconds <= 1.01 * self.best_seconds)),
        }


def read_table(path: Path) -> Table:
    """Read a table and its workload.

    Raises
    ------
    InputRefused
        It cannot be used; the file, the line and the reason are said.
    """
    text = _text(path, MAX_BYTES, "a table is a CSV file of measured rows")
    beside = path.with_suffix(".json")
    workload = _workload(beside, path)
    rows = _rows(path, text, _card_gib(workload))
    merged, num_contradictory = merge(rows)
    if all(row.outcome != "ok" for row in merged):
        raise InputRefused(f"{path} has no `ok` row", why="without one there is no best", fix="leave the table out")
    try:
        problem = PoolSearch([row.configuration for row in merged], workload).problem
        broken = tuple(tuple(problem.broken_rules(row.configuration)) for row in merged)
    except InfrarsiError as error:
        raise InputRefused(f"{path} with {beside.name}: {error.what}", why=error.why, fix=error.fix) from error
    return Table(path.stem, workload, rows, merged, num_contradictory, broken)


def merge(rows: Sequence[Measured]) -> tuple[tuple[Measured, ...], int]:
    """Repeats as one configuration each, in the order of their first rows; and how many of them contradict."""
    groups: dict[tuple[tuple[str, Any], ...], list[Measured]] = {}
    for row in rows:
        groups.setdefault(tuple(row.configuration.items()), []).append(row)
    return tuple(_mean(group) for group in groups.values()), sum(
        len({row.outcome for row in group}) > 1 for group in groups.values()
    )


def _mean(group: Sequence[Measured]) -> Measured:
    outcome = next(outcome for outcome in OUTCOMES if any(row.outcome == outcome for row in group))
    ran = [row for row in group if row.outcome == outcome == "ok"]
    peaks = [row.peak_gib for row in ran if row.peak_gib is not None]
    times = [row.step_seconds for row in ran if row.step_seconds is not None]
    return Measured(
        group[0].configuration,
        outcome,
        sum(times) / len(times) if times else None,
        sum(peaks) / len(peaks) if peaks else None,
    )


def _text(path: Path, most: int, what: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise InputRefused(f"{path} cannot be read", why=error.strerror or str(error), fix=what) from error
    if len(data) > most:
        raise InputRefused(f"{path} is larger than {most // 2**20} MiB", why=what, fix="give a part of it")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        why = f"byte {error.start} cannot be decoded"
        raise InputRefused(f"{path} is not UTF-8 text", why=why, fix="save it as UTF-8") from error


def _workload(path: Path, table: Path) -> dict[str, Any]:
    if not path.exists():
        raise InputRefused(
            f"{table} has no workload beside it",
            why=f"{path} does not exist",
            fix="write the model, batch and cards there: model, seq_len, global_batch, gpus, gpu",
        )
    text = _text(path, MAX_WORKLOAD_BYTES, "a workload is a small JSON object")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputRefused(f"{path} is not valid JSON", why=str(error)[:300], fix="correct it") from error
    if not isinstance(value, dict):
        raise InputRefused(f"{path} holds no JSON object", why=f"it holds a {type(value).__name__}", fix="correct it")
    return value


def _card_gib(workload: Mapping[str, Any]) -> float | None:
    card = workload.get("gpu")
    value = card.get("memory_gib") if isinstance(card, dict) else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) and value > 0 else None


def _rows(path: Path, text: str, card_gib: float | None) -> tuple[Measured, ...]:
    try:
        lines = _lines(path, csv.reader(io.StringIO(text), strict=True))
    except csv.Error as error:
        raise InputRefused(f"{path} is no CSV table", why=str(error), fix="correct it") from error
    if not lines:
        raise InputRefused(f"{path} is empty", why="a table has a line of column names and at least one row")
    (_, names), *rest = lines
    _check_names(path, names)
    if not rest:
        raise InputRefused(f"{path} has column names and no row", fix="leave the table out")
    for number, cells in rest:
        if len(cells) != len(names):
            raise _bad(path, number, f"has {len(cells)} cells", f"there are {len(names)} columns")
    columns = {name: [cells[i].strip() for _, cells in rest] for i, name in enumerate(names)}
    numbers = [number for number, _ in rest]
    knobs = {name: _knob(path, numbers, name, columns[name]) for name in names if name not in _NOT_KNOBS}
    rows, work = [], []
    for i, number in enumerate(numbers):
        outcome = columns["outcome"][i]
        if outcome not in OUTCOMES:
            raise _bad(path, number, f"has the outcome {outcome[:40]!r}", f"one of {', '.join(OUTCOMES)} is known")
        seconds, mfu, peak = (
            _positive(path, number, name, columns[name][i]) if name in columns else None
            for name in ("step_time_s", "mfu", "peak_gib")
        )
        if outcome == "ok" and seconds is None:
            raise _bad(path, number, "is `ok` and has no step_time_s", "a configuration that ran has a time")
        if peak is not None and card_gib is not None and peak > ABOVE_CARD * card_gib:
            raise _bad(path, number, f"has a peak of {peak:g} GiB", f"the card has {card_gib:g} GiB: another unit?")
        if seconds is not None and mfu is not None:
            work.append((seconds * mfu, number))
        is_ok = outcome == "ok"
        settings = {name: values[i] for name, values in knobs.items()}
        rows.append(Measured(settings, outcome, seconds if is_ok else None, peak if is_ok else None))
    if work and max(work)[0] > SAME_WORK * min(work)[0]:
        raise InputRefused(
            f"{path} has more than one unit in it",
            why=f"step_time_s x mfu is {max(work)[0]:.3g} in line {max(work)[1]} and {min(work)[0]:.3g} in line "
            f"{min(work)[1]}, and the same work in both",
            fix="give every time in seconds and every mfu as a fraction",
        )
    return tuple(rows)


def _lines(path: Path, reader: Any) -> list[tuple[int, list[str]]]:
    """Lines that are not empty, with their numbers in the file."""
    lines = []
    for cells in reader:
        if any(cell.strip() for cell in cells):
            lines.append((reader.line_num, cells))
        if len(lines) > MAX_ROWS + 1:
            raise InputRefused(f"{path} has more than {MAX_ROWS} rows", fix="give a part of it")
    return lines


def _check_names(path: Path, names: Sequence[str]) -> None:
    if len(names) > MAX_COLUMNS:
        raise InputRefused(f"{path} has {len(names)} columns", why=f"at most {MAX_COLUMNS} are read")
    if len(set(names)) != len(names):
        raise InputRefused(f"{path} names a column twice", why=", ".join(names)[:300], fix="rename one of them")
    missing = [name for name in ("step_time_s", "outcome") if name not in names]
    if missing:
        raise InputRefused(f"{path} has no column {' and no '.join(missing)}", why=f"it has {', '.join(names)[:300]}")
    knobs = [name for name in names if name not in _NOT_KNOBS]
    bad = [name for name in knobs if not KNOB_NAME.match(name)]
    if bad or not knobs:
        say = f"has a column {bad[0][:60]!r}" if bad else "has no column of a knob"
        raise InputRefused(f"{path} {say}", why="knobs are named in lower_snake_case", fix="rename it")


def _knob(path: Path, numbers: Sequence[int], name: str, cells: Sequence[str]) -> list[int | float | str]:
    """A knob's values: numbers where all of them are, else words as the store may keep them."""
    if all(_NUMBER.match(cell) and len(cell) < 20 for cell in cells):
        values = [float(cell) for cell in cells]
        for number, value in zip(numbers, values, strict=True):
            if not abs(value) < 2**53:
                raise _bad(path, number, f"has {name} {value:g}", "a setting is below 2^53")
        return [int(value) if value.is_integer() else value for value in values]
    words = [_NOT_IN_WORDS.sub("_", cell).lstrip("_.+:/-")[:64] for cell in cells]
    for number, word, cell in zip(numbers, words, cells, strict=True):
        if not word:
            raise _bad(path, number, f"has {name} {cell[:40]!r}", "every row has every knob, a number or a short word")
    return list(words)


def _positive(path: Path, number: int, name: str, cell: str) -> float | None:
    if not cell:
        return None
    try:
        value = float(cell) if "_" not in cell else math.nan
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise _bad(path, number, f"has {name} {cell[:40]!r}", "it is a finite number above zero, or empty if unknown")
    return value


def _bad(path: Path, number: int, what: str, why: str) -> InputRefused:
    return InputRefused(f"{path}, line {number}, {what}", why=why, fix="correct the row or leave it out")
