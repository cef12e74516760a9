"""The ledger's fold: what a campaign's state is after any prefix of its events."""

from __future__ import annotations

from typing import Any

from infrarsi_hpc.domain.campaign import MAX_ATTEMPTS, replay

CONFIGURATION = {"micro_batch": 2}


def event(seq: int, name: str, **fields: Any) -> dict[str, Any]:
    return {"schema_version": 1, "seq": seq, "time": 100.0 + seq, "event": name, **fields}


def planned(seq: int, *trials: str) -> dict[str, Any]:
    plans = [{"trial": t, "candidate": {"configuration": CONFIGURATION}, "lengths": [8], "seed": 1} for t in trials]
    return event(seq, "planned", round=1, purpose="search", trials=plans)


def finished(seq: int, trial: str, outcome: str, attempt: int = 1, **reading: Any) -> dict[str, Any]:
    ending = {"outcome": outcome, "bound_gib": 2.0 if outcome == "device_oom" else None}
    return event(
        seq, "finished", trial=trial, attempt=attempt, ending=ending, reading=reading or None, device_seconds=5.0
    )


def judged(seq: int, trial: str, belief: str) -> dict[str, Any]:
    return event(seq, "judged", trial=trial, verdict={"belief": belief, "reasons": ["r"]})


def test_a_trial_is_final_once_it_is_judged() -> None:
    events = [planned(1, "t1"), finished(2, "t1", "ok", step_seconds=0.1), judged(3, "t1", "believed")]
    assert [replay(events[:k]).trials["t1"].is_final for k in (1, 2, 3)] == [False, False, True]
    [row] = replay(events).observations()
    assert (row.outcome, row.step_seconds) == ("ok", 0.1)


def test_an_out_of_memory_trial_is_a_bound_not_a_loss() -> None:
    events = [planned(1, "t1"), finished(2, "t1", "device_oom"), judged(3, "t1", "undecided")]
    [row] = replay(events).observations()
    assert (row.outcome, row.bound_gib, row.peak_gib) == ("device_oom", 2.0, None)


def test_a_measurement_that_is_not_believed_teaches_refusal_and_no_step_time() -> None:
    events = [planned(1, "t1"), finished(2, "t1", "ok", step_seconds=0.01), judged(3, "t1", "refused")]
    [row] = replay(events).observations()
    assert (row.outcome, row.step_seconds) == ("refused", None)


def test_infrastructure_trouble_is_retried_then_given_up_and_its_cost_is_kept() -> None:
    events = [planned(1, "t1")]
    for attempt in range(1, MAX_ATTEMPTS + 1):
        assert not replay(events).trials["t1"].is_final
        assert replay(events).trials["t1"].next_attempt == attempt
        events.append(finished(1 + attempt, "t1", "infra", attempt))
    state = replay(events)
    assert state.trials["t1"].is_final
    assert state.observations() == []
    assert state.device_seconds() == 5.0 * MAX_ATTEMPTS


def test_a_persons_cancelling_never_uses_attempts_up() -> None:
    events = [planned(1, "t1")] + [finished(1 + k, "t1", "cancelled", k) for k in range(1, 10)]
    assert not replay(events).trials["t1"].is_final
    assert replay(events).trials["t1"].next_attempt == 10


def test_the_same_ending_told_twice_counts_once() -> None:
    events = [planned(1, "t1"), finished(2, "t1", "ok", step_seconds=0.1), finished(3, "t1", "ok", step_seconds=0.1)]
    assert replay(events).device_seconds() == 5.0


def test_an_event_of_a_later_version_is_left_alone() -> None:
    assert replay([event(1, "something_new", what=1), planned(2, "t1")]).trials.keys() == {"t1"}


def test_every_attempt_is_a_visit_of_its_node_once_and_old_ledgers_have_none_to_name() -> None:
    on = [finished(2, "t1", "infra", 1) | {"node": "n1,n2"}, finished(3, "t1", "ok", 2, step_seconds=0.1)]
    on[1]["node"] = "n3"
    events = [planned(1, "t1", "t2"), *on, on[1] | {"seq": 4}, finished(5, "t2", "ok")]
    visits = replay(events).visits
    assert [(v.node, v.trial, v.attempt, v.outcome, v.step_seconds) for v in visits] == [
        ("n1,n2", "t1", 1, "infra", None),
        ("n3", "t1", 2, "ok", 0.1),
        ("", "t2", 1, "ok", None),
    ]
    assert {(v.device_seconds, v.round, v.submission) for v in visits} == {(5.0, 1, 1)}


def test_a_library_that_could_not_allocate_counts_as_memory_once_it_is_confirmed() -> None:
    def ended(seq: int, attempt: int, detail: str) -> dict[str, Any]:
        ending = {"outcome": "device_oom", "detail": detail, "bound_gib": 2.0}
        return event(seq, "finished", trial="t1", attempt=attempt, ending=ending, device_seconds=5.0)

    verdict = judged(9, "t1", "undecided")
    first = [planned(1, "t1"), ended(2, 1, "lib_alloc")]
    assert not replay([*first, verdict]).trials["t1"].is_final, "naive: censored at the first sight"
    assert replay(first).trials["t1"].next_attempt == 2
    assert replay([*first, ended(3, 2, "lib_alloc"), verdict]).observations()[0].outcome == "device_oom"
    assert replay([*first, finished(3, "t1", "ok", 2), judged(4, "t1", "believed")]).observations()[0].outcome == "ok"
    assert replay([planned(1, "t1"), ended(2, 1, "torch"), verdict]).trials["t1"].is_final


def test_what_others_cancel_again_and_again_is_given_up_and_our_own_cancelling_is_not_counted() -> None:
    def cancelled(attempt: int, *, is_foreign: bool) -> dict[str, Any]:
        return finished(1 + attempt, "t1", "cancelled", attempt) | {"is_foreign": is_foreign}

    foreign = [planned(1, "t1"), *[cancelled(k, is_foreign=True) for k in range(1, MAX_ATTEMPTS + 1)]]
    assert replay(foreign).trials["t1"].is_final, "naive: submitted again all night"
    ours = [planned(1, "t1"), *[cancelled(k, is_foreign=False) for k in range(1, MAX_ATTEMPTS + 1)]]
    assert not replay(ours).trials["t1"].is_final
