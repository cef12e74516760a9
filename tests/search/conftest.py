"""A torch-gpt problem over the demo's knobs, and a way to write observations down quickly."""

from __future__ import annotations

import os

# before numpy is first imported: on a busy machine BLAS threads wait for each other, and small fits take ten times
# as long (77 s instead of 7 for a campaign test)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable

import pytest

from infrarsi_hpc.domain.contract import Shape
from infrarsi_hpc.domain.knobs import Knob, KnobSet
from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.models.problem import Problem
from infrarsi_hpc.workloads import BASES

Observe = Callable[..., Observation]


def _knob(values: tuple[int | str, ...], baseline: int | str, flag: str) -> Knob:
    return Knob(values=values, baseline=baseline, flag=flag)


@pytest.fixture
def problem() -> Problem:
    knobs = {
        "micro_batch": _knob((1, 2, 4, 8), 2, "--micro-batch"),
        "ranks": Knob(values=(1, 2), baseline=1, role="ranks"),
        "threads": _knob((1, 2), 1, "--threads"),
        "attention": _knob(("math", "sdpa"), "math", "--attention"),
        "recompute": _knob(("none", "attention", "full"), "none", "--recompute"),
        "compile": _knob(("off", "on"), "off", "--compile"),
        "precision": _knob(("fp32", "bf16"), "fp32", "--precision"),
        "optimizer": _knob(("loop", "foreach", "fused"), "foreach", "--optimizer"),
        "gradient_sync": _knob(("every", "last"), "every", "--gradient-sync"),
        "data_workers": _knob((0, 1, 2), 0, "--data-workers"),
        "bucket_mib": _knob((1, 8, 25), 25, "--bucket-mib"),
        "allocator": _knob(("default", "retain"), "default", "--allocator"),
    }
    return Problem(
        KnobSet(knobs=knobs),
        BASES["torch-gpt"],
        Shape(layers=4, hidden=128, heads=4, feed_forward=512, vocabulary=512, sequence_length=256, global_batch=16),
        memory_limit_gib=0.2,
        cores=2,
    )


@pytest.fixture
def patches() -> tuple[Patch, ...]:
    return (
        Patch(name="fused-loss", text="a", expected_time_factor=0.93, expected_memory_gib=-0.02),
        Patch(name="wide-cache", text="b", expected_time_factor=0.9, expected_memory_gib=0.3),
        Patch(name="tidy", text="c"),
    )


@pytest.fixture
def observe(problem: Problem) -> Observe:
    """`observe(step_seconds, peak_gib, patches=..., outcome=..., knob=value...)`."""
    count = iter(range(10_000))

    def make(
        step_seconds: float | None = None,
        peak_gib: float | None = None,
        patches: tuple[str, ...] = (),
        outcome: Outcome = Outcome.OK,
        **changes: int | str,
    ) -> Observation:
        return Observation(
            trial=f"t{next(count)}",
            configuration={**problem.knob_set.baseline(), **changes},
            patches=patches,
            outcome=outcome,
            step_seconds=step_seconds,
            step_noise=0.01 if step_seconds else None,
            peak_gib=peak_gib,
            bound_gib=problem.memory_limit_gib if outcome is Outcome.DEVICE_OOM else None,
        )

    return make
