"""What a campaign may still spend: trials, device-hours, wall clock; with enough kept back for the promotion."""

from __future__ import annotations

from dataclasses import dataclass

from infrarsi_hpc.domain.campaign import CampaignState
from infrarsi_hpc.domain.contract import Contract
from infrarsi_hpc.domain.noise import DoctorReport

#: Start, copy, set-up and evaluation of a run, beside its steps.
RUN_OVERHEAD_SECONDS = 2.5
#: Pairs that a clear winner's promotion takes.
RESERVED_PAIRS = 3
#: What a block of pairs may take beyond its estimate.
_SLACK = 1.5


@dataclass(frozen=True)
class Allowance:
    """The limits in force: the contract's, tightened by the command line."""

    max_trials: int
    device_seconds: float | None
    #: Unix time after which nothing new is started.
    deadline: float | None
    doctor: DoctorReport
    contract: Contract

    @property
    def promotion_seconds(self) -> float:
        """What a clear winner's promotion takes, as an estimate: kept back from the search."""
        measurement = self.contract.measurement
        steps = measurement.short_steps + measurement.long_steps
        return self._devices * RESERVED_PAIRS * 2 * (steps * self.doctor.step_seconds + 2 * RUN_OVERHEAD_SECONDS)

    @property
    def trial_seconds(self) -> float:
        """What one search trial takes, as an estimate: as slow as the baseline."""
        seconds = self.contract.measurement.trial_steps * self.doctor.step_seconds + RUN_OVERHEAD_SECONDS
        return self._devices * seconds

    @property
    def _devices(self) -> int:
        """Devices that the baseline holds: every rank one on GPUs; a CPU host is one however many ranks share it."""
        knobs = self.contract.knob_set
        return knobs.num_ranks(knobs.baseline()) if self.contract.workload.device == "cuda" else 1

    def num_trials(self, state: CampaignState, wanted: int, now: float) -> tuple[int, str]:
        """How many of the wanted search trials may be started, and why not more."""
        searched = sum(t.purpose == "search" for t in state.trials.values())
        allowed, why = wanted, ""
        for limit, reason in (
            (self.max_trials - searched, f"{self.max_trials} trials were made"),
            (self._affordable(state), "the device-hours are spent, but for the promotion"),
            (self._in_time(now), "the time is up, but for the promotion"),
        ):
            if limit < allowed:
                allowed, why = max(0, limit), reason
        return allowed, why

    def may_promote(self, state: CampaignState, now: float) -> tuple[bool, str]:
        """Whether another block of promotion pairs may be started."""
        if self.device_seconds is not None and state.device_seconds() >= self.device_seconds:
            return False, "the device-hours are spent"
        if self.deadline is not None and now >= self.deadline:
            return False, "the time is up"
        return True, ""

    def may_narrow(self, state: CampaignState, now: float) -> bool:
        """Whether there is time and money for a whole block of pairs that only makes a proven speedup more certain."""
        left = float("inf") if self.device_seconds is None else self.device_seconds - state.device_seconds()
        seconds = float("inf") if self.deadline is None else self.deadline - now
        block = _SLACK * self.promotion_seconds
        return left >= block and seconds >= block / self._devices

    def spent(self, state: CampaignState, running_seconds: float, now: float) -> str:
        """Why running trials must stop now; empty while they may go on.

        `running_seconds` are device-seconds of trials that are not in yet: failed and cancelled ones count as well.
        """
        if self.device_seconds is not None and state.device_seconds() + running_seconds >= self.device_seconds:
            return "the device-hours are spent"
        if self.deadline is not None and now >= self.deadline:
            return "the time is up"
        return ""

    def _affordable(self, state: CampaignState) -> int:
        if self.device_seconds is None:
            return 10**9
        left = self.device_seconds - state.device_seconds() - self.promotion_seconds
        return int(left // self.trial_seconds)

    def _in_time(self, now: float) -> int:
        if self.deadline is None:
            return 10**9
        return int(
            (self.deadline - now - self.promotion_seconds / self._devices) // (self.trial_seconds / self._devices)
        )
