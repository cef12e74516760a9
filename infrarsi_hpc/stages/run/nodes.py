"""Which nodes a campaign's next jobs leave out: those that its ledger blames, corrected by what a person says.

A person's word is kept in `nodes.json` in the campaign's folder: `exclude` leaves a node out, `allow` keeps one in,
whatever the ledger says. The head reads it before every submission, so an edit needs no restart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints, model_validator

from infrarsi_hpc.domain.campaign import CampaignState, Visit
from infrarsi_hpc.edges.atomic import write_json
from infrarsi_hpc.edges.typed_files import read_json
from infrarsi_hpc.errors import InputRefused, UsageError
from infrarsi_hpc.verify.node_speeds import SpeedTable
from infrarsi_hpc.verify.node_visits import NodeVisit, counted_failures, tallies
from infrarsi_hpc.verify.nodes import Blame, blame

SCHEMA_VERSION: Literal[1] = 1
FILE = "nodes.json"
#: Nodes left out at most: a job that asks for less and less of the cluster waits longer and longer.
MAX_EXCLUDED = 50
#: Nodes of one job at most whose names are read.
_MAX_NODES = 1024
_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
NodeName = Annotated[str, StringConstraints(pattern=rf"^{_NAME}$")]


class NodeList(BaseModel):
    """`nodes.json`: what a person says of nodes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_version: Literal[1]
    allow: list[NodeName] = []
    exclude: list[NodeName] = []

    @model_validator(mode="after")
    def _says_one_thing(self) -> NodeList:
        both = sorted(set(self.allow) & set(self.exclude))
        if both:
            raise ValueError(f"{both[0]} is allowed and excluded")
        if len(set(self.exclude)) > MAX_EXCLUDED:
            raise ValueError(f"{len(set(self.exclude))} nodes are excluded; at most {MAX_EXCLUDED} can be")
        return self


@dataclass(frozen=True)
class NodeRow:
    """One node, for people. `speed_ratio` is its step time over the others' at the same work, none where unknown."""

    node: str
    num_visits: int
    num_failures: int
    speed_ratio: float | None
    num_comparisons: int
    verdict: Literal["used", "excluded", "allowed"]
    reason: str


def excluded_nodes(
    state: CampaignState,
    folder: Path,
    *,
    noise_cv: float,
    shares_host: bool,
    expected_seconds: Mapping[str, float] | None = None,
) -> tuple[str, ...]:
    """Nodes that the next job leaves out: a person's first, then those blamed, the worst first; 50 at most.

    `expected_seconds` are step times by candidate id, of a model that knows nothing of nodes.

    Raises
    ------
    InputRefused
        `nodes.json` in `folder` cannot be used.
    """
    said = read_node_list(folder)
    blamed = blame(node_visits(state, expected_seconds), noise_cv=noise_cv, shares_host=shares_host)
    return _excluded(said, blamed)


def nodes_report(
    state: CampaignState,
    folder: Path,
    *,
    noise_cv: float,
    shares_host: bool,
    expected_seconds: Mapping[str, float] | None = None,
) -> list[NodeRow]:
    """A row for every node visited or named by a person, by name; arguments and errors as for `excluded_nodes`."""
    said = read_node_list(folder)
    visits = node_visits(state, expected_seconds)
    blamed = blame(visits, noise_cv=noise_cv, shares_host=shares_host)
    excluded = set(_excluded(said, blamed))
    by_node = tallies(visits, counted_failures(visits))
    speeds = SpeedTable(visits, noise_cv=noise_cv)
    rows = []
    for node in sorted({*by_node, *said.exclude, *said.allow}, key=_natural):
        tally = by_node.get(node)
        speed = speeds.of(node) if tally and not shares_host else None
        verdict, reason = _verdict(node, said, blamed.get(node), node in excluded)
        rows.append(
            NodeRow(
                node=node,
                num_visits=tally.num_visits if tally else 0,
                num_failures=len(tally.failures) if tally else 0,
                speed_ratio=speed.ratio if speed else None,
                num_comparisons=speed.num_comparisons if speed else 0,
                verdict=verdict,
                reason=reason,
            )
        )
    return rows


def node_visits(state: CampaignState, expected_seconds: Mapping[str, float] | None = None) -> list[NodeVisit]:
    """A campaign's attempts as evidence on nodes; those without a node that can be named are left out.

    Attempts that one job lost together are one visit: the node failed once.
    """
    expected = expected_seconds or {}
    found: list[NodeVisit] = []
    jobs: set[tuple[object, ...]] = set()
    for visit in state.visits:
        if not is_node_list(visit.node):
            continue
        job = (visit.round, visit.submission, visit.node, visit.outcome, visit.device_seconds, visit.evidence)
        if visit.step_seconds is None and job in jobs:
            continue
        jobs.add(job)
        found.append(_node_visit(state, visit, expected))
    return found


def is_node_list(text: str) -> bool:
    """Whether a text is one node's name, or several with commas between, as Slurm could have written them."""
    names = text.split(",", _MAX_NODES)
    return len(names) <= _MAX_NODES and all(re.fullmatch(_NAME, name) for name in names)


def read_node_list(folder: Path) -> NodeList:
    """What a person says of nodes; nothing without a file.

    Raises
    ------
    InputRefused
        The file is there and not what it should be.
    """
    path = folder / FILE
    if not path.exists():
        return NodeList(schema_version=SCHEMA_VERSION)
    fix = f"correct it, or remove {path} and say it again with `infrarsi nodes --exclude NODE`"
    return read_json(path, NodeList, InputRefused, schema=SCHEMA_VERSION, fix=fix)


def change_node_list(folder: Path, *, allow: Sequence[str] = (), exclude: Sequence[str] = ()) -> NodeList:
    """Allow or exclude nodes; the latest word on a node counts. Gives the list as it is now.

    Raises
    ------
    UsageError
        A name is no node's, is given for both, or more than 50 nodes would be excluded. Nothing is changed then.
    """
    for name in (*allow, *exclude):
        if not re.fullmatch(_NAME, name):
            raise UsageError(
                f"{name[:80]!r} is no node's name",
                why="a name has letters, digits and _ . - (no ranges)",
                fix="give each node by itself: --exclude n1 --exclude n2; `infrarsi nodes` lists those visited",
            )
    if both := sorted(set(allow) & set(exclude)):
        raise UsageError(f"{both[0]} is to be allowed and excluded", fix="give one of the two")
    before = read_node_list(folder)
    allowed = sorted({*before.allow, *allow} - set(exclude))
    excluded = sorted({*before.exclude, *exclude} - set(allow))
    if len(excluded) > MAX_EXCLUDED:
        raise UsageError(
            f"{len(excluded)} nodes would be excluded; at most {MAX_EXCLUDED} can be",
            fix="choose another partition or constraint in the site profile",
        )
    after = NodeList(schema_version=SCHEMA_VERSION, allow=allowed, exclude=excluded)
    write_json(folder / FILE, after.model_dump(mode="json"))
    return after


def _node_visit(state: CampaignState, visit: Visit, expected: Mapping[str, float]) -> NodeVisit:
    plan = state.trials[visit.trial].plan
    job = state.rounds[visit.round].job or {}
    candidate = plan.candidate.id
    return NodeVisit(
        node=visit.node,
        trial=visit.trial,
        candidate=candidate,
        outcome=visit.outcome,
        job_seconds=visit.device_seconds / max(1, int(job.get("num_devices", 1))),
        step_seconds=visit.step_seconds,
        is_baseline=plan.arm == "baseline" or plan.candidate.source == "baseline",
        detail=visit.detail,
        expected_seconds=expected.get(candidate),
    )


def _excluded(said: NodeList, blamed: Mapping[str, Blame]) -> tuple[str, ...]:
    names = [name for name in (*said.exclude, *blamed) if name not in said.allow]
    return tuple(dict.fromkeys(names))[:MAX_EXCLUDED]


def _verdict(
    node: str, said: NodeList, blamed: Blame | None, is_excluded: bool
) -> tuple[Literal["used", "excluded", "allowed"], str]:
    why = f"{blamed.kind}: {blamed.evidence}" if blamed else ""
    if node in said.exclude:
        return "excluded", "; ".join(filter(None, ("by you", why)))
    if node in said.allow:
        return "allowed", "; ".join(filter(None, ("by you", why)))
    if blamed and not is_excluded:
        return "used", f"{why}; {MAX_EXCLUDED} nodes are left out already"
    return ("excluded", why) if blamed else ("used", "")


def _natural(name: str) -> list[tuple[int, int, str]]:
    """n2 before n10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"([0-9]+)", name) if part]
