"""How a trial ended, in two levels, and what the search does with it."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class Outcome(StrEnum):
    """The first level; `DETAILS` has the second."""

    OK = "ok"
    DEVICE_OOM = "device_oom"
    HOST_OOM = "host_oom"
    TIMEOUT = "timeout"
    INVALID = "invalid"
    CRASHED = "crashed"
    DIVERGED = "diverged"
    REFUSED = "refused"
    INFRA = "infra"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


DETAILS: dict[Outcome, tuple[str, ...]] = {
    Outcome.DEVICE_OOM: ("torch", "hip", "no_number", "lib_alloc", "nccl", "fraction_cap", "limit"),
    Outcome.HOST_OOM: ("cgroup", "allocator", "shm"),
    Outcome.TIMEOUT: ("limit", "hang"),
    Outcome.INVALID: ("rule", "launch", "compile", "kernel_resources"),
}

ACTIONS: dict[Outcome, str] = {
    Outcome.OK: "measured; the models learn its step time and its peak memory",
    Outcome.DEVICE_OOM: "the models learn that its peak lies above the bound (right-censored)",
    Outcome.HOST_OOM: "says nothing about the device; ask for more host memory or fewer workers",
    Outcome.TIMEOUT: "not a memory fact; the search avoids it",
    Outcome.INVALID: "teaches which configurations cannot run",
    Outcome.CRASHED: "the search avoids it; the reason may be the configuration's",
    Outcome.DIVERGED: "never promoted; the search avoids it",
    Outcome.REFUSED: "breaks the contract; never promoted, and the reason is kept",
    Outcome.INFRA: "retried; teaches nothing",
    Outcome.CANCELLED: "stopped by a person or a budget; teaches nothing",
    Outcome.UNKNOWN: "the witnesses do not agree yet; looked at again",
}

#: Outcomes after which the same trial is tried again instead of being learned from.
RETRIED = frozenset({Outcome.INFRA, Outcome.CANCELLED, Outcome.UNKNOWN})


#: A library that could not allocate is mostly out of memory, and sometimes meets a bad index or a device in a bad
#: state: it counts as memory once a second attempt ends so too.
CONFIRMED = frozenset({("device_oom", "lib_alloc")})


#: How the evidence of an ending that is `ok` begins when another witness saw something else.
TAINTED = "tainted: "


class Ending(BaseModel):
    """How one attempt ended, with the line that shows it.

    `bound_gib` is given for `device_oom` alone: the peak would have been at least this much per device.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    outcome: Outcome
    detail: str | None = None
    bound_gib: float | None = None
    rank: int | None = None
    evidence: str = ""

    @property
    def is_tainted(self) -> bool:
        """Whether it ended well and yet something was killed beside it: it counts, and decides nothing by itself."""
        return self.outcome is Outcome.OK and self.evidence.startswith(TAINTED)

    @property
    def wants_confirmation(self) -> bool:
        """Whether one more attempt decides if it is what it seems to be."""
        return (self.outcome.value, self.detail) in CONFIRMED

    @property
    def action(self) -> str:
        """What the search does with such an ending, in plain words."""
        if self.wants_confirmation:
            return "tried once more; if it ends so again, " + ACTIONS[self.outcome]
        if self.outcome is Outcome.DEVICE_OOM and self.bound_gib is None:
            return "no number and no peak was seen: the search avoids it, the memory model learns nothing"
        return ACTIONS[self.outcome]

    @property
    def label(self) -> str:
        """`outcome/detail`, or the outcome alone."""
        return f"{self.outcome.value}/{self.detail}" if self.detail else self.outcome.value
