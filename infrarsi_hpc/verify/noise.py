"""How much this machine's times can be trusted: spread within and between runs, drift, and what can be told apart.

Two spreads, because they answer different questions. Steps of one run share its memory layout, its clock and its
neighbours; their spread says how well one run is measured, not whether another run would agree. Speedups are told from
noise by the spread between runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from infrarsi_hpc.verify.readings import MAD_TO_SIGMA

#: No promotion rests on fewer pairs, however quiet the machine.
MIN_PAIRS = 2
#: `pairs_needed` looks no further.
MAX_PAIRS = 100_000


def relative_spread(values: Sequence[float]) -> float:
    """Spread of positive values as the standard deviation of their logarithms; 0 for fewer than two.

    For small spreads it equals the coefficient of variation; ratios have it in common whatever the unit.
    """
    logs = [math.log(value) for value in values if value > 0 and math.isfinite(value)]
    return statistics.stdev(logs) if len(logs) >= 2 else 0.0


def step_spread(runs: Sequence[Sequence[float]]) -> float:
    """Spread of steps within runs: robust (median absolute deviation), median over runs; 0 without three steps.

    `runs` holds the step durations of each run, after its warm-up, in seconds.
    """
    spreads = []
    for durations in runs:
        if len(durations) >= 3:
            middle = statistics.median(durations)
            spreads.append(MAD_TO_SIGMA * statistics.median(abs(d - middle) for d in durations) / middle)
    return statistics.median(spreads) if spreads else 0.0


@lru_cache(maxsize=4096)
def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t; scipy is loaded on the first call, not when the command line starts."""
    from scipy.stats import t

    return float(t.ppf(probability, degrees))


def detectable_speedup(between_cv: float, num_pairs: int, confidence: float, power: float = 0.9) -> float:
    """Smallest ratio whose two-sided paired t interval excludes 1 with the given power.

    `between_cv` is the relative spread of single runs; a pair's log ratio has sqrt(2) times it.

    Notes
    -----
    ratio = exp((t_{1-alpha/2, n-1} + t_{power, n-1}) sqrt(2) cv / sqrt(n)): Cohen (1988), ch. 2, and Julious (2010),
    sec. 3.3, with t quantiles in both places, which is slightly on the safe side of the noncentral t.
    """
    if num_pairs < MIN_PAIRS:
        return math.inf
    quantiles = t_quantile((1 + confidence) / 2, num_pairs - 1) + t_quantile(power, num_pairs - 1)
    return math.exp(min(quantiles * math.sqrt(2 / num_pairs) * between_cv, 700.0))


def pairs_needed(between_cv: float, ratio: float, confidence: float, power: float = 0.9) -> int:
    """Fewest pairs with which `detectable_speedup` is at most `ratio`; `MAX_PAIRS` where that many are not enough."""
    low, high = MIN_PAIRS, MIN_PAIRS
    while detectable_speedup(between_cv, high, confidence, power) > ratio:
        if high >= MAX_PAIRS:
            return MAX_PAIRS
        low, high = high, min(2 * high, MAX_PAIRS)
    while low < high:
        middle = (low + high) // 2
        if detectable_speedup(between_cv, middle, confidence, power) > ratio:
            low = middle + 1
        else:
            high = middle
    return high


#: Gains that people ask about.
ASKED_SPEEDUPS = (1.03, 1.10, 1.30)


@dataclass(frozen=True)
class Resolution:
    """What a machine can tell from noise, in pairs of runs that people can afford."""

    #: Pairs that fit into an hour, and the smallest speedup that so many tell from noise.
    pairs_an_hour: int
    speedup_in_an_hour: float
    #: Pairs that a speedup takes; none for one that `MAX_PAIRS` do not tell from noise.
    pairs_for: tuple[tuple[float, int | None], ...]


def resolution(between_cv: float, pair_seconds: float, confidence: float) -> Resolution:
    """What can be told from noise when a pair of runs takes so many seconds."""
    num = max(MIN_PAIRS, min(MAX_PAIRS, int(3600 / pair_seconds))) if pair_seconds > 0 else MAX_PAIRS
    needed = [(speedup, pairs_needed(between_cv, speedup, confidence)) for speedup in ASKED_SPEEDUPS]
    return Resolution(
        num,
        detectable_speedup(between_cv, num, confidence),
        tuple((speedup, pairs if pairs < MAX_PAIRS else None) for speedup, pairs in needed),
    )


@dataclass(frozen=True)
class Drift:
    """A lasting change of step time within a run: clocks that throttle, a neighbour that came."""

    ratio: float
    #: First step (counted from 0) after which most steps lie nearer to the new level than to the old one.
    begins: int


def find_drift(durations: Sequence[float], significance: float = 0.001) -> Drift | None:
    """Whether step times rise or fall for good in the course of a run; none if they do not, or cannot be told.

    `durations` in seconds, in order, without warm-up. The trend test is Mann (1945) and Kendall (1975) without ties;
    the change must also exceed three times the spread of neighbouring steps, or it is of no consequence.
    """
    durations = [float(duration) for duration in durations]
    num = len(durations)
    if num < 12:
        return None
    score = sum((b > a) - (b < a) for i, a in enumerate(durations) for b in durations[i + 1 :])
    deviation = math.sqrt(num * (num - 1) * (2 * num + 5) / 18)
    if statistics.NormalDist().cdf(-abs(score) / deviation) * 2 > significance:
        return None
    quarter = max(3, num // 4)
    early, late = statistics.median(durations[:quarter]), statistics.median(durations[-quarter:])
    jumps = [abs(b - a) for a, b in pairwise(durations)]
    local = MAD_TO_SIGMA * statistics.median(jumps) / math.sqrt(2)
    if early <= 0 or abs(late - early) <= 3 * local:
        return None
    # the split at which the level "early before, changed after" errs least often
    changed = [abs(d - late) < abs(d - early) for d in durations]
    errors = [sum(changed[:at]) + sum(not c for c in changed[at:]) for at in range(num + 1)]
    return Drift(late / early, errors.index(min(errors)))
