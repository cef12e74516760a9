"""Knobs (launch settings) and configurations (one value for each of them)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from infrarsi_hpc.domain.digest import digest_json

KNOB_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
_FLAG = re.compile(r"--[A-Za-z][A-Za-z0-9-]{0,63}\Z")
_TEXT_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+:/-]{0,63}\Z")


def _checked_value(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError('a knob\'s value is an integer, a finite number or a short word ("on", not true)')
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a knob's value must be finite")
    if isinstance(value, str) and not _TEXT_VALUE.match(value):
        raise ValueError(f"{value!r} is not a short word of letters, digits and _ . + : / -")
    return value


Value = Annotated[int | float | str, BeforeValidator(_checked_value)]
#: One value for every knob, by knob name.
Configuration = dict[str, int | float | str]


def configuration_id(configuration: Mapping[str, int | float | str]) -> str:
    """The configuration's name: the first 12 hex digits of the digest of its canonical form."""
    return digest_json(dict(configuration))[:12]


class Knob(BaseModel):
    """One launch setting, its values, and how it reaches the program.

    `role = "ranks"` means that the launcher starts so many processes (no flag is passed); every other knob is
    passed as `flag value`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    values: tuple[Value, ...] = Field(min_length=1, max_length=64)
    baseline: Value
    flag: str | None = None
    role: Literal["setting", "ranks"] = "setting"
    about: str = ""

    @field_validator("flag")
    @classmethod
    def _flag_is_a_long_option(cls, flag: str | None) -> str | None:
        if flag is not None and not _FLAG.match(flag):
            raise ValueError(f"{flag!r} is not a long option such as --micro-batch")
        return flag

    @model_validator(mode="after")
    def _baseline_is_a_value(self) -> Knob:
        if len(set(self.values)) != len(self.values):
            raise ValueError("a value is listed twice")
        if self.baseline not in self.values:
            raise ValueError(f"baseline {self.baseline!r} is not among the values {list(self.values)}")
        if self.role == "ranks":
            if not all(isinstance(v, int) and v >= 1 for v in self.values):
                raise ValueError('a knob with role "ranks" has positive integers as values')
        elif self.flag is None:
            raise ValueError("a knob needs `flag`, the option that passes it to the program")
        return self

    @property
    def is_numeric(self) -> bool:
        """Whether every value is a number, so that more and less have a meaning."""
        return all(isinstance(v, int | float) for v in self.values)


class KnobSet(BaseModel):
    """All knobs of a contract, in the order in which the contract lists them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    knobs: dict[str, Knob]

    @field_validator("knobs")
    @classmethod
    def _names(cls, knobs: dict[str, Knob]) -> dict[str, Knob]:
        for name in knobs:
            if not KNOB_NAME.match(name):
                raise ValueError(f"knob name {name!r} is not lower_snake_case")
        if sum(k.role == "ranks" for k in knobs.values()) > 1:
            raise ValueError('at most one knob has role "ranks"')
        return knobs

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]
        return iter(self.knobs)

    def __getitem__(self, name: str) -> Knob:
        return self.knobs[name]

    def baseline(self) -> Configuration:
        """The baseline's configuration."""
        return {name: knob.baseline for name, knob in self.knobs.items()}

    def num_ranks(self, configuration: Mapping[str, int | float | str]) -> int:
        """How many processes a configuration starts (1 where no knob says)."""
        for name, knob in self.knobs.items():
            if knob.role == "ranks":
                return int(configuration[name])
        return 1

    def arguments(self, configuration: Mapping[str, int | float | str]) -> list[str]:
        """The program's arguments for a configuration: one `flag value` pair a knob."""
        arguments: list[str] = []
        for name, knob in self.knobs.items():
            if knob.flag is not None:
                arguments += [knob.flag, str(configuration[name])]
        return arguments
