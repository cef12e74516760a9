import math
from dataclasses import replace

import numpy as np
import pytest

from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.knobs import Configuration
from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.models.beliefs import fit_beliefs
from infrarsi_hpc.models.experience import Campaign, knobs_met, owner_of
from infrarsi_hpc.models.prices import Price, prices
from infrarsi_hpc.models.problem import Problem


def seconds(c: Configuration, patches: tuple[str, ...], problem: Problem) -> float:
    """A machine of its own: no formula of the basis, and the kernel helps twice as much at two ranks."""
    micro_batch, ranks = float(c["micro_batch"]), float(c["ranks"])
    step = 0.5 / ranks**0.8 + 0.02 * 16 / (micro_batch * ranks)
    step *= {"math": 1.0, "sdpa": 0.8}[str(c["attention"])] * {"exact": 1.0, "tanh": 0.97}[str(c["gelu"])]
    step *= {"none": 1.0, "attention": 1.1, "full": 1.3}[str(c["recompute"])]
    return step * (0.85 if problem.patches[0].sha256 in patches else 1.0)


def peak(c: Configuration, patches: tuple[str, ...], problem: Problem) -> float:
    share = {"none": 1.0, "attention": 0.75, "full": 0.35}[str(c["recompute"])]
    share *= 0.7 if problem.patches[0].sha256 in patches else 1.0
    return 0.05 + 0.016 * float(c["micro_batch"]) * share


def measure(
    problem: Problem, changes: dict[str, object], patches: tuple[str, ...] = (), noise: float = 0.0
) -> Observation:
    configuration = {**problem.knob_set.baseline(), **changes}
    return Observation(
        trial="t",
        configuration=configuration,
        patches=patches,
        outcome=Outcome.OK,
        step_seconds=seconds(configuration, patches, problem) * math.exp(noise),
        step_noise=0.01,
        peak_gib=peak(configuration, patches, problem),
    )


def measured(problem: Problem) -> list[Observation]:
    loss = problem.patches[0].sha256
    rng = np.random.default_rng(0)
    trials: list[tuple[dict[str, object], tuple[str, ...]]] = [
        ({}, ()),
        ({"micro_batch": 4}, ()),
        ({"ranks": 2}, ()),
        ({"attention": "sdpa"}, ()),
        ({"recompute": "full", "micro_batch": 8}, ()),
        ({"attention": "sdpa", "ranks": 2}, (loss,)),
        ({"attention": "sdpa", "micro_batch": 4}, (loss,)),
        ({"recompute": "attention"}, ()),
    ]
    return [measure(problem, c, p, 0.01 * rng.standard_normal()) for c, p in trials]


def price(table: list[Price], name: str, setting: str | None = None) -> Price:
    return next(p for p in table if p.name == name and (setting is None or p.setting == setting))


def test_prices_put_the_belief_beside_the_measurement(problem: Problem) -> None:
    table = prices(problem, measured(problem))
    sdpa = price(table, "attention", "sdpa")
    assert sdpa.time_factor.low < 0.8 < sdpa.time_factor.high
    assert abs(sdpa.time_factor.value - 0.8) < abs(sdpa.believed_time_factor.value - 0.8)
    assert math.log(sdpa.time_factor.high / sdpa.time_factor.low) < math.log(
        sdpa.believed_time_factor.high / sdpa.believed_time_factor.low
    )
    assert sdpa.num_trials == 3
    assert sdpa.instead_of == "math"
    full = price(table, "recompute", "full")
    truth = 2 * 0.016 * (0.35 - 1.0)
    assert full.memory_gib.low < truth < full.memory_gib.high < 0
    never = price(table, "gelu", "tanh")
    assert not never.is_measured
    assert never.time_factor.low < 1 < never.time_factor.high


def test_a_patch_has_a_price_and_its_authors_belief_beside_it(problem: Problem) -> None:
    table = prices(problem, measured(problem))
    loss, tidy = price(table, "fused-loss"), price(table, "tidy")
    assert loss.believed_time_factor.value == pytest.approx(0.9, abs=0.01)
    assert loss.believed_memory_gib.value == pytest.approx(-0.03, abs=0.005)
    assert loss.time_factor.low < 0.85 < loss.time_factor.high
    assert loss.num_trials == 2
    assert (tidy.num_trials, tidy.believed_time_factor.value) == (0, pytest.approx(1.0))


def test_prices_are_of_steps_away_from_the_incumbent(problem: Problem) -> None:
    loss = problem.patches[0].sha256
    here = Candidate(configuration={**problem.knob_set.baseline(), "attention": "sdpa"}, patches=(loss,))
    table = prices(problem, measured(problem), here)
    assert price(table, "attention").setting == "math"
    removal = price(table, "fused-loss")
    assert removal.is_removal
    assert removal.time_factor.value > 1
    conflicting = replace(problem, conflicts=frozenset({frozenset({loss, problem.patches[1].sha256})}))
    assert not [p for p in prices(conflicting, measured(problem), here) if p.name == "tidy"]


def test_without_trials_measured_and_believed_are_the_same(problem: Problem) -> None:
    for entry in prices(problem, []):
        assert entry.time_factor == entry.believed_time_factor
        assert entry.memory_gib == entry.believed_memory_gib


def test_experience_in_other_words_is_left_out(problem: Problem) -> None:
    good = measure(problem, {})
    rows = {
        "same words": good,
        "a missing knob": good.model_copy(update={"configuration": {"micro_batch": 2}}),
        "a larger number": good.model_copy(update={"configuration": {**good.configuration, "micro_batch": 16}}),
        "a knob from elsewhere": good.model_copy(update={"configuration": {**good.configuration, "zero": 3}}),
        "an unknown word": good.model_copy(update={"configuration": {**good.configuration, "attention": "flash9"}}),
        "a word for a number": good.model_copy(update={"configuration": {**good.configuration, "micro_batch": "auto"}}),
        "an unknown patch": good.model_copy(update={"patches": ("f" * 64,)}),
        "what breaks a rule": good.model_copy(update={"configuration": {**good.configuration, "micro_batch": 3}}),
    }
    told = replace(problem, knob_set=knobs_met(list(rows.values())))
    kept = {
        name: owner_of("elsewhere", [Campaign(told, (good, row))], 1.0).num_trials == 2 for name, row in rows.items()
    }
    assert [name for name, is_kept in kept.items() if not is_kept] == ["a word for a number", "what breaks a rule"]


def test_experience_from_a_slower_machine_teaches_ratios_after_one_trial_here(problem: Problem) -> None:
    slower = tuple(
        row.model_copy(update={"step_seconds": 3 * (row.step_seconds or 0)})
        for row in [measure(problem, c) for c in ({}, {"attention": "sdpa"}, {"ranks": 2}, {"micro_batch": 8})] * 2
    )
    owner = owner_of(
        "slower", [Campaign(replace(problem, knob_set=knobs_met(slower, problem.knob_set.baseline())), slower)], 1.0
    )
    taught = fit_beliefs(replace(problem, owners=(owner,)), [measure(problem, {})])
    alone = fit_beliefs(problem, [measure(problem, {})])
    configuration = {**problem.knob_set.baseline(), "ranks": 2, "attention": "sdpa"}
    truth = math.log(seconds(configuration, (), problem))
    point = [Candidate(configuration=configuration)]
    errors = [abs(b.log_seconds(b.points_of(point))[0][0] - truth) for b in (taught, alone)]
    assert errors[0] < 0.12
    assert errors[0] < errors[1]
    # taking the other machine's times as they are would be off by a factor of three
    assert taught.log_seconds(taught.points_of(point))[1][0] < alone.log_seconds(alone.points_of(point))[1][0]


def test_an_own_trial_with_a_patch_outside_the_problem_is_learned_from(problem: Problem) -> None:
    beliefs = fit_beliefs(problem, [measure(problem, {}), measure(problem, {}, ("e" * 64,))])
    assert beliefs.design.patch_ids[-1] == "e" * 64
    assert len(beliefs.measured) == 2


def test_everything_failed_leaves_the_prior_of_time_and_memory(problem: Problem) -> None:
    crashed = measure(problem, {"attention": "sdpa"}).model_copy(
        update={"outcome": Outcome.CRASHED, "step_seconds": None, "peak_gib": None}
    )
    beliefs, prior = fit_beliefs(problem, [crashed] * 3), fit_beliefs(problem, [])
    points = [Candidate(configuration=crashed.configuration)]
    assert beliefs.log_seconds(beliefs.points_of(points)) == prior.log_seconds(prior.points_of(points))
    assert beliefs.probability_valid(beliefs.points_of(points))[0] < 0.4
    baseline = [Candidate(configuration=problem.knob_set.baseline())]
    assert beliefs.probability_valid(beliefs.points_of(baseline))[0] == 1.0
