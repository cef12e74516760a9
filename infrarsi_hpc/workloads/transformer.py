"""A transformer spread over many cards (tensor, pipeline, data, context and expert parallel), dense or with experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from infrarsi_hpc.domain.contract import Shape
from infrarsi_hpc.models.basis import BoolArray, FactorPrior, FloatArray, Prior, Settings
from infrarsi_hpc.workloads import transformer_memory, transformer_time
from infrarsi_hpc.workloads.transformer_layout import KNOWN, broken_rules
from infrarsi_hpc.workloads.transformer_workload import TransformerWorkload

#: What a word may do beyond the formulas (kernels differ by more than by what they keep), and a knob unknown to them.
_WORDS_TIME, _WORDS_MEMORY = FactorPrior(width=0.1), FactorPrior(width=0.1)
_UNKNOWN_TIME, _UNKNOWN_MEMORY = FactorPrior(width=0.12, trend_width=0.1), FactorPrior(width=0.1, trend_width=0.1)
_WORDS = frozenset({"kernel", "attention", "recompute", "optimizer"})


@dataclass(frozen=True)
class TransformerBasis:
    """Components of one workload; the contract's `Shape` is not asked, since it has no cards in it."""

    workload: TransformerWorkload
    kind: str = "transformer"
    memory_priors: Mapping[str, Prior] = field(default_factory=lambda: transformer_memory.PRIORS)
    time_priors: Mapping[str, Prior] = field(default_factory=lambda: transformer_time.PRIORS)
    memory_scale: Prior = field(default_factory=lambda: Prior(0.0, 0.1))
    time_scale: Prior = field(default_factory=lambda: Prior(0.0, 0.3))

    def memory_factor(self, knob: str) -> FactorPrior:
        """Formulas carry the numbers; words and unknown knobs are left open."""
        return _WORDS_MEMORY if knob in _WORDS else FactorPrior() if knob in KNOWN else _UNKNOWN_MEMORY

    def time_factor(self, knob: str) -> FactorPrior:
        """Formulas carry the numbers, all but a few percent; words and unknown knobs are left open."""
        return _WORDS_TIME if knob in _WORDS else FactorPrior(width=0.03) if knob in KNOWN else _UNKNOWN_TIME

    def memory_components(self, settings: Settings, shape: Shape) -> dict[str, FloatArray]:  # noqa: ARG002
        """GiB a card by component, of its fullest pipeline stage."""
        return transformer_memory.memory_components(settings, self.workload)

    def time_components(self, settings: Settings, shape: Shape) -> dict[str, FloatArray]:  # noqa: ARG002
        """Seconds a step by component, at nominal rates."""
        return transformer_time.time_components(settings, self.workload)

    def rules(self, configuration: Settings, shape: Shape, cores: int | None = None) -> list[str]:  # noqa: ARG002
        """Why this configuration cannot run."""
        return [why for is_broken, why in broken_rules(configuration, self.workload) if bool(np.any(is_broken))]

    def allowed(self, settings: Settings, shape: Shape, cores: int | None = None) -> BoolArray:  # noqa: ARG002
        """Whether each row breaks no rule."""
        broken = [is_broken for is_broken, _ in broken_rules(settings, self.workload)]
        result: BoolArray = ~np.logical_or.reduce(np.broadcast_arrays(*broken))
        return result
