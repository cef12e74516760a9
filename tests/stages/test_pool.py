"""The search over a list of configurations: what it may be given, and that it searches at all."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from infrarsi_hpc.errors import InputRefused
from infrarsi_hpc.stages.pool import PoolSearch

WORKLOAD: dict[str, Any] = {
    "framework": "somewhere",
    "model": {"layers": 24, "hidden": 2048, "heads": 16, "ffn": 8192, "vocab": 50_000},
    "seq_len": 2048,
    "global_batch": 128,
    "gpus": 16,
    "gpus_per_node": 8,
    "gpu": {"name": "A100-SXM4-80GB", "memory_gib": 80, "peak_tflops_bf16": 312},
}
CONFIGS = [
    {"tp": tp, "pp": pp, "micro_batch": mb, "kernel": kernel}
    for tp, pp, mb, kernel in itertools.product((1, 2, 4), (1, 2, 4), (1, 2, 4, 8), ("flash attention", "math"))
]


def seconds(config: dict[str, Any]) -> float:
    """A machine that is not the formulas': communication by tp, bubbles by pp, overhead by micro-batch."""
    slow = 1.4 if config["kernel"] == "math" else 1.0
    return slow * (2 + 0.3 * config["tp"] + 0.2 * (config["pp"] - 1) + 0.8 / config["micro_batch"])


def gib(config: dict[str, Any]) -> float:
    whole = 60 / config["tp"] / config["pp"] + 14 * config["micro_batch"] / config["tp"]
    return whole * (1.3 if config["kernel"] == "math" else 1.0)


def run(search: PoolSearch, configs: list[dict[str, Any]], num: int, batch: int = 4) -> list[int]:
    asked: list[int] = []
    while len(asked) < num and (places := search.ask(min(batch, num - len(asked)))):
        for place in places:
            fits = gib(configs[place]) < 76
            search.tell(
                place, "ok" if fits else "oom", *((seconds(configs[place]), gib(configs[place])) if fits else ())
            )
        asked += places
    return asked


def test_it_finds_the_best_in_a_fraction_of_the_trials_that_chance_needs() -> None:
    best = min(seconds(c) for c in CONFIGS if gib(c) < 76)
    good = [i for i, c in enumerate(CONFIGS) if gib(c) < 76 and seconds(c) <= 1.05 * best]
    asked = run(PoolSearch(CONFIGS, WORKLOAD), CONFIGS, 12)
    first = min(asked.index(i) for i in good if i in asked)
    by_chance = (len(CONFIGS) + 1) / (len(good) + 1)
    assert first + 1 <= by_chance / 2


def test_nothing_is_asked_twice_and_everything_in_the_end() -> None:
    few = CONFIGS[:20]
    asked = run(PoolSearch(few, WORKLOAD), few, 100)
    assert sorted(asked) == list(range(20))


def test_the_same_seed_and_the_same_answers_give_the_same_questions() -> None:
    assert run(PoolSearch(CONFIGS, WORKLOAD, seed=3), CONFIGS, 12) == run(
        PoolSearch(CONFIGS, WORKLOAD, seed=3), CONFIGS, 12
    )


def test_asking_again_before_an_answer_gives_others() -> None:
    search = PoolSearch(CONFIGS, WORKLOAD)
    first, second = search.ask(4), search.ask(4)
    assert not set(first) & set(second)


@pytest.mark.parametrize("outcome", ["oom", "error", "infra"])
def test_when_every_trial_fails_it_goes_on(outcome: str) -> None:
    search = PoolSearch(CONFIGS, WORKLOAD)
    for _ in range(6):
        for place in search.ask(4):
            search.tell(place, outcome)
    assert len(search.ask(4)) == 4


def test_after_ooms_it_asks_for_what_needs_less() -> None:
    search, asked = PoolSearch(CONFIGS, WORKLOAD), []
    for _ in range(3):
        for place in search.ask(4):
            asked.append(place)
            search.tell(place, "oom")
    needs = [gib(CONFIGS[place]) for place in asked]
    assert np.mean(needs[8:]) < np.mean(needs[:4])


def test_contradictory_repeats_of_one_configuration_are_both_kept() -> None:
    search = PoolSearch(CONFIGS, WORKLOAD)
    place = CONFIGS.index({"tp": 2, "pp": 2, "micro_batch": 4, "kernel": "flash attention"})
    search.tell(place, "ok", 3.0, 74.0)
    search.tell(place, "oom")
    assert len(search.ask(4)) == 4
    assert place not in search.ask(8)


def test_one_configuration_and_one_trial_are_enough() -> None:
    search = PoolSearch([{"tp": 1}], WORKLOAD)
    assert search.ask(4) == [0]
    search.tell(0, "ok", 1.0)
    assert search.ask(4) == []


def test_a_knob_with_one_value_and_one_that_nobody_knows_are_searched() -> None:
    configs = [{**c, "seed_layers": 7, "fabric": w} for c in CONFIGS[:24] for w in ("ring", "tree")]
    assert len(run(PoolSearch(configs, WORKLOAD), configs, 12)) == 12


def test_a_workload_without_formulas_is_searched_too() -> None:
    configs = [{"threads": t, "mode": m} for t in (1, 2, 4, 8) for m in ("a", "b")]
    search = PoolSearch(configs, {"memory_gib": 4.0})
    told: list[int] = []
    while places := search.ask(2):
        for place in places:
            told.append(place)
            search.tell(place, "ok", 8 / configs[place]["threads"] + (configs[place]["mode"] == "a"))
    assert sorted(told) == list(range(8))
    assert told.index(configs.index({"threads": 8, "mode": "b"})) < 6


def test_what_breaks_a_rule_comes_last() -> None:
    configs = [*CONFIGS, {"tp": 3, "pp": 1, "micro_batch": 1, "kernel": "math"}]
    asked = run(PoolSearch(configs, WORKLOAD), configs, len(configs))
    assert asked[-1] == len(configs) - 1


def test_words_that_the_models_may_not_keep_are_told_apart() -> None:
    configs = [{"kernel": "flash attention 2 + RMS kernel", "tp": 1}, {"kernel": "math", "tp": 1}]
    assert sorted(PoolSearch(configs, WORKLOAD).ask(2)) == [0, 1]


BAD_CONFIGS = {
    "none": [],
    "other knobs": [{"tp": 1}, {"pp": 1}],
    "not a number": [{"tp": math.nan}],
    "infinite": [{"tp": math.inf}],
    "a list": [{"tp": [1]}],
    "nothing": [{"tp": None}],
    "empty word": [{"kernel": " "}],
    "a name that is none": [{"Tensor Parallel": 1}],
}


@pytest.mark.parametrize("configs", BAD_CONFIGS.values(), ids=BAD_CONFIGS)
def test_configurations_that_cannot_be_are_refused(configs: list[dict[str, Any]]) -> None:
    with pytest.raises(InputRefused):
        PoolSearch(configs, WORKLOAD)


@pytest.mark.parametrize(
    "change",
    [
        {"gpus": 0},
        {"gpus": -8},
        {"seq_len": "long"},
        {"gpu": {"memory_gib": math.nan, "peak_tflops_bf16": 1}},
        {"gpu": {}},
    ],
    ids=str,
)
def test_workloads_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputRefused, match="workload"):
        PoolSearch(CONFIGS, {**WORKLOAD, **change})


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_numbers_that_cannot_be_are_refused_and_change_nothing(value: float) -> None:
    search = PoolSearch(CONFIGS, WORKLOAD, seed=1)
    place = search.ask(1)[0]
    for told in ({"step_seconds": value}, {"step_seconds": 1.0, "peak_gib": value}):
        with pytest.raises(InputRefused, match="finite number above zero"):
            search.tell(place, "ok", **told)
    with pytest.raises(InputRefused, match="no outcome"):
        search.tell(place, "exploded")
    with pytest.raises(InputRefused, match="no configuration"):
        search.tell(len(CONFIGS), "ok", 1.0)
    search.tell(place, "ok", 1.0)
    assert len(search.ask(4)) == 4
