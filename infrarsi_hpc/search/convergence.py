"""When another round is not worth its trials."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.models.beliefs import fit_beliefs
from infrarsi_hpc.models.problem import Problem
from infrarsi_hpc.search.acquisition import LEAST_CHANCE, score
from infrarsi_hpc.search.patches import untested_patches
from infrarsi_hpc.search.pool import build_pool, incumbent_of, measured_by_speed
from infrarsi_hpc.search.space import Space

#: Best expected gain of one more trial, in log step time, below which it counts as nothing.
NEGLIGIBLE = 0.003
#: Fewer measured trials than this never converge.
_FEWEST = 8


def converged(problem: Problem, observations: Sequence[Observation], round_size: int = 4) -> str | None:
    """Why the search may stop, in plain words; none while it should go on.

    Two rounds in a row (now, and before the last `round_size` observations) no candidate may promise more than
    `NEGLIGIBLE`, and every patch that is believed to help must have had a trial.
    """
    now = expected_gain(problem, observations)
    if now is None:
        return "every allowed candidate was tried"
    if len(fit_beliefs(problem, observations).measured) < _FEWEST or now >= NEGLIGIBLE:
        return None
    before = expected_gain(problem, observations[: len(observations) - round_size])
    if before is None or before >= NEGLIGIBLE:
        return None
    return f"the best untried candidate promises {now:.2%} less step time, below {NEGLIGIBLE:.2%} for two rounds"


def expected_gain(problem: Problem, observations: Sequence[Observation]) -> float | None:
    """Best expected improvement in log step time of one more trial, chances counted; none if nothing is left.

    Infinite while nothing was measured or a hopeful patch waits for its first trial.
    """
    beliefs = fit_beliefs(problem, observations)
    incumbent = incumbent_of(beliefs)
    # the same draw of candidates every time, so that two rounds are compared on the same ground
    pool = build_pool(beliefs, Space(problem), incumbent, np.random.Generator(np.random.PCG64(11)))
    if not len(pool):
        return None
    places, speeds = measured_by_speed(beliefs)
    if not places or untested_patches(beliefs):
        return float("inf")
    scores = score(beliefs, pool.points(), float(speeds[0]))
    hopeful = scores.worth[scores.chance >= LEAST_CHANCE]
    return float(hopeful.max()) if hopeful.size else 0.0
