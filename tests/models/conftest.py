"""A small torch-gpt problem with two patches."""

from __future__ import annotations

import os

# before numpy is first imported: on a busy machine BLAS threads wait for each other, and small fits take ten times
# as long (77 s instead of 7 for a campaign test)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from infrarsi_hpc.domain.contract import Shape
from infrarsi_hpc.domain.knobs import Knob, KnobSet
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.models.problem import Problem
from infrarsi_hpc.workloads import BASES


@pytest.fixture
def problem() -> Problem:
    knobs = {
        "micro_batch": Knob(values=(1, 2, 4, 8), baseline=2, flag="--micro-batch"),
        "ranks": Knob(values=(1, 2), baseline=1, role="ranks"),
        "attention": Knob(values=("math", "sdpa"), baseline="math", flag="--attention"),
        "recompute": Knob(values=("none", "attention", "full"), baseline="none", flag="--recompute"),
        "gelu": Knob(values=("exact", "tanh"), baseline="exact", flag="--gelu"),
    }
    return Problem(
        KnobSet(knobs=knobs),
        BASES["torch-gpt"],
        Shape(layers=4, hidden=128, heads=4, feed_forward=512, vocabulary=512, sequence_length=256, global_batch=16),
        memory_limit_gib=0.2,
        patches=(
            Patch(name="fused-loss", text="a", expected_time_factor=0.9, expected_memory_gib=-0.03),
            Patch(name="tidy", text="b"),
        ),
    )
