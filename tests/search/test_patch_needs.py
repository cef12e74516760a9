"""A patch that only acts under some setting is tried under that setting, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.models.problem import Problem
from infrarsi_hpc.search.propose import propose


def test_a_patch_is_only_proposed_where_it_acts(problem: Problem) -> None:
    patch = Patch(name="every-second", text="x", expected_time_factor=0.8, needs=(("recompute", "full"),))
    problem = replace(problem, patches=(patch,))
    baseline = problem.knob_set.baseline()
    seen = [Observation(trial="t1", configuration=baseline, outcome=Outcome.OK, step_seconds=0.1, peak_gib=0.02)]
    tried = []
    for k in range(5):
        found = propose(problem, seen, 4, np.random.default_rng(k))
        tried += [c for c in found if patch.sha256 in c.patches]
        seen += [
            Observation(
                trial=f"{k}-{i}",
                configuration=c.configuration,
                patches=c.patches,
                outcome=Outcome.OK,
                step_seconds=0.1,
                peak_gib=0.02,
            )
            for i, c in enumerate(found)
        ]
    assert tried, "a hopeful patch gets a trial, even if the setting that it needs is slower"
    assert {c.configuration["recompute"] for c in tried} == {"full"}


def test_a_need_that_no_knob_can_meet_is_never_met(problem: Problem) -> None:
    patch = Patch(name="odd", text="x", expected_time_factor=0.5, needs=(("no_such_knob", 1),))
    problem = replace(problem, patches=(patch,))
    assert all(not c.patches for c in propose(problem, [], 6, np.random.default_rng(1)))
