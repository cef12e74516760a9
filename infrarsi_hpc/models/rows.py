"""From observations to rows of data: what each ending says about step time and about peak memory.

A finished trial gives its peak; one that ran out of memory says that its peak would have been more (right-censored
at the bound); one that ran without a reading says that its peak was below the limit (left-censored). A failure for
another reason says nothing about either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.errors import InputRefused
from infrarsi_hpc.models.basis import FloatArray, IntArray


class Censoring(IntEnum):
    """What a peak-memory row says."""

    NONE = 0
    #: The true value lies above the given one.
    RIGHT = 1
    #: The true value lies below the given one.
    LEFT = -1


class ObservationRefused(InputRefused, ValueError):
    """A measured number that cannot be one."""


class NoUpperEstimate(InputRefused, ValueError):
    """Every peak is censored from above: nothing bounds memory from above."""


@dataclass(frozen=True)
class MemoryRows:
    """Peaks and bounds. `index` points into the observations that they came from."""

    index: IntArray
    log_gib: FloatArray
    censoring: IntArray


@dataclass(frozen=True)
class TimeRows:
    """Step times with their own relative standard error."""

    index: IntArray
    log_seconds: FloatArray
    noise: FloatArray


def positive(value: float, what: str, trial: str) -> float:
    """The value, if it is a finite positive number.

    Raises
    ------
    ObservationRefused
        It is not.
    """
    if not math.isfinite(value) or value <= 0:
        raise ObservationRefused(
            f"trial {trial}: {what} is {value}",
            why="a measured time or peak is a finite number above zero",
            fix="leave the trial out, or record it as failed",
        )
    return float(value)


def memory_rows(observations: Sequence[Observation], limit_gib: float | None) -> MemoryRows:
    """What the observations say about peak memory.

    `limit_gib` stands in for a missing bound of an out-of-memory trial and for the peak of a trial that ran without
    a reading; without a limit such rows say nothing and are left out. Repeats are kept, also contradictory ones.

    Raises
    ------
    ObservationRefused
        A peak or bound is not a finite number above zero.
    """
    if limit_gib is not None:
        positive(limit_gib, "memory limit", "all")
    index: list[int] = []
    log_gib: list[float] = []
    censoring: list[int] = []
    for i, row in enumerate(observations):
        kind, value, what = Censoring.NONE, None, "peak_gib"
        if row.outcome is Outcome.OK:
            value = row.peak_gib
            if value is None:
                kind, value = Censoring.LEFT, limit_gib
        elif row.outcome is Outcome.DEVICE_OOM:
            kind, what = Censoring.RIGHT, "bound_gib"
            value = row.bound_gib if row.bound_gib is not None else limit_gib
        if value is None:
            continue
        index.append(i)
        log_gib.append(math.log(positive(value, what, row.trial)))
        censoring.append(int(kind))
    return MemoryRows(np.array(index, np.int64), np.array(log_gib, float), np.array(censoring, np.int64))


def time_rows(observations: Sequence[Observation]) -> TimeRows:
    """What the observations say about step time: the finished and believed ones.

    Raises
    ------
    ObservationRefused
        A step time is not a finite number above zero, or its noise not a finite number from zero up.
    """
    index: list[int] = []
    log_seconds: list[float] = []
    noise: list[float] = []
    for i, row in enumerate(observations):
        if row.outcome is not Outcome.OK or not row.is_believed or row.step_seconds is None:
            continue
        spread = row.step_noise or 0.0
        if not math.isfinite(spread) or spread < 0:
            raise ObservationRefused(
                f"trial {row.trial}: step_noise is {spread}",
                why="a relative standard error is a finite number from zero up",
                fix="leave it out: the models then use the spread that they see themselves",
            )
        index.append(i)
        log_seconds.append(math.log(positive(row.step_seconds, "step_seconds", row.trial)))
        noise.append(spread)
    return TimeRows(np.array(index, np.int64), np.array(log_seconds, float), np.array(noise, float))
