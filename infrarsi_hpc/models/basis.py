"""What a workload tells the models: analytic components, how well they are known, and rules.

A basis turns settings into components (GiB a device, seconds a step). The models learn one positive scale for each
component and a log-factor for what the components cannot see. Formulas are written for columns: every setting may be
one value or an array of values, and what comes back has the broadcast shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from infrarsi_hpc.domain.contract import Shape

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]
#: One value, or one column of values, for every knob. Knobs that a basis does not find have its defaults.
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Prior:
    """A normal belief about a logarithm: `mean` and standard deviation `width` of log(scale) or log(factor)."""

    mean: float = 0.0
    width: float = 0.5

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and math.isfinite(self.width) and self.width > 0):
            raise ValueError(f"a prior needs a finite mean and a positive width, not {self.mean} and {self.width}")


@dataclass(frozen=True)
class FactorPrior:
    """How far a knob may change the whole beyond the components.

    Attributes
    ----------
    width
        Standard deviation of the log-factor of each value other than the baseline's; 0: none.
    trend_width
        For numeric knobs with positive values: standard deviation of a log-factor a doubling; 0: none.
    means
        Expected log-factor of single values, by the value as text.
    """

    width: float = 0.0
    trend_width: float = 0.0
    means: Mapping[str, float] = field(default_factory=dict)


class Basis(Protocol):
    """A workload's components, their priors, and its rules.

    `memory_components` gives GiB a device and name, `time_components` seconds a step and name; every value is at
    least 0 and the sum is positive. `rules` says in plain words why a configuration cannot run (empty: it may);
    `allowed` is the same question for columns of settings.
    """

    @property
    def kind(self) -> str:
        """The workload's kind, as the contract names it."""
        ...

    @property
    def memory_priors(self) -> Mapping[str, Prior]:
        """For each memory component, the prior of the log of its scale."""
        ...

    @property
    def time_priors(self) -> Mapping[str, Prior]:
        """For each time component, the prior of the log of its scale."""
        ...

    @property
    def memory_scale(self) -> Prior:
        """How far all memory components together may be off."""
        ...

    @property
    def time_scale(self) -> Prior:
        """How far all time components together may be off: how fast the machine is."""
        ...

    def memory_factor(self, knob: str) -> FactorPrior:
        """What a knob may do to peak memory beyond the components."""
        ...

    def time_factor(self, knob: str) -> FactorPrior:
        """What a knob may do to step time beyond the components."""
        ...

    def memory_components(self, settings: Settings, shape: Shape) -> dict[str, FloatArray]:
        """GiB a device by component."""
        ...

    def time_components(self, settings: Settings, shape: Shape) -> dict[str, FloatArray]:
        """Seconds a step by component, at nominal rates."""
        ...

    def rules(self, configuration: Settings, shape: Shape, cores: int | None = None) -> list[str]:
        """Why this configuration cannot run."""
        ...

    def allowed(self, settings: Settings, shape: Shape, cores: int | None = None) -> BoolArray:
        """Whether each row breaks no rule."""
        ...
