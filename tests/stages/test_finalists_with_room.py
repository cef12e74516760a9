"""Which finalists are re-verified first: a fast one that barely fits dies in a promotion run sooner or later."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_program import CONTRACT

from infrarsi_hpc.domain.campaign import CampaignState, replay
from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.contract import Contract
from infrarsi_hpc.domain.verdict import Belief, Speedup, Verdict
from infrarsi_hpc.stages.run import loop as run
from infrarsi_hpc.stages.run.promotion import BLOCK_PAIRS, may_narrow, pairs_of, usable_pairs, was_looked_at, with_room
from infrarsi_hpc.verify.promotion import Decision


def test_a_finalist_at_the_edge_of_memory_comes_after_those_with_room() -> None:
    import tomllib

    contract = Contract.model_validate(tomllib.loads(CONTRACT + "\n[limits]\nmemory_gib = 1.0\n"))
    candidates = [Candidate(configuration={"delay": d, "chunks": 1}) for d in (0, 10, 20)]
    events = [
        {
            "schema_version": 1,
            "seq": 1,
            "time": 1.0,
            "event": "planned",
            "round": 1,
            "purpose": "search",
            "trials": [
                {"trial": f"t{k}", "candidate": c.model_dump(mode="json"), "lengths": [8], "seed": 1}
                for k, c in enumerate(candidates)
            ],
        }
    ]
    events += [
        {
            "schema_version": 1,
            "seq": 2 + k,
            "time": 2.0,
            "event": "finished",
            "trial": f"t{k}",
            "attempt": 1,
            "ending": {"outcome": "ok"},
            "reading": {"step_seconds": 0.1, "peak_gib": peak},
        }
        for k, peak in enumerate((0.97, 0.5, 0.9))
    ]
    fastest_first = candidates
    by_room = with_room(replay(events), contract, fastest_first)
    assert by_room == [candidates[1], candidates[2], candidates[0]]
    unlimited = contract.model_copy(update={"limits": contract.limits.model_copy(update={"memory_gib": None})})
    assert with_room(replay(events), unlimited, fastest_first) == fastest_first


def promotion_runs(
    finalist: Candidate,
    outcomes: list[str],
    elsewhere: Sequence[int] = (),
    disturbed: Sequence[str] = (),
    tainted: Sequence[str] = (),
) -> CampaignState:
    """A promotion whose candidate arms ended so, pair by pair; its baseline arms are well.

    The candidate arms of the pairs in `elsewhere` ran on another node, the trials in `disturbed` beside others' work.
    """
    trials, ends = [], []
    for pair, outcome in enumerate(outcomes, start=1):
        for arm in ("baseline", "candidate"):
            name = f"v{len(trials)}"
            candidate = finalist if arm == "candidate" else Candidate(configuration={"delay": 20, "chunks": 4})
            plan = {"trial": name, "candidate": candidate.model_dump(mode="json"), "lengths": [4, 20], "seed": 1}
            trials.append(plan | {"finalist": finalist.id, "pair": pair, "arm": arm})
            end = {"outcome": outcome if arm == "candidate" else "ok", "bound_gib": None}
            end["evidence"] = "tainted: a helper was killed" if name in tainted else ""
            node = "n2" if arm == "candidate" and pair in elsewhere else "n1"
            reading = {"slope_seconds": 1.0 if arm == "candidate" else 2.0, "step_seconds": 1.0}
            reading["foreign_cores"] = 1.2 if name in disturbed else 0.1
            ends.append(
                {"event": "finished", "trial": name, "attempt": 1, "ending": end, "node": node, "reading": reading}
            )
            belief = "believed" if end["outcome"] == "ok" else "undecided"
            ends.append({"event": "judged", "trial": name, "verdict": {"belief": belief, "reasons": ["so"]}})
    events = [{"event": "planned", "round": 1, "purpose": "verify", "trials": trials}, *ends]
    return replay({"schema_version": 1, "seq": k, "time": 1.0, **event} for k, event in enumerate(events, start=1))


@pytest.mark.parametrize(
    ("outcomes", "takes_a_place"),
    [
        (["ok"] * BLOCK_PAIRS, True),
        (["device_oom"] + ["ok"] * (BLOCK_PAIRS - 1), False),
        (["ok"] * (BLOCK_PAIRS - 1) + ["device_oom"], False),
        # it was compared once, and could have been promoted then
        (["ok"] * BLOCK_PAIRS + ["device_oom"], True),
        ([], False),
    ],
)
def test_a_finalist_takes_a_place_when_its_times_were_looked_at(outcomes: list[str], takes_a_place: bool) -> None:
    finalist = Candidate(configuration={"delay": 0, "chunks": 1})
    assert was_looked_at(promotion_runs(finalist, outcomes), finalist) is takes_a_place


def test_a_pair_that_a_lost_job_split_over_two_nodes_is_no_pair() -> None:
    finalist = Candidate(configuration={"delay": 0, "chunks": 1})
    state = promotion_runs(finalist, ["ok"] * 4, elsewhere=[2, 3])
    assert len(pairs_of(state, finalist)) == 4, "naive: a slow node's baseline against a fast node's candidate"
    assert [baseline.plan.pair for baseline, _ in usable_pairs(state, finalist)] == [1, 4]


def test_a_pair_with_others_at_work_beside_one_arm_is_no_pair() -> None:
    finalist = Candidate(configuration={"delay": 0, "chunks": 1})
    # beside the baseline of the first pair, the candidate of the second, and both arms of the third
    state = promotion_runs(finalist, ["ok"] * 4, disturbed=["v0", "v3", "v4", "v5"])
    assert len(pairs_of(state, finalist)) == 4, "naive: the baseline was slow, so the candidate is fast"
    assert [baseline.plan.pair for baseline, _ in usable_pairs(state, finalist)] == [3, 4]


def test_a_pair_with_a_tainted_arm_is_no_pair() -> None:
    finalist = Candidate(configuration={"delay": 0, "chunks": 1})
    state = promotion_runs(finalist, ["ok"] * 3, tainted=["v3"])
    assert [baseline.plan.pair for baseline, _ in usable_pairs(state, finalist)] == [1, 3]


def test_a_proven_finalist_gets_more_pairs_as_long_as_the_contract_has_some() -> None:
    contract = Contract.model_validate(tomllib.loads(CONTRACT))  # at most six pairs
    finalist = Candidate(configuration={"delay": 0, "chunks": 1})
    wide = Speedup(ratio=2.6, low=1.67, high=4.06, confidence=0.95, num_pairs=3)
    proven = Decision("promote", wide, Verdict(belief=Belief.BELIEVED))
    assert may_narrow(promotion_runs(finalist, ["ok"] * 3), contract, finalist, proven), "naive: three pairs and done"
    assert not may_narrow(promotion_runs(finalist, ["ok"] * 6), contract, finalist, proven)
    undecided = Decision("continue", wide, Verdict(belief=Belief.UNDECIDED))
    assert not may_narrow(promotion_runs(finalist, ["ok"] * 3), contract, finalist, undecided)


@pytest.mark.parametrize("is_proven", [True, False])
def test_time_that_is_up_while_an_interval_is_narrowed_takes_nothing_back(
    is_proven: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    finalist = Candidate(configuration={"delay": 0, "chunks": 1})
    state = promotion_runs(finalist, ["ok"] * 3)
    contract = Contract.model_validate(tomllib.loads(CONTRACT))
    said: list[tuple[str, dict[str, object]]] = []

    def spent() -> None:
        raise run.Spent("the time is up")

    campaign = SimpleNamespace(
        state=state,
        project=SimpleNamespace(contract=contract),
        doctor=SimpleNamespace(detectable_speedup=1.02),
        plan=lambda *_: None,
        finish_open_rounds=spent,
        cancel_running=lambda: said.append(("cancelled", {})),
        ledger=SimpleNamespace(append=lambda event, **fields: said.append((event, fields))),
        observer=SimpleNamespace(said=lambda _: None),
    )
    allowance = SimpleNamespace(may_narrow=lambda *_: True, may_promote=lambda *_: (True, ""))
    monkeypatch.setattr(run, "_problem", lambda *_: None)
    monkeypatch.setattr(run, "finalists", lambda *_: [finalist])
    monkeypatch.setattr(run, "round_rng", lambda *_: np.random.default_rng(0))
    monkeypatch.setattr(run, "may_narrow", lambda *_: is_proven)
    if not is_proven:
        undecided = Decision("continue", None, Verdict(belief=Belief.UNDECIDED))
        monkeypatch.setattr(run, "decide_finalist", lambda *_: undecided)
        with pytest.raises(run.Spent):
            run._promote(campaign, allowance)
        return
    assert run._promote(campaign, allowance) == ""
    assert [event for event, _ in said] == ["cancelled", "promoted"]
    [result] = said[1][1]["finalists"]
    assert (result["verdict"]["belief"], result["speedup"]["num_pairs"]) == ("believed", 3)
