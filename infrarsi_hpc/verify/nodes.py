"""Which nodes should be left out of later jobs: those that fail where others do not, and those that are slow.

Blame has a price (fewer nodes, a person's doubt), and noise looks like blame: among twenty nodes one is always the
unluckiest. So "exclude after two failures" is not the rule; a test at a level that is shared by all nodes is.

Covers: nodes that fail fast and so draw one trial after another, slow nodes, several bad nodes at a time, bad luck, a
candidate that fails everywhere, an outage, a setup line that breaks every job.
Does not cover: a node that became good again (a person allows it: `infrarsi nodes --allow`), a bad switch (all of its
nodes look bad, and no more than a third of those seen are ever blamed), two nodes that only ever ran together.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from infrarsi_hpc.verify.node_speeds import NodeSpeed, SpeedTable
from infrarsi_hpc.verify.node_visits import LOST, NodeTally, NodeVisit, counted_failures, tallies, well_elsewhere
from infrarsi_hpc.verify.noise import t_quantile

__all__ = ["Blame", "NodeVisit", "blame"]

#: Chance that one look blames any node without a reason. Heads look after every round, so these are well below the 1%
#: that a whole campaign may have, also where a fifth of all attempts are lost (tests/verify/test_nodes.py).
LEVEL = 0.0005
SLOW_LEVEL = 0.001
#: The same for Fisher's test, which knows this campaign's visits alone.
FISHER_LEVEL = 0.005
#: What is believed of a site before its nodes have run anything: a beta distribution of the rate of lost attempts,
#: with a mean of 5% and hardly anything above 20%.
_PRIOR_LOST, _PRIOR_WORKED = 0.5, 9.5
#: No node is blamed for less, however surely it was seen.
_MIN_FAILURES = 2
_MIN_SLOWDOWN = 1.1
#: Nodes seen for each one that may be blamed.
_NODES_PER_BLAME = 3


@dataclass(frozen=True)
class Blame:
    """Why a node should be left out. `since` is the index of the first visit that is held against it."""

    node: str
    kind: Literal["fails", "slow"]
    evidence: str
    since: int


@dataclass(frozen=True)
class _Charge:
    """A node that could be blamed, and how strongly: the greatest `strength` goes first."""

    blame: Blame
    strength: tuple[float, ...]


def blame(visits: Sequence[NodeVisit], *, noise_cv: float, shares_host: bool) -> dict[str, Blame]:
    """Nodes to leave out, by name, the worst first.

    Parameters
    ----------
    visits
        All attempts so far, in the order in which they ended.
    noise_cv
        Relative spread of the step times of equal runs on one node (the doctor's `between_run_cv`).
    shares_host
        The nodes are one machine in truth: their speeds are not compared.

    Notes
    -----
    A node fails if so many failures among its visits would be a surprise, by two exact one-sided tests. The first knows
    that lost attempts are rare: a beta prior of the site's rate (mean 5%) is updated by the other nodes' visits, and p
    is the beta-binomial tail P(X >= failures | visits of the node). The second is Fisher's, which believes nothing that
    this campaign has not shown, and so holds on a site that loses a fifth of all attempts as well. Both are multiplied
    by the number of nodes seen (Bonferroni). Early on it takes three or four failures in a row; two are enough once the
    others have a clean record of more than a hundred visits.

    A node is slow if its step time is at least 1.1 times that of others at the same candidates, over three comparisons
    or more, and log(ratio) exceeds Student's t quantile at the same shared level (`node_speeds`).

    Whoever is blamed leaves the others' reference, and they are tested again (several bad nodes would hide each other).
    Nobody is blamed where nothing worked elsewhere, nor more than a third of the nodes seen; of equals that do not fit
    into that third none is.
    """
    seen = sorted({node for visit in visits for node in visit.nodes})
    room = len(seen) // _NODES_PER_BLAME
    blamed: dict[str, Blame] = {}
    if not room:
        return blamed
    counted = counted_failures(visits)
    by_node = tallies(visits, counted)
    speeds = SpeedTable(visits, noise_cv=noise_cv)

    def failing(node: str) -> _Charge | None:
        return _failing(visits, counted, node, by_node[node], blamed, len(seen))

    def slow(node: str) -> _Charge | None:
        speed = speeds.of(node, apart=blamed)
        return _slow(node, speed, len(seen)) if speed is not None else None

    suspects = [n for n in seen if len(by_node[n].failures) >= _MIN_FAILURES]
    _step_down(suspects, failing, blamed, room)
    if not shares_host:
        _step_down(seen, slow, blamed, room)
    return blamed


def _step_down(
    nodes: Sequence[str], charge: Callable[[str], _Charge | None], blamed: dict[str, Blame], room: int
) -> None:
    """Blame the worst, leave it out of the others' reference, and look again, while there is room."""
    while len(blamed) < room:
        charges = [found for n in nodes if n not in blamed and (found := charge(n)) is not None]
        worst = max((c.strength for c in charges), default=None)
        ties = [c.blame for c in charges if c.strength == worst]
        if not ties or len(blamed) + len(ties) > room:
            return
        blamed.update({b.node: b for b in ties})


def _failing(
    visits: Sequence[NodeVisit],
    counted: set[int],
    node: str,
    tally: NodeTally,
    blamed: dict[str, Blame],
    num_nodes: int,
) -> _Charge | None:
    failures = math.floor(tally.failure_weight + 1e-9)
    indices = [index for index, _ in tally.failures]
    if failures < _MIN_FAILURES or not _has_two_witnesses(visits, node, indices):
        return None
    apart = {node, *blamed}
    lost, worked = _elsewhere(visits, counted, apart)
    if not worked:
        return None
    here = failures + tally.num_worked
    p = num_nodes * beta_binomial_tail(failures, here, _PRIOR_LOST + lost, _PRIOR_WORKED + worked)
    fisher = num_nodes * hypergeometric_tail(failures, here, failures + lost, here + lost + worked)
    if p > LEVEL or fisher > FISHER_LEVEL:
        return None
    kinds = sorted({visits[i].outcome.value for i in indices})
    seconds = statistics.median(visits[i].job_seconds for i in indices)
    shared = " (some on several nodes at once)" if failures < len(indices) else ""
    evidence = (
        f"{len(indices)} of {len(indices) + tally.num_worked} attempts failed{shared} as {', '.join(kinds)}, after "
        f"{seconds:.0f} s in the middle; on the other nodes {lost} of {lost + worked} (p = {p:.1g}, all nodes counted)"
    )
    return _Charge(Blame(node, "fails", evidence, indices[0]), (-p, len(indices), -indices[0]))


def _has_two_witnesses(visits: Sequence[NodeVisit], node: str, indices: Sequence[int]) -> bool:
    """Whether the failures are of two candidates, or of one that is known to do well elsewhere."""
    subjects = {visits[i].subject for i in indices}
    return len(subjects) > 1 or any(subject in well_elsewhere(visits, node) for subject in subjects)


def _elsewhere(visits: Sequence[NodeVisit], counted: set[int], apart: set[str]) -> tuple[int, int]:
    """Failures and successes of visits that had nothing to do with the nodes `apart`.

    What is not held against a node (an outage) still says how often this site loses attempts: leaving it out here too
    would keep the failures that come alone, and make them look rare.
    """
    rest = [(i, v) for i, v in enumerate(visits) if v.nodes and apart.isdisjoint(v.nodes)]
    failed = [i in counted or v.outcome in LOST for i, v in rest]
    return sum(failed), sum(v.has_worked and not f for (_, v), f in zip(rest, failed, strict=True))


def _slow(node: str, speed: NodeSpeed, num_nodes: int) -> _Charge | None:
    if speed.ratio < _MIN_SLOWDOWN:
        return None
    bound = t_quantile(1 - SLOW_LEVEL / num_nodes, speed.degrees)
    if speed.score <= bound:
        return None
    evidence = (
        f"{speed.ratio:.2f}x the step time of the same work on other nodes, over {speed.num_comparisons} comparisons "
        f"({speed.score:.1f} standard errors at {100 * speed.noise:.1f}% noise; {bound:.1f} are asked for)"
    )
    return _Charge(Blame(node, "slow", evidence, speed.since), (speed.score - bound,))


def beta_binomial_tail(successes: int, trials: int, a: float, b: float) -> float:
    """P(X >= successes) of X out of `trials` whose probability is Beta(a, b) distributed; exact.

    Raises
    ------
    ValueError
        `successes` exceeds `trials`, or a parameter is not positive.
    """
    if not 0 <= successes <= trials or a <= 0 or b <= 0:
        raise ValueError("0 <= successes <= trials, a > 0, b > 0")
    base = _log_beta(a, b)
    terms = (
        math.exp(_log_choose(trials, x) + _log_beta(a + x, b + trials - x) - base) for x in range(successes, trials + 1)
    )
    return min(1.0, math.fsum(terms))


def hypergeometric_tail(successes: int, drawn: int, marked: int, population: int) -> float:
    """P(X >= successes) of X marked ones among `drawn` out of `population`: Fisher's one-sided test; exact."""
    ways = sum(
        math.comb(marked, x) * math.comb(population - marked, drawn - x)
        for x in range(successes, min(drawn, marked) + 1)
    )
    return ways / math.comb(population, drawn)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
