"""What the head hands to the agent (`spec.json`) and what comes back (`result.json`).

The agent writes the result with the standard library alone; the head reads it through these models, strictly,
since everything a trial says is untrusted until verified.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from infrarsi_hpc.domain.contract import OperatorFormula
from infrarsi_hpc.domain.knobs import Configuration

SCHEMA_VERSION = 1
#: A result larger than this is not read.
MAX_RESULT_BYTES = 8 * 2**20

TrialId = Annotated[str, StringConstraints(pattern=r"^[a-z][0-9a-z-]{0,40}$")]
Purpose = Literal["search", "baseline", "verify", "profile", "try"]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PatchFile(_Record):
    """A patch as the agent gets it: the digest, and the file beside the spec that has the text."""

    sha256: str
    path: str


class TrialLimits(_Record):
    """Limits of each run of the program, and who set the memory limit."""

    memory_gib: float | None = None
    memory_set_by: Literal["harness", "device"] = "device"
    wall_seconds: float
    idle_seconds: float


class Evidence(_Record):
    """What the agent is asked to bring back beside the times."""

    #: Split the step into phases with torch.profiler (such a run is never used as a timing).
    profile: bool = False
    #: Seed of the held-out evaluation of the final weights, or none.
    evaluation_seed: int | None = None


class TrialSpec(_Record):
    """`spec.json`, one a trial and attempt."""

    schema_version: Literal[1] = 1
    trial: TrialId
    attempt: int = Field(default=1, ge=1)
    purpose: Purpose
    project: str
    baseline_commit: str
    patches: tuple[PatchFile, ...] = ()
    #: SHA-256 of the locked files, checked in the private copy before and after.
    locked_files: dict[str, str] = {}
    configuration: Configuration
    #: argv with `{steps}` and `{seed}` left in.
    command: tuple[str, ...]
    evaluate: tuple[str, ...] | None = None
    python: str = ""
    warm_imports: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    #: Formulas of custom operators, as the contract declares them.
    operators: dict[str, OperatorFormula] = {}
    device: Literal["cpu", "cuda"] = "cpu"
    ranks: int = Field(default=1, ge=1)
    #: The program is run once for each length (optimizer steps), in this order.
    lengths: tuple[int, ...] = Field(min_length=1)
    seed: int = Field(ge=0)
    limits: TrialLimits
    evidence: Evidence = Evidence()


class StepEvidence(_Record):
    """What the probe saw of one optimizer step, over all ranks."""

    tokens: int
    #: Sum over sequences of their hashes, modulo 2**64, in hex: the same for every split into micro-batches.
    token_hash: str
    loss: float | None
    #: Root mean square change of a fixed sample of the weights.
    update_rms: float | None
    #: Share of that sample that changed at all.
    moved_share: float | None


class Run(_Record):
    """One run of the program at one length."""

    length: int
    #: Outside clock: from the launch of the ranks to the exit of the last.
    wall_seconds: float
    #: Seconds from launch to the first forward pass, outside clock.
    setup_seconds: float | None = None
    #: Outside clock, since launch, at which the last rank had finished each step.
    step_ends: tuple[float, ...] = ()
    exit_codes: tuple[int | None, ...] = ()
    #: Why the agent ended it, if it did.
    stopped: Literal["wall", "idle", "cancelled", "rank_died", "suspended", "memory"] | None = None
    #: Growth of memory after set-up by rank (CPU), or peak reserved (GPU); GiB.
    peak_gib: tuple[float | None, ...] = ()
    memory_kind: Literal["vmdata_growth", "cuda_reserved"] = "vmdata_growth"
    steps: tuple[StepEvidence, ...] = ()
    num_parameters: int | None = None
    #: Digest over names, shapes and dtypes of the parameters.
    parameters_digest: str | None = None
    #: dtypes that entered the products of the step that the agent drew, up to its first backward pass.
    matmul_dtypes: tuple[str, ...] = ()
    #: FLOPs of products of activations with weights there, per token, over all ranks.
    linear_flops_per_token: float | None = None
    #: FLOPs of all other products there (attention's, say), per token.
    other_flops_per_token: float | None = None
    #: Operators there that may have done products, and have no formula.
    uncounted_operators: tuple[str, ...] = ()
    evaluation_loss: float | None = None
    #: Seconds a step by phase, from torch.profiler.
    phases: dict[str, float] | None = None
    log_tail: str = ""
    log_bytes: int = 0
    #: Processes that outlived the ranks and were ended, as command lines with their processor time.
    survivors: tuple[str, ...] = ()
    #: Processes of the job that the kernel killed meanwhile because the job was over its host memory.
    host_oom_kills: int = 0
    #: Processors' worth of other programs' work meanwhile, and of what a hypervisor gave to other machines.
    foreign_cores: float | None = None
    stolen_cores: float | None = None
    #: Mean clock of the processors at the run's end.
    clock_mhz: float | None = None
    #: Processor time of the ranks, and how often one was taken off its processor while it wanted to go on.
    cpu_seconds: float | None = None
    preemptions: int | None = None


class TrialResult(_Record):
    """`result.json`."""

    schema_version: Literal[1] = 1
    trial: TrialId
    attempt: int
    node: str
    started_at: float
    finished_at: float
    runs: tuple[Run, ...] = ()
    #: Something went wrong before the program could be judged: copying, patching, locked files, the agent itself.
    problem: Literal["copy", "patch", "locked_files_before", "locked_files_after", "agent", "cancelled"] | None = None
    problem_text: str = ""
    #: Other programs' work on this host just before the first run.
    foreign_cores_before: float | None = None
    #: Processors that the trial may use.
    num_cores: int | None = None
    device_seconds: float = 0.0
    versions: dict[str, str] = {}
