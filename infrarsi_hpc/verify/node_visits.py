"""What one attempt on one node says about that node, and which of its failures may be held against the node at all.

Most failures are nobody's but the configuration's. So a failure is held against a node only where something else than
the configuration is left to explain it; what could be either is left out, on both sides of every comparison.

Covers: failures of the configuration, of its retries on several nodes, of the site (an outage, a broken setup line).
Does not cover: endings that were named wrongly before (a preemption called a lost node), and programs that lie about
where they ran.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from infrarsi_hpc.domain.outcome import Outcome

#: Endings of the infrastructure's.
LOST = frozenset({Outcome.INFRA, Outcome.UNKNOWN})
#: Endings after which the node is known to have done its part.
_WORKED = frozenset({Outcome.OK, Outcome.DEVICE_OOM, Outcome.DIVERGED, Outcome.REFUSED})
#: Endings that are the configuration's unless it did well elsewhere.
_CONFIGURATION = frozenset({Outcome.CRASHED, Outcome.DEVICE_OOM, Outcome.HOST_OOM, Outcome.INVALID, Outcome.TIMEOUT})
#: Nodes that fail one after another, with no success between, before it is called an outage of the site's.
_OUTAGE_NODES = 3


@dataclass(frozen=True)
class NodeVisit:
    """One attempt of a trial on a node, or on several (`a,b`).

    `candidate` tells like from like: times are compared within it, and all baseline runs are one. `job_seconds` is the
    wall clock of the attempt. `expected_seconds` is what a model that knows nothing of nodes predicts for a step.
    """

    node: str
    trial: str
    candidate: str
    outcome: Outcome
    job_seconds: float
    step_seconds: float | None
    is_baseline: bool
    detail: str | None = None
    expected_seconds: float | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that it ran on, each once; none where that is not known."""
        return tuple(dict.fromkeys(name for part in self.node.split(",") if (name := part.strip())))

    @property
    def has_worked(self) -> bool:
        """Whether the node is known to have done its part, whatever became of the trial."""
        return self.outcome in _WORKED

    @property
    def subject(self) -> tuple[str, bool]:
        """What was run: equal for runs that may be compared."""
        return ("", True) if self.is_baseline else (self.candidate, False)


@dataclass
class NodeTally:
    """What counts for and against one node. Failures on several nodes count for each with a part of their weight."""

    num_visits: int = 0
    num_worked: int = 0
    #: (index of the visit, its weight)
    failures: list[tuple[int, float]] = field(default_factory=list)

    @property
    def failure_weight(self) -> float:
        """Failures held against the node."""
        return sum(weight for _, weight in self.failures)


def counted_failures(visits: Sequence[NodeVisit]) -> set[int]:
    """Indices of the visits whose failure is held against their nodes. `visits` are in the order in which they ended.

    A lost attempt counts, unless its candidate was lost on several nodes and did well on none (then it is the
    configuration's, or everybody's), or it belongs to an outage. An ending of the configuration's counts once a node
    and candidate, and only if the candidate did well on another node and ended so on no other.
    """
    well: dict[tuple[str, bool], set[str]] = defaultdict(set)
    badly: dict[tuple[tuple[str, bool], bool], set[str]] = defaultdict(set)
    for visit in visits:
        if visit.outcome is Outcome.OK:
            well[visit.subject].update(visit.nodes)
        elif visit.outcome in LOST or visit.outcome in _CONFIGURATION:
            badly[visit.subject, visit.outcome in LOST].update(visit.nodes)
    outage = _outage(visits)
    counted: set[int] = set()
    seen: set[tuple[str, tuple[str, bool]]] = set()
    for index, visit in enumerate(visits):
        here, is_lost = set(visit.nodes), visit.outcome in LOST
        if not here or index in outage or not (is_lost or visit.outcome in _CONFIGURATION):
            continue
        is_well_elsewhere = bool(well[visit.subject] - here)
        is_bad_elsewhere = bool(badly[visit.subject, is_lost] - here)
        if is_lost and (is_well_elsewhere or not is_bad_elsewhere):
            counted.add(index)
        elif not is_lost and is_well_elsewhere and not is_bad_elsewhere and (visit.node, visit.subject) not in seen:
            seen.add((visit.node, visit.subject))
            counted.add(index)
    return counted


def tallies(visits: Sequence[NodeVisit], counted: set[int]) -> dict[str, NodeTally]:
    """What counts for and against every node seen."""
    found: dict[str, NodeTally] = defaultdict(NodeTally)
    for index, visit in enumerate(visits):
        for node in visit.nodes:
            tally = found[node]
            tally.num_visits += 1
            if index in counted:
                tally.failures.append((index, 1 / len(visit.nodes)))
            elif visit.has_worked:
                tally.num_worked += 1
    return dict(found)


def well_elsewhere(visits: Sequence[NodeVisit], node: str) -> set[tuple[str, bool]]:
    """Subjects that did well on nodes other than this one."""
    return {
        visit.subject for visit in visits if visit.outcome is Outcome.OK and visit.nodes and node not in visit.nodes
    }


def _outage(visits: Sequence[NodeVisit]) -> set[int]:
    """Lost attempts of stretches without a success in which too many nodes failed, or all that had been tried."""
    found: set[int] = set()
    stretch: list[int] = []
    has_worked = False
    for index in range(len(visits) + 1):
        is_end = index == len(visits)
        if not is_end and visits[index].outcome in LOST:
            stretch.append(index)
        elif is_end or visits[index].has_worked:
            if _num_culprits([visits[i] for i in stretch]) >= (_OUTAGE_NODES if has_worked else _OUTAGE_NODES - 1):
                found.update(stretch)
            stretch, has_worked = [], True
    return found


def _num_culprits(visits: Sequence[NodeVisit]) -> int:
    """How many nodes it takes to explain these failures: one if all share a node, else about as many as were met."""
    met = [set(visit.nodes) for visit in visits if visit.nodes]
    if not met or set.intersection(*met):
        return min(1, len(met))
    return min(len(set.union(*met)), len({frozenset(nodes) for nodes in met}))
