"""What a judged trial teaches the models: one row of data."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from infrarsi_hpc.domain.knobs import Configuration
from infrarsi_hpc.domain.outcome import Outcome


class Observation(BaseModel):
    """One finished trial as data.

    Attributes
    ----------
    step_seconds
        Measured step time; none unless the outcome is `ok`.
    step_noise
        Relative standard error of `step_seconds`, from the steps themselves.
    peak_gib
        Measured peak memory per device; none if unknown.
    bound_gib
        For `device_oom`: the peak would have been at least this.
    device_seconds
        What it cost: wall seconds times devices.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    trial: str
    configuration: Configuration
    patches: tuple[str, ...] = ()
    outcome: Outcome
    detail: str | None = None
    step_seconds: float | None = None
    step_noise: float | None = None
    peak_gib: float | None = None
    bound_gib: float | None = None
    device_seconds: float = 0.0
    source: str = ""
    is_believed: bool = True
