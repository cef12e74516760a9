"""From a trial's marks to its numbers: step time, its noise, its warm-up, the slope of wall time, peak memory.

Times are the agent's own: it stamps each step's mark as it arrives. A program could send marks early; the slope of
whole-process wall time over two lengths that it could not choose does not depend on them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import combinations, pairwise
from statistics import NormalDist

from infrarsi_hpc.domain.reading import Reading
from infrarsi_hpc.domain.trial import Run, TrialResult, TrialSpec

#: Scales the median absolute deviation to a normal's standard deviation.
MAD_TO_SIGMA = 1.4826
#: A leading step this many robust standard deviations above the median of the later ones is warm-up.
_SLOW_SIGMAS = 3.0


def read(result: TrialResult, spec: TrialSpec) -> Reading:
    """Read a trial's numbers. What the evidence does not give is none; nothing is judged here.

    Step times of all runs are pooled after each run's own warm-up. A profiled trial gives phases and no times.
    """
    if not result.runs:
        return Reading(device_seconds=_finite(result.device_seconds) or 0.0)
    steady: list[float] = []
    warmups: list[int] = []
    for run in result.runs:
        durations = step_durations(run)
        warmup = warmup_steps(durations)
        warmups.append(warmup + (len(run.step_ends) - len(durations)))
        steady += durations[warmup:]
    longest = max(result.runs, key=lambda run: run.length)
    is_timed = not spec.evidence.profile
    step_seconds = statistics.median(steady) if steady and is_timed else None
    peaks = [peak for run in result.runs for peak in run.peak_gib if _finite(peak) is not None and peak is not None]
    setups = [setup for run in result.runs if (setup := _finite(run.setup_seconds)) is not None]
    loads = [
        load + (_finite(run.stolen_cores) or 0.0)
        for run in result.runs
        if (load := _finite(run.foreign_cores)) is not None
    ]
    evaluations = [run.evaluation_loss for run in result.runs if _finite(run.evaluation_loss) is not None]
    return Reading(
        step_seconds=step_seconds,
        step_noise=median_noise(steady) if step_seconds is not None else None,
        warmup_steps=max(warmups),
        slope_seconds=wall_slope(result.runs) if is_timed else None,
        peak_gib=max(peaks, default=None),
        memory_kind=longest.memory_kind,
        setup_seconds=statistics.median(setups) if setups else None,
        losses=tuple(_finite(step.loss) for step in longest.steps),
        evaluation_loss=evaluations[-1] if evaluations else None,
        foreign_cores=max(loads, default=None),
        phases=next((run.phases for run in result.runs if run.phases), None),
        device_seconds=_finite(result.device_seconds) or 0.0,
        num_parameters=longest.num_parameters,
    )


def step_durations(run: Run) -> list[float]:
    """Seconds of each step, from one mark to the next; the first from the end of set-up.

    Without a known end of set-up the first step is left out. Marks that run backwards give no durations at all.
    """
    ends = [*([run.setup_seconds] if run.setup_seconds is not None else []), *run.step_ends]
    durations = [later - earlier for earlier, later in pairwise(ends)]
    return durations if all(math.isfinite(d) and d >= 0 for d in durations) else []


def warmup_steps(durations: Sequence[float]) -> int:
    """How many leading steps are slower than the rest: compilation, allocator growth, cold caches.

    A step is slow when it lies three robust standard deviations above the median of the second half. The warm-up
    ends with the last slow step of the first half up to which at least half of the steps are slow, so that two
    compilations with a quick step between them are one warm-up, and one hiccup in mid-run is none. At least half of
    the steps, and two, always remain.
    """
    num = len(durations)
    most = min(num // 2, num - 2)
    if most < 1:
        return 0
    rest = durations[num // 2 :]
    middle = statistics.median(rest)
    sigma = MAD_TO_SIGMA * statistics.median(abs(d - middle) for d in rest)
    warmup, num_slow = 0, 0
    for index, duration in enumerate(durations[:most]):
        if duration > middle + _SLOW_SIGMAS * sigma:
            num_slow += 1
            if 2 * num_slow >= index + 1:
                warmup = index + 1
    return warmup


def median_noise(durations: Sequence[float]) -> float | None:
    """Relative standard error of the median, whatever the distribution; none for fewer than two values.

    From the distance between two order statistics on either side of the median and the exact binomial probability
    that they enclose it: Bonett & Price (2002), Statistical inference for a linear function of medians.
    """
    num = len(durations)
    if num < 2 or min(durations) <= 0:
        return None
    ordered = sorted(durations)
    low = max(1, round((num + 1) / 2 - math.sqrt(num)))
    outside = sum(math.comb(num, i) for i in range(low)) * 0.5 ** (num - 1)
    quantile = NormalDist().inv_cdf(1 - min(outside, 0.999) / 2)
    return (math.log(ordered[num - low]) - math.log(ordered[low - 1])) / (2 * quantile)


def wall_slope(runs: Sequence[Run]) -> float | None:
    """Seconds a step as the slope of whole-process wall time over length; none without two lengths that finished.

    With more than two runs the median of all pairwise slopes (Theil, 1950; Sen, 1968). Start-up, set-up, compilation
    and saving cost both lengths the same and drop out; so does whatever a program says about its own steps.
    """
    points = [(run.length, run.wall_seconds) for run in runs if is_complete(run)]
    slopes = [(t2 - t1) / (n2 - n1) for (n1, t1), (n2, t2) in combinations(points, 2) if n1 != n2]
    if not slopes:
        return None
    slope = statistics.median(slopes)
    return slope if math.isfinite(slope) and slope > 0 else None


def is_complete(run: Run) -> bool:
    """Whether a run did all its steps and every rank ended well."""
    ended_well = bool(run.exit_codes) and all(code == 0 for code in run.exit_codes)
    return ended_well and run.stopped is None and len(run.step_ends) >= run.length


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
