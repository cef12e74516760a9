"""A workload about which nothing is known: a log-linear model of its knobs.

log y = constant + numeric knobs (per doubling) + one log-factor for every other value. No formula, so no
extrapolation beyond values seen; the search leans on trials instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from infrarsi_hpc.domain.contract import Shape
from infrarsi_hpc.models.basis import BoolArray, FactorPrior, FloatArray, Prior, Settings


@dataclass(frozen=True)
class GenericBasis:
    """One component of size 1, wide scales, and factors for all knobs."""

    kind: str = "torch"
    memory_priors: Mapping[str, Prior] = field(default_factory=lambda: {"total": Prior(0.0, 0.05)})
    time_priors: Mapping[str, Prior] = field(default_factory=lambda: {"total": Prior(0.0, 0.05)})
    memory_scale: Prior = field(default_factory=lambda: Prior(1.0, 2.5))
    time_scale: Prior = field(default_factory=lambda: Prior(0.0, 3.0))

    def on(self, device: str) -> GenericBasis:  # noqa: ARG002
        """The same on every device: nothing is known of any."""
        return self

    def memory_factor(self, knob: str) -> FactorPrior:  # noqa: ARG002
        """Every value may change the peak by about a sixth, every doubling by a third."""
        return FactorPrior(width=0.15, trend_width=0.3)

    def time_factor(self, knob: str) -> FactorPrior:  # noqa: ARG002
        """Every value may change the step time by about a tenth, every doubling by a fifth."""
        return FactorPrior(width=0.1, trend_width=0.2)

    def memory_components(self, settings: Settings, shape: Shape) -> dict[str, FloatArray]:  # noqa: ARG002
        """One GiB for every row."""
        return {"total": _ones(settings)}

    def time_components(self, settings: Settings, shape: Shape) -> dict[str, FloatArray]:  # noqa: ARG002
        """One second for every row."""
        return {"total": _ones(settings)}

    def rules(self, configuration: Settings, shape: Shape, cores: int | None = None) -> list[str]:  # noqa: ARG002
        """None are known; what cannot run is learned."""
        return []

    def allowed(self, settings: Settings, shape: Shape, cores: int | None = None) -> BoolArray:  # noqa: ARG002
        """Everything may be tried."""
        return _ones(settings).astype(bool)


def _ones(settings: Settings) -> FloatArray:
    return np.ones(np.broadcast_shapes(*(np.shape(v) for v in settings.values())))
