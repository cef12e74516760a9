"""The doctor's report: what the baseline is, and how much this machine's times can be trusted."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class BaselineStep(BaseModel):
    """What the baseline showed at one step, over its repeats under one seed: the reference for evidence checks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: int
    token_hash: str
    loss: float | None
    update_rms: float | None
    moved_share: float | None


class DoctorReport(BaseModel):
    """`doctor.json`.

    Attributes
    ----------
    step_seconds
        The baseline's step time: median over runs.
    within_run_cv, between_run_cv
        Coefficient of variation of steps in a run, and of runs.
    detectable_speedup
        Smallest ratio that a promotion with the contract's `max_pairs` pairs tells from noise.
    pairs_needed
        Pairs of runs that the contract's own threshold takes. For small gains on noisy machines more than anybody has:
        `verify.noise.resolution` says what an hour tells.
    matmul_ceiling_flops
        Best measured matrix-product rate of all the devices together, FLOP/s.
    mfu
        Model FLOPs of a step over step time and that ceiling.
    phases
        Seconds a step: data, forward, backward, optimizer, communication.
    loss_spread_relative, evaluation_spread_relative, update_spread_relative
        Spread over repeats under different seeds and rank layouts, from which tolerances are widened.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    contract_sha256: str
    baseline_commit: str
    device_key: str
    node: str
    measured_at: float
    num_runs: int
    step_seconds: float
    within_run_cv: float
    between_run_cv: float
    detectable_speedup: float
    pairs_needed: int
    peak_gib: float | None
    memory_kind: str
    matmul_ceiling_flops: float
    mfu: float
    phases: dict[str, float]
    num_parameters: int
    parameters_digest: str
    matmul_dtypes: tuple[str, ...]
    evaluation_loss: float | None
    #: Held-out loss after `reference`'s steps by training seed, on the data that `evaluation_seed` draws.
    evaluation_losses: dict[str, float] = {}
    evaluation_seed: int = 0
    #: FLOPs of activations times weights up to the first backward pass, per token.
    linear_flops_per_token: float | None = None
    #: FLOPs of all other products there, per token.
    other_flops_per_token: float | None = None
    #: Operators of the baseline that may do products, and have no formula.
    uncounted_operators: tuple[str, ...] = ()
    loss_spread_relative: float
    evaluation_spread_relative: float
    update_spread_relative: float
    wall_seconds: float
    device_seconds: float
    #: What a pair of a promotion takes, as an estimate from these runs; none in reports of earlier versions.
    pair_seconds: float | None = None
    #: What was seen that makes runs differ, where they do by more than 5%.
    noise_causes: tuple[str, ...] = ()
    #: The baseline's evidence by seed ("7" -> one entry a step), at the campaign's trial length.
    reference: dict[str, tuple[BaselineStep, ...]]
    versions: dict[str, str] = {}
