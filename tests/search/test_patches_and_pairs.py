from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.models.beliefs import fit_beliefs
from infrarsi_hpc.models.problem import Problem
from infrarsi_hpc.search.patches import patch_sets, refused_patches, untested_patches
from infrarsi_hpc.search.pool import incumbent_of
from infrarsi_hpc.search.propose import predictions, propose

Observe = Callable[..., Observation]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def some_trials(observe: Observe) -> list[Observation]:
    return [
        observe(0.9, 0.10),
        observe(0.80, 0.09, attention="sdpa"),
        observe(0.86, 0.09, optimizer="fused"),
        observe(0.95, 0.08, recompute="attention"),
    ]


def test_untested_patches_get_half_a_batch_alone_on_the_best_so_far(
    problem: Problem, patches: tuple[Patch, ...], observe: Observe
) -> None:
    problem = replace(problem, patches=patches)
    seen = some_trials(observe)
    best = incumbent_of(fit_beliefs(problem, seen))
    found = propose(problem, seen, 4, rng())
    alone = [c for c in found if c.source == "patch"]
    assert len(alone) == 2
    assert all(len(c.patches) == 1 for c in alone)
    # wide-cache says that it needs more memory than there is: it moves to where there is room; fused-loss stays
    by_patch = {c.patches[0]: c for c in alone}
    assert by_patch[patches[0].sha256].configuration == best.configuration
    assert not any(c.patches for c in found if c.source != "patch")


def test_a_patch_that_needs_room_is_tried_where_there_is_some(
    problem: Problem, patches: tuple[Patch, ...], observe: Observe
) -> None:
    wide = Patch(name="wide-cache", text="b", expected_time_factor=0.9, expected_memory_gib=0.08)
    problem = replace(problem, patches=(wide,), memory_limit_gib=0.13)
    seen = [observe(0.7, 0.11, micro_batch=4), observe(0.9, 0.08), observe(1.0, 0.05, recompute="full")]
    candidate = next(c for c in propose(problem, seen, 2, rng()) if c.source == "patch")
    here = Candidate(configuration=seen[0].configuration, patches=(wide.sha256,))
    there, stay = predictions(problem, seen, [candidate, here])
    assert there.probability_fits > stay.probability_fits
    assert "room" in candidate.reason


REFUSALS = {
    "broke the contract, alone on a finished configuration": (Outcome.REFUSED, {}, True),
    "crashed alone on a finished configuration": (Outcome.CRASHED, {}, True),
    "does not apply": (Outcome.INVALID, {}, True),
    "crashed together with an untried setting": (Outcome.CRASHED, {"compile": "on"}, False),
    "ran out of memory": (Outcome.DEVICE_OOM, {}, False),
    "the node had trouble": (Outcome.INFRA, {}, False),
}


@pytest.mark.parametrize(("outcome", "changes", "is_refused"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_patch_is_given_up_when_only_it_can_be_to_blame(
    problem: Problem,
    patches: tuple[Patch, ...],
    observe: Observe,
    outcome: Outcome,
    changes: dict[str, str],
    is_refused: bool,
) -> None:
    problem = replace(problem, patches=patches)
    seen = [*some_trials(observe), observe(patches=(patches[0].sha256,), outcome=outcome, **changes)]
    assert (patches[0].sha256 in refused_patches(fit_beliefs(problem, seen))) is is_refused
    for _ in range(3):
        for candidate in propose(problem, seen, 4, rng()):
            assert not (is_refused and patches[0].sha256 in candidate.patches)
            seen.append(
                Observation(
                    trial="n",
                    configuration=candidate.configuration,
                    patches=candidate.patches,
                    outcome=Outcome.OK,
                    step_seconds=0.9,
                    peak_gib=0.1,
                )
            )


def test_a_patch_that_finished_elsewhere_is_not_given_up_for_a_crash(
    problem: Problem, patches: tuple[Patch, ...], observe: Observe
) -> None:
    problem = replace(problem, patches=patches)
    sha = patches[0].sha256
    seen = [
        *some_trials(observe),
        observe(0.7, 0.08, (sha,), attention="sdpa"),
        observe(patches=(sha,), outcome=Outcome.CRASHED),
    ]
    assert sha not in refused_patches(fit_beliefs(problem, seen))
    seen.append(observe(patches=(sha,), outcome=Outcome.REFUSED))
    assert sha in refused_patches(fit_beliefs(problem, seen))


def test_helpful_patches_are_combined_unless_they_conflict(
    problem: Problem, patches: tuple[Patch, ...], observe: Observe
) -> None:
    loss, tidy = patches[0].sha256, patches[2].sha256
    seen = [
        *some_trials(observe),
        observe(0.70, 0.08, (loss,), attention="sdpa"),
        observe(0.72, 0.09, (tidy,), attention="sdpa"),
        observe(0.95, 0.09, (patches[1].sha256,), attention="sdpa"),
    ]
    free = replace(problem, patches=patches)
    beliefs = fit_beliefs(free, seen)
    assert set(patch_sets(beliefs, incumbent_of(beliefs))[0]) == {loss, tidy}
    assert any(set(c.patches) == {loss, tidy} for c in propose(free, seen, 4, rng()))
    conflicting = replace(free, conflicts=frozenset({frozenset({loss, tidy})}))
    assert not any({loss, tidy} <= set(c.patches) for c in propose(conflicting, seen, 8, rng()))


def test_patches_wait_in_the_order_of_their_promise_and_hopeless_ones_do_not(problem: Problem) -> None:
    library = (
        Patch(name="silent", text="1"),
        Patch(name="slower", text="2", expected_time_factor=1.1),
        Patch(name="fast", text="3", expected_time_factor=0.8),
        Patch(name="saver", text="4", expected_time_factor=1.05, expected_memory_gib=-0.1),
        Patch(name="nonsense", text="5", expected_time_factor=float("nan")),
    )
    waiting = untested_patches(fit_beliefs(replace(problem, patches=library), []))
    assert [p.name for p in waiting] == ["fast", "nonsense", "silent", "saver"]


def crowded(problem: Problem, observe: Observe) -> tuple[Problem, list[Observation]]:
    """Two ranks at a large micro-batch are fast and do not fit; memory is known well."""
    tight = replace(problem, memory_limit_gib=0.12)
    oom = observe(outcome=Outcome.DEVICE_OOM, micro_batch=8, ranks=2).model_copy(update={"bound_gib": 0.12})
    seen = [
        observe(1.00, 0.075),
        observe(0.55, 0.080, ranks=2),
        observe(0.90, 0.105, micro_batch=4),
        observe(1.30, 0.060, micro_batch=4, recompute="full"),
        observe(1.02, 0.070, recompute="attention"),
        oom,
    ]
    return tight, seen


def test_what_is_fast_and_does_not_fit_comes_back_with_a_saver(problem: Problem, observe: Observe) -> None:
    tight, seen = crowded(problem, observe)
    pairs = [c for seed in range(3) for c in propose(tight, seen, 6, np.random.default_rng(seed)) if c.source == "pair"]
    assert pairs
    for pair in pairs:
        assert "makes room at the lowest price" in pair.reason
    for belief in predictions(tight, seen, pairs):
        assert belief.probability_fits >= 0.65
        assert belief.step_seconds < 0.60


def test_savers_are_not_spent_where_memory_is_free(problem: Problem, observe: Observe) -> None:
    tight, seen = crowded(problem, observe)
    roomy = [o.model_copy(update={"bound_gib": None}) for o in seen[:-1]]
    free = replace(tight, memory_limit_gib=10.0)
    with_room = [c for seed in range(3) for c in propose(free, roomy, 6, np.random.default_rng(seed))]
    assert not [c for c in with_room if c.source == "pair"]
    assert not [c for c in with_room if c.configuration["recompute"] == "full"]


def test_without_a_limit_there_are_no_pairs(problem: Problem, observe: Observe) -> None:
    found = propose(replace(problem, memory_limit_gib=None), some_trials(observe), 6, rng())
    assert not [c for c in found if c.source == "pair"]
