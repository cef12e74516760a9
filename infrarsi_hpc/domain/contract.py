"""The contract: the promises fixed before any trial. One model for `infrarsi.toml`, one for `infrarsi.lock`.

Covers: types, ranges, unknown keys, settings that contradict each other inside the file.
Does not cover: whether the files and the program it names exist; `stages/init` looks at the project.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from infrarsi_hpc.domain.digest import digest_json
from infrarsi_hpc.domain.knobs import Knob, KnobSet

SCHEMA_VERSION = 1

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Argument = Annotated[str, StringConstraints(min_length=1, max_length=400, pattern=r"^[^\x00-\x1f\x7f]+$")]
RelativePath = Annotated[str, StringConstraints(min_length=1, max_length=300, pattern=r"^[^\x00-\x1f\x7f\\]+$")]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _is_inside(path: str) -> bool:
    return not path.startswith(("/", "~")) and ".." not in path.split("/")


class Scope(_Section):
    """What may be changed, and what may not (globs relative to the project; locked wins over editable)."""

    editable: tuple[RelativePath, ...] = Field(min_length=1)
    locked: tuple[RelativePath, ...] = ()
    #: TOML file with the launch settings, into which `apply` writes the ones that won.
    settings: RelativePath
    #: Folder with the project's own patch library (`*.diff` and `library.toml`).
    patches: RelativePath | None = None

    @model_validator(mode="after")
    def _paths_stay_inside(self) -> Scope:
        for path in (*self.editable, *self.locked, self.settings, *([self.patches] if self.patches else [])):
            if not _is_inside(path):
                raise ValueError(f"{path!r} leaves the project")
        return self


class Shape(_Section):
    """The model's and the batch's size: what must stay the same, and what FLOPs are counted from."""

    layers: int = Field(ge=1)
    hidden: int = Field(ge=1)
    heads: int = Field(ge=1)
    feed_forward: int = Field(ge=1)
    vocabulary: int = Field(ge=2)
    sequence_length: int = Field(ge=1)
    global_batch: int = Field(ge=1)

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step consumes over all ranks."""
        return self.global_batch * self.sequence_length

    @property
    def flops_per_step(self) -> float:
        """Model FLOPs of one step: forward and backward, recompute not counted.

        Per token 6 x (matrix parameters) + 12 x layers x hidden x sequence for attention scores and values
        (Narayanan et al., 2104.04473, sec. 5.1; the embedding look-up does no matrix product, the output
        projection does).
        """
        per_layer = 4 * self.hidden**2 + 2 * self.hidden * self.feed_forward
        matrices = self.layers * per_layer + self.hidden * self.vocabulary
        attention = 12 * self.layers * self.hidden * self.sequence_length
        return float(self.tokens_per_step) * (6 * matrices + attention)


Letters = Annotated[str, StringConstraints(pattern=r"^[a-z]{1,12}$")]


class OperatorFormula(_Section):
    """What a custom operator multiplies, in Einstein's notation: torch has formulas for its own operators alone.

    A fused linear layer of `x (t, h)` and `w (f, h)` has `arguments = ["th", "fh"]` and `products = ["thf"]`: every
    product takes 2 x (the sizes of its letters) operations. Further leading dimensions belong to the first letter.
    """

    #: Sizes of the operator's tensors, in the order in which it takes them.
    arguments: tuple[Letters, ...] = Field(min_length=1, max_length=20)
    products: tuple[Letters, ...] = Field(min_length=1, max_length=20)

    @model_validator(mode="after")
    def _letters_are_known(self) -> OperatorFormula:
        known = set("".join(self.arguments))
        for product in self.products:
            if unknown := sorted(set(product) - known):
                raise ValueError(f"product {product!r} has {', '.join(unknown)}, which no argument has")
        return self


class Workload(_Section):
    """The training program and how it is started."""

    kind: Literal["torch-gpt", "torch"]
    #: argv; `{steps}` and `{seed}` are filled in, knob flags are appended.
    command: tuple[Argument, ...] = Field(min_length=1)
    #: argv that evaluates saved weights on held-out data and prints one JSON line {"loss": x}; run in an unpatched
    #: copy. `{weights}` and `{seed}` are filled in.
    evaluate: tuple[Argument, ...] | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    #: Modules imported once before trials are forked, so that no trial waits for them.
    warm_imports: tuple[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$")], ...] = (
        "torch",
        "torch._dynamo",  # imported by the first optimizer step otherwise: 2 s a trial
    )
    #: Python that runs the program; empty: the one that runs infrarsi.
    python: str = ""
    environment: dict[Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")], Argument] = {}
    shape: Shape
    #: Custom operators of the program (`library::name`), so that their work is counted.
    operators: dict[
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w{0,59}::[A-Za-z_]\w{0,119}$")], OperatorFormula
    ] = {}

    @model_validator(mode="after")
    def _placeholders(self) -> Workload:
        for placeholder in ("{steps}", "{seed}"):
            if not any(placeholder in argument for argument in self.command):
                raise ValueError(f"command has no {placeholder}: the harness chooses it for every run")
        if self.evaluate is not None and not any("{weights}" in argument for argument in self.evaluate):
            raise ValueError("evaluate has no {weights}")
        return self


class Limits(_Section):
    """What a trial may use."""

    #: Growth of a rank's memory after set-up (CPU), or the cap on a GPU's allocator; none: the device's own.
    memory_gib: float | None = Field(default=None, gt=0)
    #: Wall clock of one run of the program.
    wall_seconds: float = Field(default=300.0, gt=0)
    #: No step for so long: the run hangs.
    idle_seconds: float = Field(default=120.0, gt=0)


class Invariants(_Section):
    """What every trial must show."""

    #: Lowest precision of matrix products that is allowed.
    precision_floor: Literal["fp32", "bf16"] = "fp32"
    #: Every step trains on the same sequences as the baseline's (compared by hashes).
    same_tokens: bool = True
    #: Every step moves the weights, about as far as the baseline's.
    every_step_updates: bool = True


class Tolerances(_Section):
    """How far a candidate may be from the baseline; the doctor widens each to the baseline's own spread."""

    #: Relative difference of a step's training loss.
    loss_relative: float = Field(default=0.01, gt=0, le=0.5)
    #: Relative difference of the held-out loss after training.
    evaluation_relative: float = Field(default=0.01, gt=0, le=0.5)
    #: Relative difference of how far a step moves the weights.
    update_relative: float = Field(default=0.2, gt=0, le=1.0)


class Budget(_Section):
    """What a campaign may cost."""

    trials: int = Field(default=32, ge=1, le=100_000)
    device_hours: float | None = Field(default=None, gt=0)
    wall_minutes: float | None = Field(default=None, gt=0)


class Measurement(_Section):
    """How long runs are. Promotion draws its two lengths around these, per run, at random."""

    #: Steps of a search trial; the first ones that are slower than the rest are left out.
    trial_steps: int = Field(default=16, ge=4)
    short_steps: int = Field(default=6, ge=2)
    long_steps: int = Field(default=24, ge=4)
    #: Pairs of baseline and candidate runs, at most, for one candidate's promotion.
    max_pairs: int = Field(default=12, ge=3, le=200)
    min_speedup: float = Field(default=1.01, ge=1.0)
    confidence: float = Field(default=0.95, gt=0.5, lt=1.0)

    @model_validator(mode="after")
    def _long_is_longer(self) -> Measurement:
        if self.long_steps < 2 * self.short_steps:
            raise ValueError("long_steps must be at least twice short_steps, or their slope says little")
        if self.trial_steps < 2 * self.short_steps:
            raise ValueError("trial_steps must be at least twice short_steps: the doctor's slope lies between them")
        return self


class Contract(_Section):
    """`infrarsi.toml`."""

    schema_version: Literal[1]
    name: Name
    goal: str = Field(default="", max_length=2000)
    scope: Scope
    workload: Workload
    knobs: dict[str, Knob] = Field(min_length=1)
    limits: Limits = Limits()
    invariants: Invariants = Invariants()
    tolerances: Tolerances = Tolerances()
    budget: Budget = Budget()
    measurement: Measurement = Measurement()

    @field_validator("knobs")
    @classmethod
    def _knobs_form_a_set(cls, knobs: dict[str, Knob]) -> dict[str, Knob]:
        return KnobSet(knobs=knobs).knobs

    @property
    def knob_set(self) -> KnobSet:
        """The knobs with what can be asked of all of them."""
        return KnobSet(knobs=self.knobs)

    @property
    def digest(self) -> str:
        """SHA-256 over the meaning of the contract (comments and layout of the file do not count)."""
        meaning = self.model_dump(mode="json")
        if not self.workload.operators:  # came later: a contract without it means what it meant when it was locked
            del meaning["workload"]["operators"]
        return digest_json(meaning)


class Lock(_Section):
    """`infrarsi.lock`: what the contract stood for when it was locked."""

    schema_version: Literal[1] = 1
    contract_sha256: str
    baseline_commit: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40,64}$")]
    #: SHA-256 of every locked file at the baseline commit, by path.
    locked_files: dict[str, str]
    #: Paths at the baseline commit that the editable globs cover.
    editable_files: tuple[str, ...]
    versions: dict[str, str]
