"""Why do runs of the same program differ on this machine? What can be seen of it, in plain words.

Covers: other programs' work, a hypervisor's other machines, clocks that move between runs or fall within one, threads
that take turns on too few processors.
Does not cover: caches, memory bandwidth and network links shared with others, and how memory happened to be laid out;
where nothing of the above was seen, those are what is left.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from infrarsi_hpc.domain.trial import Run
from infrarsi_hpc.verify.noise import Drift, find_drift
from infrarsi_hpc.verify.readings import step_durations, warmup_steps

#: Spread between runs below which nobody asks why.
QUIET_CV = 0.05
#: Processors' worth of others' work, and spread of clocks between runs, that can move a time.
_BUSY_CORES, _CLOCK_CV = 0.1, 0.02
#: A rank with a processor to itself is taken off it a few times a second by the kernel's own work.
_PREEMPTIONS_PER_SECOND = 40.0


def noise_causes(between_cv: float, runs: Sequence[Run], num_cores: int | None) -> tuple[str, ...]:
    """What was seen that makes runs differ, the clearest first; empty where they hardly do."""
    if between_cv <= QUIET_CV or not runs:
        return ()
    found: list[str] = []
    foreign = [run.foreign_cores for run in runs if run.foreign_cores is not None]
    if foreign and max(foreign) > _BUSY_CORES:
        found.append(
            f"other programs used {_range(foreign)} processors during the runs: a node of one's own ends that "
            "(an exclusive allocation)"
        )
    stolen = [run.stolen_cores for run in runs if run.stolen_cores is not None]
    if stolen and max(stolen) > _BUSY_CORES:
        found.append(f"the hypervisor gave {_range(stolen)} processors to other virtual machines meanwhile")
    clocks = [run.clock_mhz for run in runs if run.clock_mhz is not None and run.clock_mhz > 0]
    if len(clocks) >= 2 and statistics.pstdev(clocks) > _CLOCK_CV * statistics.fmean(clocks):
        found.append(
            f"processor clocks stood between {min(clocks):.0f} and {max(clocks):.0f} MHz: a fixed clock (governor "
            "`performance`) or a cooler host ends that"
        )
    drifts = [drift.ratio for run in runs if (drift := _drift(run)) is not None]
    if drifts and 2 * len(drifts) >= len(runs):
        change = statistics.median(drifts) - 1
        found.append(f"steps changed by {change:+.0%} for good in the course of a run: longer ones show where it ends")
    timed = [run for run in runs if run.wall_seconds > 0]
    rates = [run.preemptions / run.wall_seconds for run in timed if run.preemptions is not None]
    is_crowded = bool(rates) and statistics.median(rates) > _PREEMPTIONS_PER_SECOND
    if is_crowded and not (foreign and max(foreign) > _BUSY_CORES):
        used = [run.cpu_seconds / run.wall_seconds for run in timed if run.cpu_seconds is not None]
        of = f" ({statistics.median(used):.1f} of {num_cores} in use)" if used and num_cores else ""
        found.append(
            f"ranks were taken off their processors {statistics.median(rates):.0f} times a second{of}: fewer threads a "
            "rank than processors for it end that"
        )
    if not found:
        seen = [f"other programs {_range(foreign)} processors"] if foreign else []
        seen += [f"clocks {min(clocks):.0f} to {max(clocks):.0f} MHz"] if clocks else []
        looked = f" ({', '.join(seen)})" if seen else ""
        found.append(
            f"nothing that can be seen from here explains it{looked}: caches, memory bandwidth and links shared with "
            "others, and where memory happens to lie, cannot be seen"
        )
    return tuple(found)


def _drift(run: Run) -> Drift | None:
    durations = step_durations(run)
    return find_drift(durations[warmup_steps(durations) :])


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.1f}" if math.isclose(low, high, abs_tol=0.05) else f"{low:.1f} to {high:.1f}"
