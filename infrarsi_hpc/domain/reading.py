"""What verification reads out of a trial's result: numbers with a meaning, before any verdict."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Reading(BaseModel):
    """The numbers of one finished trial.

    Attributes
    ----------
    step_seconds
        Median step after warm-up, by the agent's clock; none if too few steps were seen.
    step_noise
        Relative standard error of that median.
    warmup_steps
        Leading steps left out because they were slower than the rest.
    slope_seconds
        Step time as the slope of whole-process wall time between two lengths; none with one length.
    peak_gib, memory_kind
        Peak memory per device, max over ranks and runs.
    losses
        Training loss by step of the longest run.
    evaluation_loss
        Held-out loss of the final weights, by locked code in its own process.
    phases
        Seconds a step by phase (profiled trials only).
    foreign_cores
        Processors' worth of work that others did on this trial's processors meanwhile, a hypervisor's other machines
        included: the most over its runs; none where nobody could tell.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    step_seconds: float | None = None
    step_noise: float | None = None
    warmup_steps: int = 0
    slope_seconds: float | None = None
    peak_gib: float | None = None
    memory_kind: str = "vmdata_growth"
    setup_seconds: float | None = None
    losses: tuple[float | None, ...] = ()
    evaluation_loss: float | None = None
    phases: dict[str, float] | None = None
    foreign_cores: float | None = None
    device_seconds: float = 0.0
    num_parameters: int | None = None
