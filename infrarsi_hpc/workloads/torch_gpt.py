"""The `torch-gpt` workload: a GPT trained data-parallel with plain torch, on CPU ranks or on GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from infrarsi_hpc.domain.contract import Shape
from infrarsi_hpc.models.basis import BoolArray, FactorPrior, FloatArray, Prior, Settings
from infrarsi_hpc.workloads import torch_gpt_memory, torch_gpt_time
from infrarsi_hpc.workloads.torch_gpt_knobs import DEFAULTS, broken_rules

#: A knob that the formulas do not know: its values may do this much to time and to memory.
_UNKNOWN_TIME = FactorPrior(width=0.15, trend_width=0.1)
_UNKNOWN_MEMORY = FactorPrior(width=0.1, trend_width=0.1)
_TIME_FACTORS = {
    "attention": FactorPrior(width=0.1),
    "compile": FactorPrior(width=0.1),
    "precision": FactorPrior(width=0.1),
    "recompute": FactorPrior(width=0.05),
    "ranks": FactorPrior(width=0.1),
    "threads": FactorPrior(width=0.1),
    "micro_batch": FactorPrior(width=0.06),
}
_MEMORY_FACTORS = {"compile": FactorPrior(width=0.15), "precision": FactorPrior(width=0.1)}


@dataclass(frozen=True)
class TorchGptBasis:
    """Components of a GPT on one kind of device (`cpu` or `cuda`)."""

    device: str = "cpu"
    kind: str = "torch-gpt"
    memory_priors: Mapping[str, Prior] = field(default_factory=lambda: torch_gpt_memory.PRIORS)
    time_priors: Mapping[str, Prior] = field(default_factory=lambda: torch_gpt_time.PRIORS)
    memory_scale: Prior = field(default_factory=lambda: Prior(0.0, 0.15))
    time_scale: Prior = field(default_factory=lambda: Prior(0.0, 1.2))

    def on(self, device: str) -> TorchGptBasis:
        """The same workload on another kind of device."""
        return replace(self, device=device)

    def memory_factor(self, knob: str) -> FactorPrior:
        """Formulas carry the known knobs; only what a compiler or a precision does is left open."""
        return _MEMORY_FACTORS.get(knob, FactorPrior() if knob in DEFAULTS else _UNKNOWN_MEMORY)

    def time_factor(self, knob: str) -> FactorPrior:
        """Every known setting may be off by a few percent."""
        return _TIME_FACTORS.get(knob, FactorPrior(width=0.03) if knob in DEFAULTS else _UNKNOWN_TIME)

    def memory_components(self, settings: Settings, shape: Shape) -> dict[str, FloatArray]:
        """GiB a rank by component: growth after set-up on a CPU, reserved memory on a GPU."""
        return torch_gpt_memory.memory_components(settings, shape, self.device)

    def time_components(self, settings: Settings, shape: Shape) -> dict[str, FloatArray]:
        """Seconds a step by component, at nominal rates."""
        memory = self.memory_components(settings, shape)
        dynamic = memory["activations"] + memory["attention_scores"] + memory["logits"]
        return torch_gpt_time.time_components(settings, shape, self.device, dynamic)

    def rules(self, configuration: Settings, shape: Shape, cores: int | None = None) -> list[str]:
        """Why this configuration cannot run."""
        return [why for is_broken, why in self._rules(configuration, shape, cores) if bool(np.any(is_broken))]

    def allowed(self, settings: Settings, shape: Shape, cores: int | None = None) -> BoolArray:
        """Whether each row breaks no rule."""
        broken = [is_broken for is_broken, _ in self._rules(settings, shape, cores)]
        result: BoolArray = ~np.logical_or.reduce(np.broadcast_arrays(*broken))
        return result

    def _rules(self, settings: Settings, shape: Shape, cores: int | None) -> list[tuple[BoolArray, str]]:
        return broken_rules(settings, shape, cores if self.device == "cpu" else None)
