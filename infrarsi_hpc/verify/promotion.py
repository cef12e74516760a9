"""Is a candidate faster, or did it look so? Paired runs, a t interval of their log ratios, and every look paid for.

The search keeps the best of many noisy measurements, and the best of many is too good by construction. So a finalist
starts anew: fresh pairs of baseline and candidate runs, minutes apart, in random order. What a look may claim is cut so
that all looks at all finalists together promote wrongly no more often than the contract's confidence allows.

Covers: repeated looks, several finalists, the winner's luck in the search, machines that drift (pairs drift together).
Does not cover: noise that favours one arm of a pair (the order within pairs is random for that), and pairs that are
dropped because of what they would have shown (a candidate's failed runs are the caller's to refuse).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from infrarsi_hpc.domain.verdict import Belief, Speedup, Verdict
from infrarsi_hpc.verify.noise import t_quantile

#: Upper over lower end of an interval that is narrow enough, and how much narrower it must become to be worth pairs.
_NARROW, _WORTH = 1.05, 0.9

Action = Literal["promote", "reject", "continue", "undecided"]
Pairs = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Decision:
    """What to do with a finalist, what was measured so far, and the verdict if this were the end."""

    action: Action
    speedup: Speedup | None
    verdict: Verdict


def paired_speedup(
    baseline_seconds: Sequence[float],
    candidate_seconds: Sequence[float],
    confidence: float,
    *,
    num_claims: int = 1,
) -> Speedup | None:
    """Ratio of baseline to candidate step time with its t interval; none for fewer than two pairs.

    Parameters
    ----------
    baseline_seconds, candidate_seconds : (n,)
        Step times of each pair, in the same order.
    confidence
        That all `num_claims` intervals hold together (Bonferroni), two-sided. It is the one that the result reports.

    Raises
    ------
    ValueError
        The two have different lengths, or a time is not a positive number.

    Notes
    -----
    Log ratios, because noise multiplies times: x2 and /2 are then equally far, and no pair's ratio is biased upwards
    as the mean of plain ratios is. Student's t: with two pairs its quantile is 12.7, not 1.96, which is what makes
    small n safe. For noise with heavier tails that is symmetric on the log scale the interval errs on the wide side
    (Benjamini 1983, Is the t test really conservative when the parent distribution is long-tailed?).
    """
    pairs = list(zip(baseline_seconds, candidate_seconds, strict=True))
    if any(not (math.isfinite(value) and value > 0) for pair in pairs for value in pair):
        raise ValueError("step times are positive numbers")
    num = len(pairs)
    if num < 2:
        return None
    logs = [math.log(baseline / candidate) for baseline, candidate in pairs]
    middle = statistics.fmean(logs)
    level = 1 - (1 - confidence) / num_claims
    half = t_quantile((1 + level) / 2, num - 1) * statistics.stdev(logs) / math.sqrt(num)
    return Speedup(
        ratio=math.exp(middle),
        low=math.exp(middle - half),
        high=math.exp(min(middle + half, 700.0)),
        confidence=confidence,
        num_pairs=num,
    )


def decide(
    pairs: Pairs,
    *,
    threshold: float,
    confidence: float,
    looks_planned: int,
    num_finalists: int,
    is_last_look: bool,
) -> Decision:
    """Promote, reject or go on, from a finalist's pairs so far (baseline and candidate step seconds).

    Promote when the lower bound exceeds `threshold`, reject when the upper bound is below it, go on in between; at the
    last look what is still open ends as undecided. The same pairs give the same decision, so a head that was killed
    and looks again has not looked twice. Pairs with a time that is not a positive number count as not made.

    Notes
    -----
    Each look at each finalist gets 1 / (looks x finalists) of the allowed error. The union bound holds however the
    looks depend on each other and however the data decide whether there is a next one, as long as there are no more
    looks than planned: the chance that any interval of the whole promotion misses its truth is at most 1 - confidence.
    """
    usable = [pair for pair in pairs if all(math.isfinite(value) and value > 0 for value in pair)]
    speedup = paired_speedup(
        [baseline for baseline, _ in usable],
        [candidate for _, candidate in usable],
        confidence,
        num_claims=max(1, looks_planned) * max(1, num_finalists),
    )
    if speedup is None:
        reason = f"{len(usable)} usable pairs of runs; an interval needs two"
        return Decision("undecided" if is_last_look else "continue", None, _undecided(reason))
    measured = f"{speedup} at {confidence:.0%} over {speedup.num_pairs} pairs"
    if speedup.low > threshold:
        reason = f"{measured}: the lower bound exceeds {threshold:.3f}x"
        return Decision("promote", speedup, Verdict(belief=Belief.BELIEVED, reasons=(reason,)))
    if speedup.high < threshold:
        reason = f"{measured}: even the upper bound is below {threshold:.3f}x"
        return Decision("reject", speedup, Verdict(belief=Belief.REFUSED, reasons=(reason,)))
    if is_last_look:
        reason = f"{measured}: {threshold:.3f}x lies inside, and no more pairs are planned"
        return Decision("undecided", speedup, _undecided(reason))
    return Decision(
        "continue", speedup, _undecided(f"{measured}: {threshold:.3f}x lies inside; more pairs are planned")
    )


def is_worth_more(speedup: Speedup, block: int) -> bool:
    """Whether `block` more pairs would say clearly more about a speedup that is proven already.

    Not where the interval is within 2.5% on either side, nor where so many pairs are expected to narrow it by less than
    a tenth: its width goes with t / sqrt(n).
    """
    if speedup.high <= _NARROW * speedup.low:
        return False

    def width(num: int) -> float:
        return t_quantile((1 + speedup.confidence) / 2, num - 1) / math.sqrt(num)

    return width(speedup.num_pairs + block) < _WORTH * width(speedup.num_pairs)


def _undecided(reason: str) -> Verdict:
    return Verdict(belief=Belief.UNDECIDED, reasons=(reason,))
