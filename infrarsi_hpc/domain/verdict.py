"""Whether a measurement may be believed, with reasons in plain words."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class Belief(StrEnum):
    """The three answers."""

    BELIEVED = "believed"
    REFUSED = "refused"
    UNDECIDED = "undecided"


class Verdict(BaseModel):
    """A belief and why. `labels` says what a reader must know, such as a change of precision."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    belief: Belief
    reasons: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def is_believed(self) -> bool:
        """Whether the measurement counts."""
        return self.belief is Belief.BELIEVED


class Speedup(BaseModel):
    """A ratio of baseline to candidate step time with its confidence interval (above 1: faster)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ratio: float
    low: float
    high: float
    confidence: float
    num_pairs: int

    def __str__(self) -> str:
        return f"{self.ratio:.3f}x [{self.low:.3f}, {self.high:.3f}]"
