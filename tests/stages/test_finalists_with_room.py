"""Which finalists are re-verified first: a fast one that barely fits dies in a promotion run sooner or later."""

from __future__ import annotations

from tiny_program import CONTRACT

from infrarsi_hpc.domain.campaign import replay
from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.contract import Contract
from infrarsi_hpc.stages.run import with_room


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
