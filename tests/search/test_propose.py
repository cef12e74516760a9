import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infrarsi_hpc.domain.knobs import Knob, KnobSet
from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.models.experience import Campaign, knobs_met, owner_of
from infrarsi_hpc.models.rows import ObservationRefused
from infrarsi_hpc.search.propose import Problem, predictions, propose
from infrarsi_hpc.workloads import BASES

Observe = Callable[..., Observation]
ENDINGS = [Outcome.OK, Outcome.DEVICE_OOM, Outcome.CRASHED, Outcome.REFUSED, Outcome.TIMEOUT, Outcome.HOST_OOM]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def history(problem: Problem, seed: int, num: int) -> list[Observation]:
    """Trials with endings drawn without any sense."""
    draw = rng(seed)
    rows = []
    for i in range(num):
        configuration = {n: k.values[draw.integers(len(k.values))] for n, k in problem.knob_set.knobs.items()}
        outcome = ENDINGS[draw.integers(len(ENDINGS))]
        is_ok = outcome is Outcome.OK
        rows.append(
            Observation(
                trial=f"t{i}",
                configuration=configuration,
                patches=tuple(p.sha256 for p in problem.patches if draw.random() < 0.3),
                outcome=outcome,
                step_seconds=float(draw.uniform(0.1, 1)) if is_ok else None,
                peak_gib=float(draw.uniform(0.05, 0.2)) if is_ok and draw.random() < 0.8 else None,
                bound_gib=0.2 if outcome is Outcome.DEVICE_OOM else None,
            )
        )
    return rows


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1000), num_seen=st.integers(0, 25), num=st.integers(1, 6), with_patches=st.booleans())
def test_proposals_break_no_rule_repeat_nothing_and_are_the_same_for_the_same_seed(
    problem: Problem, patches: tuple[Patch, ...], seed: int, num_seen: int, num: int, with_patches: bool
) -> None:
    pair = frozenset({patches[0].sha256, patches[1].sha256})
    if with_patches:
        problem = replace(problem, patches=patches, conflicts=frozenset({pair}))
    seen = history(problem, seed, num_seen)
    found = propose(problem, seen, num, rng(seed))
    assert len(found) == num
    tried = {(tuple(r.configuration.items()), frozenset(r.patches)) for r in seen}
    keys = [(tuple(c.configuration.items()), frozenset(c.patches)) for c in found]
    assert len(set(keys)) == num
    assert not tried & set(keys)
    for candidate in found:
        assert problem.broken_rules(candidate.configuration) == []
        assert not pair <= set(candidate.patches)
        assert candidate.reason
        assert candidate.source in {"seed", "model", "pair", "patch", "explore"}
    assert propose(problem, seen, num, rng(seed)) == found


def test_a_first_batch_is_diverse_and_has_something_that_surely_fits(problem: Problem) -> None:
    found = propose(problem, [], 4, rng())
    beliefs = predictions(problem, [], found)
    assert max(b.probability_fits for b in beliefs) > 0.9
    for i, one in enumerate(found):
        for other in found[:i]:
            assert sum(one.configuration[k] != other.configuration[k] for k in one.configuration) >= 2
    assert {c.source for c in found} <= {"seed", "pair"}


def test_after_nothing_but_ooms_the_next_batch_is_safer(problem: Problem, observe: Observe) -> None:
    tight = replace(problem, memory_limit_gib=0.06)
    ended = [
        observe(outcome=Outcome.DEVICE_OOM, micro_batch=m, optimizer=o).model_copy(update={"bound_gib": 0.06})
        for m in (1, 2, 4, 8)
        for o in ("foreach", "fused")
    ]
    found = propose(tight, ended, 4, rng())
    before = predictions(tight, [], propose(tight, [], 4, rng()))
    after = predictions(tight, ended, found)
    assert all(b.peak_high_gib is None for b in after)
    assert all(b.peak_gib > b.peak_low_gib > 0 for b in after)
    safest = found[int(np.argmax([b.probability_fits for b in after]))].configuration
    assert safest["recompute"] == "full" or safest["attention"] == "sdpa"
    assert np.mean([b.peak_gib for b in after]) > np.mean([b.peak_low_gib for b in before])


def test_when_every_trial_crashed_other_settings_are_tried(problem: Problem, observe: Observe) -> None:
    crashed = [
        observe(outcome=Outcome.CRASHED, compile="on", micro_batch=m, optimizer=o)
        for m in (1, 2, 4)
        for o in ("fused", "foreach")
    ]
    found = propose(problem, crashed, 4, rng())
    assert all(c.configuration["compile"] == "off" for c in found)


def test_one_trial_is_enough_to_go_on(problem: Problem, observe: Observe) -> None:
    assert len(propose(problem, [observe(0.9, 0.1)], 4, rng())) == 4


def test_knobs_with_one_value_and_a_used_up_space(problem: Problem, observe: Observe) -> None:
    knobs = {
        "micro_batch": Knob(values=(2,), baseline=2, flag="--micro-batch"),
        "attention": Knob(values=("math", "sdpa"), baseline="math", flag="--attention"),
    }
    small = replace(problem, knob_set=KnobSet(knobs=knobs))
    seen = [Observation(trial="t0", configuration=small.knob_set.baseline(), outcome=Outcome.OK, step_seconds=1.0)]
    found = propose(small, seen, 4, rng())
    assert [c.configuration["attention"] for c in found] == ["sdpa"]
    seen.append(seen[0].model_copy(update={"configuration": found[0].configuration}))
    assert propose(small, seen, 4, rng()) == []
    assert propose(problem, [], 0, rng()) == []


def test_contradictory_repeats_do_not_stop_the_search(problem: Problem, observe: Observe) -> None:
    seen = [
        observe(0.9, 0.19, micro_batch=4),
        observe(outcome=Outcome.DEVICE_OOM, micro_batch=4),
        observe(0.3, 0.19, micro_batch=4),
    ]
    found = propose(problem, seen, 4, rng())
    assert len(found) == 4
    fits = predictions(problem, seen, [found[0].model_copy(update={"configuration": seen[0].configuration})])[0]
    assert 0.1 < fits.probability_fits < 0.99


def test_a_workload_without_formulas_is_searched_too(problem: Problem) -> None:
    unknown = replace(problem, basis=BASES["torch"])
    seen = history(unknown, 3, 12)
    assert len(propose(unknown, seen, 4, rng())) == 4


def test_settings_that_were_fastest_elsewhere_are_proposed_first(problem: Problem, observe: Observe) -> None:
    elsewhere = tuple(
        observe(3.0 * t, 0.1, attention=a, optimizer=o, allocator=r)
        for t, a, o, r in [
            (1.0, "math", "foreach", "default"),
            (0.9, "math", "foreach", "retain"),
            (1.3, "math", "fused", "default"),
            (1.6, "sdpa", "foreach", "default"),
            (1.9, "sdpa", "fused", "retain"),
        ]
    )
    owner = owner_of(
        "elsewhere",
        [Campaign(replace(problem, knob_set=knobs_met(elsewhere, problem.knob_set.baseline())), elsewhere)],
        1.0,
    )
    taught = replace(problem, owners=(owner,))
    kernels = [c.configuration["attention"] for c in propose(taught, [observe(1.1, 0.1)], 4, rng())]
    untaught = [c.configuration["attention"] for c in propose(problem, [observe(1.1, 0.1)], 4, rng())]
    # the formulas expect the fused kernel to be faster; experience says that here it is not
    assert kernels.count("math") > untaught.count("math")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.0])
def test_a_time_that_cannot_be_is_refused_with_its_trial(problem: Problem, observe: Observe, value: float) -> None:
    wrong = observe(0.9, 0.1).model_copy(update={"step_seconds": value})
    with pytest.raises(ObservationRefused, match=f"trial {wrong.trial}"):
        propose(problem, [wrong], 4, rng())


def test_four_proposals_after_sixty_trials_take_under_half_a_second_of_one_core(
    problem: Problem, patches: tuple[Patch, ...]
) -> None:
    problem = replace(problem, patches=patches)
    seen = history(problem, 1, 60)
    propose(problem, seen, 4, rng())
    taken = []
    for _ in range(3):
        start = time.thread_time()
        propose(problem, seen, 4, rng())
        taken.append(time.thread_time() - start)
    assert min(taken) < 0.5
