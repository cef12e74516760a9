"""Load of the host that is not ours: what others do on the processors that a trial may use.

The kernel counts busy time by processor (proc(5), /proc/stat); what the agent, its helpers and the trial's processes
used is taken off. Time that a hypervisor gave to other machines ("steal") is told apart: nobody here sees who has it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from infrarsi_hpc.edges.agent.processes import cpu_seconds, descendants

#: More than this many processors' worth of others' work makes a time doubtful.
BUSY_CORES = 0.3
#: So long a host is looked at before a run, and so long one that is busy is waited for, once a batch.
LOOK_SECONDS, WAIT_SECONDS = 0.2, 10.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """Processors' worth of work, averaged over a stretch of time."""

    foreign_cores: float
    stolen_cores: float

    @property
    def is_quiet(self) -> bool:
        """Whether nobody else does much."""
        return self.foreign_cores + self.stolen_cores <= BUSY_CORES


class HostLoad:
    """Load since this object was made."""

    def __init__(self) -> None:
        self._started, self._busy, self._stolen, self._own = _look()

    def so_far(self) -> Load | None:
        """Others' load since then; none where the kernel does not tell, or no time has passed."""
        now, busy, stolen, own = _look()
        seconds = now - self._started
        if seconds <= 0 or busy <= 0:
            return None
        foreign = (busy - self._busy) - (own - self._own)
        return Load(max(0.0, foreign / seconds), max(0.0, (stolen - self._stolen) / seconds))


def clock_mhz() -> float | None:
    """Mean clock of our processors now, as the kernel says it (proc(5), cpuinfo); none where it does not."""
    mine = os.sched_getaffinity(0)
    found: list[float] = []
    number = -1
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == "processor":
                    number = int(value)
                elif name.strip() == "cpu MHz" and number in mine:
                    found.append(float(value))
    except (OSError, ValueError):
        return None
    return sum(found) / len(found) if found else None


def wait_until_quiet(seconds: float, is_cancelled: Callable[[], bool]) -> Load | None:
    """Look at the host, again and again while others are busy, for so many seconds at most; the last look."""
    deadline = time.monotonic() + seconds
    while True:
        load = HostLoad()
        time.sleep(LOOK_SECONDS)
        seen = load.so_far()
        if seen is None or seen.is_quiet or time.monotonic() >= deadline or is_cancelled():
            return seen


def _look() -> tuple[float, float, float, float]:
    """Now, busy and stolen seconds of our processors, and how much of the busy ones is ours."""
    busy = stolen = 0.0
    try:
        mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        with open("/proc/stat", encoding="ascii") as file:
            for line in file:
                name, *fields = line.split()
                if name in mine:
                    user, nice, system, _idle, _wait, irq, softirq, steal = (int(field) for field in fields[:8])
                    busy += (user + nice + system + irq + softirq) / _TICKS
                    stolen += steal / _TICKS
    except (OSError, ValueError):
        return time.monotonic(), 0.0, 0.0, 0.0
    me = os.getpid()
    own = cpu_seconds(me) + sum(cpu_seconds(pid) for pid in descendants(me))
    return time.monotonic(), busy, stolen, own
