"""A small world for verification: a contract, a doctor's report, and results that agree with both until changed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from infrarsi_hpc.domain.contract import Contract
from infrarsi_hpc.domain.noise import BaselineStep, DoctorReport
from infrarsi_hpc.domain.trial import Run, StepEvidence, TrialLimits, TrialResult, TrialSpec

NUM_STEPS = 8
SEED = 7
STEP_SECONDS = 0.1
SETUP_SECONDS = 2.0
#: Tokens a step of the contract below.
TOKENS = 4 * 256
PARAMETERS = 1_000_000
DIGEST = hashlib.sha256(b"parameters").hexdigest()


def _losses(num: int) -> list[float]:
    return [6.4 - 0.05 * k for k in range(num)]


def _step(k: int, **changes: Any) -> StepEvidence:
    values = {
        "tokens": TOKENS,
        "token_hash": f"{k:016x}",
        "loss": _losses(k + 1)[k],
        "update_rms": 1e-3,
        "moved_share": 1.0,
    }
    return StepEvidence(**{**values, **changes})


@pytest.fixture
def contract() -> Contract:
    return Contract.model_validate(
        {
            "schema_version": 1,
            "name": "tiny",
            "scope": {
                "editable": ["train/**"],
                "locked": ["train/loop.py"],
                "settings": "launch.toml",
            },
            "workload": {
                "kind": "torch-gpt",
                "command": ["python", "-m", "train", "--steps", "{steps}", "--seed", "{seed}"],
                "evaluate": ["python", "-m", "train.evaluate", "{weights}", "{seed}"],
                "shape": {
                    "layers": 2,
                    "hidden": 64,
                    "heads": 4,
                    "feed_forward": 256,
                    "vocabulary": 512,
                    "sequence_length": 256,
                    "global_batch": 4,
                },
            },
            "knobs": {"micro_batch": {"values": [1, 2, 4], "baseline": 1, "flag": "--micro-batch"}},
            "limits": {"memory_gib": 1.5},
        }
    )


@pytest.fixture
def step() -> Callable[..., StepEvidence]:
    return _step


@pytest.fixture
def make_run() -> Callable[..., Run]:
    """A run of `length` steps as the baseline makes it, with changes."""

    def make(length: int = NUM_STEPS, **changes: Any) -> Run:
        values = {
            "length": length,
            "wall_seconds": SETUP_SECONDS + length * STEP_SECONDS + 1.0,
            "setup_seconds": SETUP_SECONDS,
            "step_ends": tuple(SETUP_SECONDS + (k + 1) * STEP_SECONDS for k in range(length)),
            "exit_codes": (0,),
            "peak_gib": (0.75,),
            "steps": tuple(_step(k) for k in range(length)),
            "num_parameters": PARAMETERS,
            "parameters_digest": DIGEST,
            "matmul_dtypes": ("float32",),
            "linear_flops_per_token": 4e6,
            "evaluation_loss": 6.1,
        }
        return Run(**{**values, **changes})

    return make


@pytest.fixture
def make_result() -> Callable[..., TrialResult]:
    def make(*runs: Run, **changes: Any) -> TrialResult:
        values = {
            "trial": "t0001",
            "attempt": 1,
            "node": "n1",
            "started_at": 0.0,
            "finished_at": 4.0,
            "device_seconds": 4.0,
        }
        return TrialResult(**{**values, "runs": runs, **changes})

    return make


@pytest.fixture
def make_spec() -> Callable[..., TrialSpec]:
    def make(**changes: Any) -> TrialSpec:
        values = {
            "trial": "t0001",
            "purpose": "search",
            "project": "/p",
            "baseline_commit": "0" * 40,
            "configuration": {"micro_batch": 1},
            "command": ("python", "-m", "train"),
            "lengths": (NUM_STEPS,),
            "seed": SEED,
            "limits": TrialLimits(memory_gib=1.5, memory_set_by="harness", wall_seconds=300, idle_seconds=60),
            "evidence": {"evaluation_seed": 11},
        }
        return TrialSpec(**{**values, **changes})

    return make


@pytest.fixture
def doctor() -> DoctorReport:
    return DoctorReport(
        contract_sha256="c",
        baseline_commit="0" * 40,
        device_key="cpu",
        node="n1",
        measured_at=0.0,
        num_runs=5,
        step_seconds=STEP_SECONDS,
        within_run_cv=0.02,
        between_run_cv=0.02,
        detectable_speedup=1.05,
        pairs_needed=4,
        peak_gib=0.75,
        memory_kind="vmdata_growth",
        matmul_ceiling_flops=100e9,
        mfu=0.1,
        phases={},
        num_parameters=PARAMETERS,
        parameters_digest=DIGEST,
        matmul_dtypes=("float32",),
        evaluation_loss=6.1,
        evaluation_losses={str(SEED): 6.1},
        evaluation_seed=11,
        linear_flops_per_token=4e6,
        loss_spread_relative=0.0,
        evaluation_spread_relative=0.002,
        update_spread_relative=0.0,
        wall_seconds=60.0,
        device_seconds=60.0,
        reference={str(SEED): tuple(BaselineStep(**_step(k).model_dump()) for k in range(NUM_STEPS))},
    )
