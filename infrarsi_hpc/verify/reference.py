"""What a trial's evidence is held against: the doctor's run of the same seed, or the baseline arm of its own pair.

Only what was run at the same length under the same seed is comparable step by step: a learning rate schedule may
depend on the number of steps asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from infrarsi_hpc.domain.noise import BaselineStep, DoctorReport
from infrarsi_hpc.domain.trial import TrialResult


@dataclass(frozen=True)
class Reference:
    """The baseline's evidence, and the machine's and the baseline's own spread.

    Attributes
    ----------
    steps
        The baseline's steps by the length of the run that showed them.
    evaluation_losses
        Held-out loss of the final weights by the length of that run.
    missing
        Why there is nothing to compare with; empty otherwise.
    """

    doctor: DoctorReport
    steps: Mapping[int, tuple[BaselineStep, ...]]
    evaluation_losses: Mapping[int, float]
    matmul_dtypes: tuple[str, ...] = ()
    linear_flops_per_token: float | None = None
    other_flops_per_token: float | None = None
    uncounted_operators: tuple[str, ...] = ()
    missing: str = ""


def reference_of_seed(doctor: DoctorReport, seed: int) -> Reference:
    """The doctor's own run under a seed."""
    steps = doctor.reference.get(str(seed), ())
    loss = doctor.evaluation_losses.get(str(seed))
    return Reference(
        doctor=doctor,
        steps={len(steps): steps} if steps else {},
        evaluation_losses={len(steps): loss} if steps and loss is not None else {},
        matmul_dtypes=doctor.matmul_dtypes,
        linear_flops_per_token=doctor.linear_flops_per_token,
        other_flops_per_token=doctor.other_flops_per_token,
        uncounted_operators=doctor.uncounted_operators,
        missing="" if steps else f"the doctor has no baseline run of seed {seed}",
    )


def reference_of_pair(doctor: DoctorReport, baseline: TrialResult | None) -> Reference:
    """The baseline arm of the same pair: same seed, same lengths, same evaluation data, minutes apart."""
    runs = baseline.runs if baseline is not None else ()
    return Reference(
        doctor=doctor,
        steps={run.length: tuple(BaselineStep(**step.model_dump()) for step in run.steps) for run in runs if run.steps},
        evaluation_losses={run.length: run.evaluation_loss for run in runs if run.evaluation_loss is not None},
        matmul_dtypes=doctor.matmul_dtypes,
        linear_flops_per_token=doctor.linear_flops_per_token,
        other_flops_per_token=doctor.other_flops_per_token,
        uncounted_operators=doctor.uncounted_operators,
        missing="" if runs else "the baseline run of the same pair left no result",
    )
