"""Node blame: the verdict beside what "exclude after two failures" says, and how often noise alone is blamed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.verify.node_speeds import SpeedTable
from infrarsi_hpc.verify.nodes import NodeVisit, beta_binomial_tail, blame, hypergeometric_tail


def run(*steps: str) -> list[NodeVisit]:
    """Visits from words like `n1:a=ok`, `n1,n2:b=infra`, with `x4` behind them for four trials (a0, a1, a2, a3)."""
    found: list[NodeVisit] = []
    for step in steps:
        node, rest = step.split(":")
        candidate, outcome = rest.split("=")
        outcome, _, times = outcome.partition("x")
        names = [f"{candidate}{i}" for i in range(int(times))] if times else [candidate]
        found += [NodeVisit(node, f"t-{name}", name, Outcome(outcome), 5.0, None, False) for name in names]
    return found


def naive(visits: Sequence[NodeVisit], most: int = 2) -> set[str]:
    """What is often done: a node is out after so many attempts that were not ok."""
    failed = Counter(node for visit in visits if visit.outcome is not Outcome.OK for node in visit.nodes)
    return {node for node, num in failed.items() if num >= most}


HEALTHY = [f"n{i}:w{i}-=okx6" for i in (2, 3, 4, 5, 6)]
#: name: (visits, nodes to blame, nodes that the naive rule leaves out)
SCENARIOS: dict[str, tuple[list[str], set[str], set[str]]] = {
    "all is well": (HEALTHY, set(), set()),
    "a node that eats one trial after another": (["n1:a=infrax4", *HEALTHY], {"n1"}, {"n1"}),
    "three in a row are enough": (["n1:a=infrax3", *HEALTHY], {"n1"}, {"n1"}),
    "two in a row are bad luck": (["n1:a=infrax2", *HEALTHY], set(), {"n1"}),
    "two in a row after a long clean record": (
        ["n1:a=infrax2", *[f"n{i}:w=okx40" for i in range(2, 6)]],
        {"n1"},
        {"n1"},
    ),
    "now and then among many": (["n1:g=okx20", "n1:a=infrax2", *HEALTHY], set(), {"n1"}),
    "every node fails: a broken setup line": (
        [f"n{i}:a{i}-=infrax3" for i in range(1, 7)],
        set(),
        {"n1", "n2", "n3", "n4", "n5", "n6"},
    ),
    "a broken setup line that was mended": (
        ["n1:a=infrax3", "n7:b=infrax3", *HEALTHY, "n3:c=okx6"],
        set(),
        {"n1", "n7"},
    ),
    "an outage of an hour": (
        [*HEALTHY, "n1:a=infrax3", "n2:b=infrax2", "n3:c=infrax2", *[f"n{i}:v{i}-=okx3" for i in (2, 3, 4)]],
        set(),
        {"n1", "n2", "n3"},
    ),
    "a bad node in an outage is blamed for the rest": (
        [*HEALTHY, "n1:a=infra", "n2:b=infra", "n3:c=infra", "n2:v=okx9", "n1:d=infrax6", "n3:u=okx9"],
        {"n1"},
        {"n1"},
    ),
    "a configuration that crashes": (["n1:a=crashedx5", *HEALTHY], set(), {"n1"}),
    "a configuration that has no room": (["n1:a=device_oomx5", *HEALTHY], set(), {"n1"}),
    "a configuration that is too slow": (["n1:a=timeoutx4", "n1:b=host_oomx4", *HEALTHY], set(), {"n1"}),
    "what crashes here and runs elsewhere": (["n1:w2-=crashedx6", *HEALTHY], {"n1"}, {"n1"}),
    "one candidate that crashes now and then": (["n1:w2-0=crashed"] * 6 + HEALTHY, set(), {"n1"}),
    "a candidate that is lost wherever it goes": (
        ["n1:a=infra", "n1:a=infra", "n1:a=infra", "n2:a=infra", *HEALTHY],
        set(),
        {"n1"},
    ),
    "one candidate, lost here alone, seen nowhere else": (["n1:a=infra"] * 4 + HEALTHY, set(), {"n1"}),
    "the same, and it ran elsewhere": (["n1:a=infra"] * 4 + ["n2:a=ok", *HEALTHY], {"n1"}, {"n1"}),
    "stopped by a person": (["n1:a=cancelledx6", *HEALTHY], set(), {"n1"}),
    "a node of pairs: its partners work without it": (
        [*(f"n1,n{i}:{c}=infra" for i, c in zip((2, 3, 4, 5, 6, 2, 3, 4), "abcdefgh", strict=True)), *HEALTHY],
        {"n1"},
        {"n1", "n2", "n3", "n4"},
    ),
    "two bad nodes do not hide each other": (
        ["n1:a=infrax6", "n2:v=ok", "n7:b=infrax6", *HEALTHY],
        {"n1", "n7"},
        {"n1", "n7"},
    ),
    "one of two nodes is no third": (["n1:a=infrax6", "n2:w=okx30"], set(), {"n1"}),
    "nobody knows where": ([":a=infrax6", *HEALTHY], set(), set()),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_failures_are_blamed_on_a_node_only_where_nothing_else_explains_them(name: str) -> None:
    steps, guilty, naively = SCENARIOS[name]
    visits = run(*steps)
    found = blame(visits, noise_cv=0.01, shares_host=False)
    assert set(found) == guilty
    assert naive(visits) == naively
    for node, why in found.items():
        assert (why.node, why.kind) == (node, "fails")
        assert node in visits[why.since].nodes
        assert "attempts failed" in why.evidence
    # z9 for n1, z8 for n2 ...: another order of names, the same verdict
    renamed = [replace(v, node=",".join(f"z{10 - int(n[1:])}" for n in v.nodes)) for v in visits]
    assert set(blame(renamed, noise_cv=0.01, shares_host=False)) == {f"z{10 - int(n[1:])}" for n in guilty}


def test_never_more_than_a_third_of_the_nodes_is_blamed() -> None:
    bad = [f"n{i}:a{i}-=infrax9" for i in range(3)]
    mixed = [step for i, step in enumerate(bad) for step in (step, f"m{i}:g{i}-=okx20")]
    visits = run(*mixed, "m4:g=okx20")
    assert len(naive(visits)) == 3
    # three that are equally bad and two places: which two would be arbitrary
    assert len(blame(visits, noise_cv=0.01, shares_host=False)) <= 2
    assert "n1" in blame([*visits, *run("n1:z=infrax3", "m1:y=okx9")], noise_cv=0.01, shares_host=False)


# ---- speed


def timed(node: str, candidate: str, seconds: float, *, expected: float | None = None) -> NodeVisit:
    return NodeVisit(
        node, f"t-{candidate}", candidate, Outcome.OK, 60.0, seconds, candidate == "base", expected_seconds=expected
    )


def test_a_node_with_only_slow_candidates_is_not_slow() -> None:
    others = [timed(f"n{i}", f"quick{i}{k}", 1.0) for i in range(1, 6) for k in range(4)]
    visits = [timed("n0", f"heavy{k}", 3.0) for k in range(4)] + others
    mean_elsewhere = float(np.mean([v.step_seconds for v in others if v.step_seconds]))
    assert 3.0 / mean_elsewhere == 3.0  # what comparing plain means says
    assert SpeedTable(visits, noise_cv=0.01).of("n0") is None
    assert blame(visits, noise_cv=0.01, shares_host=False) == {}


SPEEDS: dict[str, tuple[list[float], float, bool]] = {
    "1.3x": ([1.3, 1.31, 1.29], 0.01, True),
    "two comparisons": ([1.3, 1.3], 0.01, False),
    "surely slower, and of no consequence": ([1.05] * 9, 0.005, False),
    "within the noise": ([1.3, 1.31, 1.29], 0.2, False),
    "one unlucky run": ([1.0, 1.9, 1.01, 0.99], 0.01, False),
    "faster": ([0.7, 0.7, 0.7], 0.01, False),
}


@pytest.mark.parametrize("name", SPEEDS)
def test_a_slow_node_is_slow_beyond_noise_and_consequence(name: str) -> None:
    here, noise, is_slow = SPEEDS[name]
    elsewhere = [timed(f"n{i}", "base", 1.0 + 0.005 * ((i + k) % 3 - 1)) for i in range(1, 6) for k in range(2)]
    visits = [*elsewhere, *(timed("n0", "base", seconds) for seconds in here)]
    found = blame(visits, noise_cv=noise, shares_host=False)
    assert set(found) == ({"n0"} if is_slow else set())
    if is_slow:
        assert found["n0"].kind == "slow"
        assert found["n0"].since == len(elsewhere)
    assert blame(visits, noise_cv=noise, shares_host=True) == {}


def test_several_candidates_are_compared_each_with_itself() -> None:
    work = {"a": 1.0, "b": 4.0, "c": 0.2, "d": 9.0}
    visits = [timed(f"n{i}", name, seconds) for i in (1, 2, 3) for name, seconds in work.items()]
    visits += [timed("n0", name, 1.3 * seconds) for name, seconds in work.items()]
    speed = SpeedTable(visits, noise_cv=0.01).of("n0")
    assert speed is not None
    assert (round(speed.ratio, 6), speed.num_comparisons) == (1.3, 4)
    assert set(blame(visits, noise_cv=0.01, shares_host=False)) == {"n0"}


def test_a_prediction_stands_in_for_runs_that_nobody_repeated_and_its_bias_is_no_nodes() -> None:
    rng = np.random.default_rng(4)
    bias = 1.5  # the model is wrong about everything alike
    visits = []
    for number in range(60):
        node, truth = number % 6, float(rng.uniform(0.5, 5.0))
        seconds = truth * (1.4 if node == 0 else 1.0) * math.exp(rng.normal(0, 0.04))
        visits.append(timed(f"n{node}", f"c{number}", seconds, expected=truth / bias))
    assert set(blame(visits, noise_cv=0.01, shares_host=False)) == {"n0"}
    naively = {
        v.node for v in visits if v.step_seconds and v.expected_seconds and v.step_seconds > 1.1 * v.expected_seconds
    }
    assert len(naively) == 6


def test_times_of_jobs_on_several_nodes_and_times_that_are_none_are_left_out() -> None:
    elsewhere = [timed(f"n{i}", "base", 1.0) for i in range(1, 6)]
    strange = [timed("n0,n1", "base", 9.0)] * 4 + [timed("n0", "base", s) for s in (math.nan, 0.0, -1.0, math.inf)]
    crashed = [replace(timed("n0", "base", 9.0), outcome=Outcome.REFUSED)] * 4
    assert SpeedTable([*elsewhere, *strange, *crashed], noise_cv=0.01).of("n0") is None


# ---- how often noise is blamed, and how often a bad node is found


def campaign(
    rng: np.random.Generator, *, nodes: int, rounds: int, batch: int, lost: float, bad: float = 0.0
) -> list[list[NodeVisit]]:
    """Rounds of visits: trials fall on random nodes, lost ones end first and are tried again; n0 loses `bad` of them.

    A bad node is free again at once and takes the next trial too, so it gets three times its share.
    """
    shares = np.ones(nodes)
    shares[0] = 3.0 if bad else 1.0
    due: list[str] = []
    found = []
    for number in range(rounds):
        trials = due + [f"c{number}-{i}" for i in range(batch - len(due))]
        where = rng.choice(nodes, size=len(trials), p=shares / shares.sum())
        is_lost = rng.random(len(trials)) < np.where(where == 0, max(bad, lost), lost)
        order = np.argsort(rng.random(len(trials)) + ~is_lost)
        found.append(
            [
                NodeVisit(
                    f"n{where[k]}", trials[k], trials[k], Outcome.INFRA if is_lost[k] else Outcome.OK, 5.0, None, False
                )
                for k in order
            ]
        )
        due = [trial for trial, gone in zip(trials, is_lost, strict=True) if gone]
    return found


def was_ever_blamed(rounds: Sequence[Sequence[NodeVisit]], *, most: int = 2) -> tuple[set[str], set[str]]:
    """Who was blamed after any round, and whom the naive rule left out."""
    visits: list[NodeVisit] = []
    guilty: set[str] = set()
    for ended in rounds:
        visits += ended
        # fewer than two failures on every node: nothing could be blamed
        if naive(visits, most):
            guilty |= blame(visits, noise_cv=0.01, shares_host=True).keys()
    return guilty, naive(visits, most)


@pytest.mark.parametrize(("nodes", "lost"), [(4, 0.02), (4, 0.1), (12, 0.05)])
def test_noise_alone_is_blamed_in_less_than_one_campaign_in_a_hundred(nodes: int, lost: float) -> None:
    rng = np.random.default_rng(11)
    num = 300
    ends = [was_ever_blamed(campaign(rng, nodes=nodes, rounds=16, batch=4, lost=lost)) for _ in range(num)]
    wrongly, naively = (sum(map(bool, found)) for found in zip(*ends, strict=True))
    assert wrongly / num < 0.01
    assert naively / num > 0.05


def test_a_node_that_fails_half_of_the_time_is_found() -> None:
    rng = np.random.default_rng(12)
    ends = [was_ever_blamed(campaign(rng, nodes=8, rounds=16, batch=6, lost=0.02, bad=0.6))[0] for _ in range(40)]
    assert sum("n0" in guilty for guilty in ends) >= 36


def speeds(rng: np.random.Generator, *, slow: float, noise: float) -> list[NodeVisit]:
    """Sixty runs on eight nodes, a third of them the baseline; n0 takes `slow` times as long, and noise has tails."""
    where = rng.integers(8, size=60)
    what = np.where(rng.random(60) < 1 / 3, 0, rng.integers(1, 20, size=60))
    logs = np.log1p(what % 5) + np.log(slow) * (where == 0) + noise * rng.standard_t(4, size=60) / math.sqrt(2)
    return [
        timed(f"n{n}", "base" if w == 0 else f"c{w}", math.exp(x)) for n, w, x in zip(where, what, logs, strict=True)
    ]


@pytest.mark.parametrize(("doctor_says", "noise"), [(0.02, 0.02), (0.01, 0.04)])
def test_noise_alone_makes_no_node_slow_even_where_the_doctor_underrated_it(doctor_says: float, noise: float) -> None:
    rng = np.random.default_rng(13)
    num = 150
    blamed = sum(
        bool(blame(speeds(rng, slow=1.0, noise=noise), noise_cv=doctor_says, shares_host=False)) for _ in range(num)
    )
    assert blamed / num < 0.01


def test_a_node_that_takes_1_3_times_as_long_is_found() -> None:
    rng = np.random.default_rng(14)
    found = [blame(speeds(rng, slow=1.3, noise=0.02), noise_cv=0.02, shares_host=False) for _ in range(50)]
    assert sum("n0" in guilty for guilty in found) >= 45
    assert sum(bool(guilty.keys() - {"n0"}) for guilty in found) == 0


# ---- laws

VISIT = st.builds(
    NodeVisit,
    node=st.sampled_from(["n1", "n2", "n3", "n4", "n5", "n6", "n1,n2", "n3,n4", ""]),
    trial=st.just("t"),
    candidate=st.sampled_from("abcdef"),
    outcome=st.sampled_from([*Outcome, *[Outcome.OK, Outcome.INFRA] * 6]),
    job_seconds=st.floats(1, 100),
    step_seconds=st.none() | st.floats(0.9, 2.0),
    is_baseline=st.booleans(),
    expected_seconds=st.none() | st.floats(0.9, 2.0),
)


@given(st.lists(VISIT, max_size=60), st.permutations(range(1, 7)), st.floats(0, 0.2))
@settings(max_examples=150)
def test_names_of_nodes_do_not_matter(visits: list[NodeVisit], order: list[int], noise: float) -> None:
    new = {f"n{i}": f"m{k}" for i, k in enumerate(order, start=1)}
    renamed = [replace(v, node=",".join(new[n] for n in reversed(v.nodes))) for v in visits]
    before = blame(visits, noise_cv=noise, shares_host=False)
    after = blame(renamed, noise_cv=noise, shares_host=False)
    assert {new[node]: replace(why, node=new[node]) for node, why in before.items()} == after
    assert len(before) <= len({n for v in visits for n in v.nodes}) // 3


@given(st.integers(0, 30), st.floats(0.1, 50), st.floats(0.1, 50))
def test_the_tail_is_a_probability_that_falls_with_the_count(trials: int, a: float, b: float) -> None:
    tails = [beta_binomial_tail(x, trials, a, b) for x in range(trials + 1)]
    assert tails[0] == pytest.approx(1.0)
    assert all(0.0 <= later <= earlier * (1 + 1e-9) for earlier, later in pairwise(tails))


def test_the_tails_are_scipys() -> None:
    from scipy.stats import betabinom, hypergeom

    assert beta_binomial_tail(3, 7, 0.5, 9.5) == pytest.approx(betabinom.sf(2, 7, 0.5, 9.5))
    assert hypergeometric_tail(3, 7, 5, 40) == pytest.approx(hypergeom.sf(2, 40, 5, 7))
    with pytest.raises(ValueError, match="successes"):
        beta_binomial_tail(4, 3, 1.0, 1.0)
