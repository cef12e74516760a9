"""Which measured candidates go to re-verification against the baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence

from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.models.beliefs import fit_beliefs
from infrarsi_hpc.models.problem import Problem
from infrarsi_hpc.search.pool import measured_by_speed


def finalists(problem: Problem, observations: Sequence[Observation], num: int) -> list[Candidate]:
    """The best finished and believed candidates by shrunk estimate, fastest first, each once.

    The shrunk estimate is the models' posterior at a measured point: a lucky trial is pulled towards what its
    settings and neighbours say (the winner's curse), so the order can differ from that of the readings. Candidates
    that are believed no faster than a measured baseline are left out, and so is the baseline.
    """
    beliefs = fit_beliefs(problem, observations)
    places, speeds = measured_by_speed(beliefs)
    baseline = Candidate(configuration=problem.knob_set.baseline()).id
    found: dict[str, Candidate] = {}
    for i, speed in zip(places, speeds, strict=True):
        row = beliefs.observations[i]
        candidate = Candidate(
            configuration={**problem.knob_set.baseline(), **row.configuration},
            patches=row.patches,
            source=row.source or "search",
            reason=f"measured {row.step_seconds:.4g} s a step, believed {math.exp(float(speed)):.4g} s",
        )
        if candidate.id == baseline or len(found) == num:
            break
        found.setdefault(candidate.id, candidate)
    return list(found.values())
