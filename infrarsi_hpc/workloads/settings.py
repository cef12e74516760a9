"""Read settings as columns: one value or an array of them, numbers or words, with defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from infrarsi_hpc.errors import InputRefused
from infrarsi_hpc.models.basis import BoolArray, FloatArray, Settings


def number(settings: Settings, name: str, defaults: Mapping[str, Any]) -> FloatArray:
    """A numeric setting.

    Raises
    ------
    InputRefused
        The contract gives this knob words.
    """
    values = np.asarray(settings.get(name, defaults[name]))
    if values.dtype.kind not in "iuf":
        raise InputRefused(
            f"knob {name} has the value {np.ravel(values)[0]!s}",
            why="this workload's formulas take a number there",
            fix=f"give {name} numbers in [knobs.{name}], or rename the knob",
        )
    return values.astype(float)


def is_word(settings: Settings, name: str, word: str, defaults: Mapping[str, Any]) -> BoolArray:
    """Whether a setting is this word."""
    result: BoolArray = np.asarray(settings.get(name, defaults[name])).astype(str) == word
    return result


def words_with(settings: Settings, name: str, parts: tuple[str, ...], defaults: Mapping[str, Any]) -> BoolArray:
    """Whether a setting is a word that contains one of these, in whatever case."""
    words = np.char.lower(np.asarray(settings.get(name, defaults[name])).astype(str))
    found: BoolArray = np.logical_or.reduce([np.char.find(words, part) >= 0 for part in parts])
    return found
