from collections.abc import Callable
from dataclasses import replace

import numpy as np

from infrarsi_hpc.domain.knobs import KnobSet
from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.models.problem import Problem
from infrarsi_hpc.search.convergence import converged
from infrarsi_hpc.search.finalists import finalists

Observe = Callable[..., Observation]


def test_finalists_are_the_fastest_believed_ones_each_once_and_never_the_baseline(
    problem: Problem, observe: Observe
) -> None:
    seen = [
        observe(1.0, 0.1),
        observe(0.7, 0.1, attention="sdpa"),
        observe(0.71, 0.1, attention="sdpa"),
        observe(0.6, 0.1, attention="sdpa", optimizer="fused"),
        observe(0.4, 0.1, outcome=Outcome.OK, ranks=2).model_copy(update={"is_believed": False}),
        observe(outcome=Outcome.DEVICE_OOM, micro_batch=8),
        observe(1.2, 0.1, recompute="full"),
    ]
    found = finalists(problem, seen, 5)
    assert [(c.configuration["attention"], c.configuration["optimizer"]) for c in found] == [
        ("sdpa", "fused"),
        ("sdpa", "foreach"),
    ]
    assert finalists(problem, seen, 1) == found[:1]
    assert finalists(problem, [], 3) == []


def test_when_nothing_beat_the_baseline_there_is_no_finalist(problem: Problem, observe: Observe) -> None:
    assert finalists(problem, [observe(0.5, 0.1), observe(1.2, 0.1, recompute="full")], 3) == []


def test_a_lucky_reading_does_not_outrank_what_was_confirmed(problem: Problem, observe: Observe) -> None:
    noisy = replace(problem, run_noise=0.08)
    seen = [observe(1.0, 0.1), observe(1.02, 0.1), observe(0.98, 0.1)]
    seen += [observe(t, 0.1, attention="sdpa") for t in (0.80, 0.81, 0.79, 0.80)]
    # data workers do next to nothing by the formulas: this reading is a lucky one
    seen += [observe(0.785, 0.1, data_workers=2), observe(1.01, 0.1, data_workers=1)]
    naive = min(seen, key=lambda row: row.step_seconds or 9.0)
    assert naive.configuration["data_workers"] == 2
    assert finalists(noisy, seen, 1)[0].configuration["attention"] == "sdpa"


def test_a_search_with_something_to_gain_goes_on(
    problem: Problem, patches: tuple[Patch, ...], observe: Observe
) -> None:
    assert converged(problem, []) is None
    assert converged(problem, [observe(1.0, 0.1)]) is None
    assert converged(replace(problem, patches=patches), [observe(1.0, 0.1)] * 12) is None


def small(problem: Problem) -> Problem:
    keep = ("attention", "optimizer", "data_workers")
    return replace(problem, knob_set=KnobSet(knobs={n: problem.knob_set[n] for n in keep}), run_noise=0.001)


def every_trial(problem: Problem, num: int) -> list[Observation]:
    rows = []
    for attention in ("sdpa", "math"):
        for optimizer in ("fused", "foreach", "loop"):
            for workers in (0, 1, 2):
                step = {"sdpa": 0.5, "math": 1.0}[attention] * {"fused": 1.0, "foreach": 1.3, "loop": 1.6}[optimizer]
                configuration = {"attention": attention, "optimizer": optimizer, "data_workers": workers}
                rows.append((step, configuration))
    return [
        Observation(trial=f"t{i}", configuration=c, outcome=Outcome.OK, step_seconds=s, step_noise=0.001, peak_gib=0.05)
        for i, (s, c) in enumerate(rows[:num])
    ]


def test_a_search_ends_when_nothing_promises_more_or_nothing_is_left(problem: Problem) -> None:
    few = small(problem)
    assert converged(few, every_trial(few, 18)) == "every allowed candidate was tried"
    reason = converged(few, every_trial(few, 16))
    assert reason is not None
    assert "for two rounds" in reason
    assert np.isfinite(float(reason.split("promises ")[1].split("%")[0]))
