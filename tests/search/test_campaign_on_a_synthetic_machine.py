"""Whole campaigns on a machine that is not made of our formulas: maxima, cliffs, interactions, quirks and noise."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import numpy as np

from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.knobs import Configuration
from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.models.problem import Problem
from infrarsi_hpc.search.finalists import finalists
from infrarsi_hpc.search.propose import propose
from infrarsi_hpc.search.space import Space

NUM_TRIALS = 24
LIBRARY = {
    Patch(name="fused-loss", text="a", expected_time_factor=0.93, expected_memory_gib=-0.05): 0.94,
    Patch(name="no-casts", text="b", expected_time_factor=0.97): 0.96,
    Patch(name="mask-cache", text="c", expected_time_factor=0.95, expected_memory_gib=0.05): 0.92,
    Patch(name="slower", text="d", expected_time_factor=0.9): 1.08,
    Patch(name="cheat", text="e", expected_time_factor=0.5): 0.5,
}
FACTOR = {patch.sha256: factor for patch, factor in LIBRARY.items()}
NAME = {patch.sha256: patch.name for patch in LIBRARY}


class Machine:
    """One drawn machine. Nothing here shares code or form with `workloads`."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.seed = seed
        self.compute = draw.uniform(0.3, 1.1)
        self.cache = draw.uniform(0.006, 0.02)
        self.thread_gain, self.rank_gain = draw.uniform(1.2, 1.9), draw.uniform(1.3, 1.95)
        self.bf16, self.sdpa, self.compiled = draw.uniform(0.8, 1.8), draw.uniform(0.6, 1.1), draw.uniform(0.8, 1.02)
        self.fault = draw.uniform(0.002, 0.016)
        self.optimizer = {
            "loop": draw.uniform(0.01, 0.03),
            "foreach": draw.uniform(0.01, 0.02),
            "fused": draw.uniform(0.002, 0.006),
        }
        self.activations, self.scores = draw.uniform(0.7, 1.4), draw.uniform(0.6, 1.5)

    def quirk(self, values: object, size: float) -> float:
        """A factor that belongs to these values alone and follows no law."""
        digest = hashlib.sha256(f"{values} {self.seed}".encode()).hexdigest()
        return 1 + size * (2 * int(digest[:8], 16) / 2**32 - 1)

    def peak_gib(self, c: Configuration, patches: tuple[str, ...] = ()) -> float:
        names = {NAME[p] for p in patches}
        batch = float(c["micro_batch"])
        activations = batch * 0.0098 * self.activations * {"none": 1, "attention": 1, "full": 0.4}[str(c["recompute"])]
        activations *= 0.65 if c["precision"] == "bf16" else 1
        scores = batch * 0.0054 * self.scores * (0.45 if c["recompute"] != "none" else 1)
        scores *= 0.08 if c["attention"] == "sdpa" else 1
        dynamic = activations + scores + batch * 0.002 * (0.4 if "fused-loss" in names else 1)
        dynamic *= (1.2 if "mask-cache" in names else 1) * (1.25 if c["allocator"] == "retain" else 1)
        static = (
            0.033 + 0.007 * (c["optimizer"] == "foreach") + 0.004 * (c["ranks"] == 2) + 0.056 * (c["compile"] == "on")
        )
        return (static + dynamic) * self.quirk((batch, c["recompute"], c["attention"]), 0.06)

    def seconds(self, c: Configuration, patches: tuple[str, ...] = ()) -> float:
        batch, ranks = float(c["micro_batch"]), int(c["ranks"])
        speed = (self.rank_gain if ranks == 2 else 1) * (self.thread_gain if c["threads"] == 2 else 1)
        products = self.compute / speed / (self.bf16 if c["precision"] == "bf16" else 1)
        attention = 0.6 * self.compute / (self.rank_gain if ranks == 2 else 1)
        if c["attention"] == "sdpa":
            attention *= self.sdpa * (0.7 if c["precision"] == "bf16" else 1)
        again = {"none": 0.0, "attention": attention / 3, "full": (attention + products) / 3}[str(c["recompute"])]
        overflows = batch * 0.002 > self.cache
        passes = 16 / (batch * ranks)
        overhead = passes * (0.0024 if c["compile"] == "on" else 0.004)
        busy = (products + attention + again) * (1.25 if overflows else 1)
        busy *= self.compiled if c["compile"] == "on" else 1
        syncs = (passes if c["gradient_sync"] == "every" else 1) if ranks == 2 else 0
        rest = syncs * (0.0064 if c["bucket_mib"] == 1 else 0.0046) + self.optimizer[str(c["optimizer"])]
        rest += 0 if c["allocator"] == "retain" else passes * self.fault
        rest += {0: 0.006, 1: 0.002, 2: 0.004}[int(c["data_workers"])]
        total = max(busy, 2 * overhead) + overhead + rest
        for patch in patches:
            # the cached mask is of the materialised kernel: nothing to gain with the fused one
            total *= 0.99 if NAME[patch] == "mask-cache" and c["attention"] == "sdpa" else FACTOR[patch]
        return total * self.quirk(sorted(c.items()), 0.01)

    def run(self, candidate: Candidate, name: str, limit: float, noise: np.random.Generator) -> Observation:
        c, patches = candidate.configuration, candidate.patches
        peak = self.peak_gib(c, patches)
        seconds = self.seconds(c, patches) * math.exp(0.03 * noise.standard_normal())
        outcome = Outcome.OK
        if peak > limit:
            outcome = Outcome.DEVICE_OOM
        elif any(NAME[p] == "cheat" for p in patches):
            outcome = Outcome.REFUSED
        is_ok = outcome is Outcome.OK
        return Observation(
            trial=name,
            configuration=c,
            patches=patches,
            outcome=outcome,
            step_seconds=seconds if is_ok else None,
            step_noise=0.01 if is_ok else None,
            peak_gib=peak if is_ok else None,
            bound_gib=limit if outcome is Outcome.DEVICE_OOM else None,
            source=candidate.source,
        )


def with_a_third_out_of_memory(machine: Machine, problem: Problem) -> tuple[Problem, list[Configuration]]:
    """A limit that 35% of a sample exceed and the baseline does not; the sample, for random search."""
    space = Space(problem)
    rows = space.rows(6000, np.random.default_rng(machine.seed))
    configurations = [space.configuration(row) for row in rows]
    limit = float(np.quantile([machine.peak_gib(c) for c in configurations], 0.65))
    limit = max(limit, machine.peak_gib(problem.knob_set.baseline()) * 1.04)
    return replace(problem, memory_limit_gib=limit), configurations


def campaign(machine: Machine, problem: Problem, seed: int) -> list[Observation]:
    limit = problem.memory_limit_gib or 0.0
    noise, choice = np.random.default_rng(seed + 1000), np.random.default_rng(seed)
    seen = [machine.run(Candidate(configuration=problem.knob_set.baseline()), "baseline", limit, noise)]
    while len(seen) <= NUM_TRIALS:
        for candidate in propose(problem, seen, 4, choice):
            seen.append(machine.run(candidate, f"t{len(seen)}", limit, noise))
    return seen


def best_true(machine: Machine, seen: list[Observation]) -> float:
    return min(machine.seconds(o.configuration, o.patches) for o in seen if o.outcome is Outcome.OK)


def test_the_search_beats_random_search_clearly_and_wastes_little(problem: Problem) -> None:
    ours, early, naive, finals, wasted, wasted_at_random = [], [], [], [], [], []
    for seed in range(5):
        machine = Machine(seed)
        limited, sample = with_a_third_out_of_memory(machine, problem)
        limit = limited.memory_limit_gib or 0.0
        optimum = min(machine.seconds(c) for c in sample if machine.peak_gib(c) <= limit)
        seen = campaign(machine, limited, seed)
        ours.append(best_true(machine, seen) / optimum)
        early.append(best_true(machine, seen[:13]) / optimum)
        wasted.append(np.mean([o.outcome is Outcome.DEVICE_OOM for o in seen[1:]]))
        first = finalists(limited, seen, 1)[0]
        finals.append(machine.seconds(first.configuration) / optimum)
        # random search, the mean of thirty runs of the same length
        draw = np.random.default_rng(seed)
        runs = [[sample[i] for i in draw.choice(len(sample), NUM_TRIALS)] for _ in range(30)]
        fitting = [[c for c in run if machine.peak_gib(c) <= limit] for run in runs]
        naive.append(np.mean([min(map(machine.seconds, run)) / optimum for run in fitting]))
        wasted_at_random.append(1 - np.mean([len(run) / NUM_TRIALS for run in fitting]))
    assert np.mean(ours) < 1.04
    assert max(ours) < 1.12
    assert np.mean(early) < 1.10
    assert np.mean(finals) < 1.05
    assert np.mean(naive) > 1.15
    assert np.mean(wasted) < 0.12
    assert np.mean(wasted_at_random) > 0.25


def test_the_search_finds_the_good_patches_and_gives_the_cheat_one_trial(problem: Problem) -> None:
    gains = []
    for seed in range(2):
        machine = Machine(seed)
        limited, _ = with_a_third_out_of_memory(machine, problem)
        seen = campaign(machine, replace(limited, patches=tuple(LIBRARY)), seed)
        refused = [o for o in seen if o.outcome is Outcome.REFUSED]
        assert [[NAME[p] for p in o.patches] for o in refused] == [["cheat"]]
        first = finalists(replace(limited, patches=tuple(LIBRARY)), seen, 1)[0]
        names = {NAME[p] for p in first.patches}
        assert "slower" not in names
        assert {"fused-loss", "no-casts"} & names
        gains.append(best_true(machine, campaign(machine, limited, seed)) / best_true(machine, seen))
    assert np.mean(gains) > 1.02
