"""Is a node slower than others at the very same work? Like is compared with like, robustly, and never across hosts.

A search tries something new each time, so two nodes' step times seldom have the same reason. Compared are only runs of
one candidate (all baseline runs are one), or, where too few exist, runs with a prediction that knows nothing of nodes.

Covers: a lucky or unlucky run (medians), noise that the doctor underrated (the runs' own spread counts too), nodes that
differ a little everywhere (a threshold of consequence), several nodes looked at.
Does not cover: a node that is slow for some work only, a job on several nodes (which of them held it up is not seen).
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.verify.node_visits import NodeVisit
from infrarsi_hpc.verify.readings import MAD_TO_SIGMA

MIN_COMPARISONS = 3
#: Degrees of freedom that the doctor's five runs give the noise, and the share of them that a MAD keeps.
_DOCTOR_DEGREES = 4
_MAD_EFFICIENCY = 0.37
#: No machine is quieter.
_MIN_NOISE = 0.005
#: Variance of a median over that of a mean, for a normal.
_MEDIAN_COST = math.pi / 2


@dataclass(frozen=True)
class NodeSpeed:
    """A node against the others: how many times their step time it takes, and how sure that is."""

    ratio: float
    num_comparisons: int
    #: Standard error of log(ratio), and the degrees of freedom of its noise.
    standard_error: float
    degrees: int
    #: Relative noise of a run that was reckoned with.
    noise: float
    #: Index of the first visit compared.
    since: int

    @property
    def score(self) -> float:
        """log(ratio) in standard errors."""
        return math.log(self.ratio) / self.standard_error


@dataclass(frozen=True)
class _Timed:
    index: int
    log_seconds: float


#: By node.
_Runs = dict[str, list[_Timed]]


class SpeedTable:
    """Step times that may be compared, of all nodes. `noise_cv` is the relative spread of single runs."""

    def __init__(self, visits: Sequence[NodeVisit], *, noise_cv: float) -> None:
        self._noise_cv = noise_cv
        timed = [(index, visit) for index, visit in enumerate(visits) if _is_timed(visit)]
        self._like = _runs_by_subject(timed)
        self._predicted = _runs_against_predictions(timed)

    def of(self, node: str, *, apart: Collection[str] = ()) -> NodeSpeed | None:
        """Compare a node with all others but those `apart`; none with fewer than three comparisons.

        Each run on the node gives the log ratio of its step time to that of its candidate elsewhere (the median over
        the other nodes of each one's median); the node's ratio is the median of these.

        Notes
        -----
        With k comparisons, of which k_c are of candidate c that r_c other nodes ran, the squared standard error is
        (pi/2) s^2 (1/k + sum_c (k_c/k)^2 / r_c): the variance of a mean whose comparisons share references, times the
        price of medians. The noise s is the greater of `noise_cv` and 1.4826 MAD of runs about their candidate's
        median, the node's own about its own: a node that is slow does not excuse itself.
        """
        groups = [_group(runs, node, apart) for runs in self._like if node in runs]
        like = _speed([group for group in groups if group.others], self._noise_cv)
        return like or _speed([_group(self._predicted, node, apart)], self._noise_cv)


@dataclass(frozen=True)
class _Group:
    """Runs that may be compared: the node's own, and each other node's."""

    own: list[_Timed]
    others: dict[str, list[float]]

    def log_ratios(self) -> list[float]:
        """Each of the node's runs against the others' typical one."""
        reference = statistics.median(statistics.median(logs) for logs in self.others.values())
        return [run.log_seconds - reference for run in self.own]

    def residuals(self) -> list[float]:
        """How far like runs lie from their median, scaled for what a median of few takes away."""
        own = [run.log_seconds for run in self.own]
        elsewhere = [log for logs in self.others.values() for log in logs]
        found: list[float] = []
        for like in (own, elsewhere):
            if len(like) >= 2:
                middle, scale = statistics.median(like), math.sqrt(len(like) / (len(like) - 1))
                found += [scale * (log - middle) for log in like]
        return found

    @property
    def degrees(self) -> int:
        return max(0, len(self.own) - 1) + max(0, sum(map(len, self.others.values())) - 1)


def _is_timed(visit: NodeVisit) -> bool:
    seconds = visit.step_seconds
    is_time = seconds is not None and math.isfinite(seconds) and seconds > 0
    return is_time and visit.outcome is Outcome.OK and len(visit.nodes) == 1


def _runs_by_subject(timed: Sequence[tuple[int, NodeVisit]]) -> list[_Runs]:
    found: dict[tuple[str, bool], _Runs] = defaultdict(lambda: defaultdict(list))
    for index, visit in timed:
        assert visit.step_seconds is not None
        found[visit.subject][visit.nodes[0]].append(_Timed(index, math.log(visit.step_seconds)))
    return list(found.values())


def _runs_against_predictions(timed: Sequence[tuple[int, NodeVisit]]) -> _Runs:
    """Log ratios to the prediction: one a node and candidate, since a prediction's error is the same each time."""
    found: dict[tuple[str, tuple[str, bool]], list[_Timed]] = defaultdict(list)
    for index, visit in timed:
        expected = visit.expected_seconds
        if expected is not None and math.isfinite(expected) and expected > 0:
            assert visit.step_seconds is not None
            residual = math.log(visit.step_seconds / expected)
            found[visit.nodes[0], visit.subject].append(_Timed(index, residual))
    runs: _Runs = defaultdict(list)
    for (node, _), same in found.items():
        runs[node].append(_Timed(same[0].index, statistics.median(run.log_seconds for run in same)))
    return runs


def _group(runs: _Runs, node: str, apart: Collection[str]) -> _Group:
    others = {name: [r.log_seconds for r in own] for name, own in runs.items() if name != node and name not in apart}
    return _Group(runs.get(node, []), others)


def _speed(groups: Sequence[_Group], noise_cv: float) -> NodeSpeed | None:
    num = sum(len(group.own) for group in groups)
    if num < MIN_COMPARISONS or any(not group.others for group in groups):
        return None
    residuals = [residual for group in groups for residual in group.residuals()]
    spread = MAD_TO_SIGMA * statistics.median(map(abs, residuals)) if residuals else 0.0
    known = max(_MIN_NOISE, noise_cv if math.isfinite(noise_cv) else 0.0)
    # a doctor whose noise is too small to be true does not vouch for the greater one
    own_degrees = math.floor(_MAD_EFFICIENCY * sum(group.degrees for group in groups))
    degrees = max(1, own_degrees) if spread > known else own_degrees + _DOCTOR_DEGREES
    noise = max(known, spread)
    shares = sum((len(group.own) / num) ** 2 / len(group.others) for group in groups)
    logs = [log for group in groups for log in group.log_ratios()]
    return NodeSpeed(
        ratio=math.exp(statistics.median(logs)),
        num_comparisons=num,
        standard_error=noise * math.sqrt(_MEDIAN_COST * (1 / num + shares)),
        degrees=degrees,
        noise=noise,
        since=min(run.index for group in groups for run in group.own),
    )
