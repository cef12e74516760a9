"""How much a candidate is worth: expected improvement in log time, times the chance that it fits and runs, less cost.

One candidate: closed form (Jones et al., 1998). A batch: greedily, over joint draws of step time (correlated between
candidates) and of memory, so that a second candidate counts only for what the first does not already promise
(Ginsbourger et al., 2010; noisy form of Letham et al., 1706.07094).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infrarsi_hpc.models.basis import BoolArray, FloatArray, IntArray
from infrarsi_hpc.models.beliefs import Beliefs
from infrarsi_hpc.models.design import Points
from infrarsi_hpc.models.posterior import NUM_DRAWS

#: What a trial as long as the best one so far costs, in log step time: gains below it are not worth a trial.
TRIAL_COST = 0.0005
#: Below this chance of fitting and running, a candidate is proposed only when nothing better is left.
LEAST_CHANCE = 0.25
#: Candidates that the joint draws look at, and measured ones that they are compared with.
_SHORTLIST = 200
_MOST_COMPARED = 12


@dataclass(frozen=True)
class Scores:
    """What is believed of each point, (n,) each: log seconds (mean, sd), chances, and worth."""

    mean: FloatArray
    sd: FloatArray
    fits: FloatArray
    valid: FloatArray
    worth: FloatArray

    @property
    def chance(self) -> FloatArray:
        """Chance of fitting and running."""
        return self.fits * self.valid

    def take(self, index: IntArray) -> Scores:
        """Some of the points."""
        return Scores(self.mean[index], self.sd[index], self.fits[index], self.valid[index], self.worth[index])


def score(beliefs: Beliefs, points: Points, best: float | None) -> Scores:
    """Expected improvement over `best` (log seconds; none: over the middle of these points), times chances."""
    from scipy.special import ndtr

    mean, sd = beliefs.log_seconds(points)
    fits, valid = beliefs.probability_fits(points), beliefs.probability_valid(points)
    goal = float(np.median(mean)) if best is None else best
    z = (goal - mean) / np.maximum(sd, 1e-9)
    improvement = (goal - mean) * ndtr(z) + sd * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    worth = improvement * fits * valid - TRIAL_COST * np.exp(np.clip(mean - goal, -5, 5))
    return Scores(mean, sd, fits, valid, worth)


def choose(
    beliefs: Beliefs,
    points: Points,
    scores: Scores,
    measured: Points,
    num: int,
    rng: np.random.Generator,
    taken: Points,
    apart: int = 1,
) -> list[int]:
    """Places of a batch of `num` points.

    Parameters
    ----------
    measured
        The best measured points, against which improvement counts (may be empty).
    taken
        Points that the batch holds already (may be empty).
    apart
        Settings and patches in which two points of the batch differ at least, as long as enough points do.
    """
    if num < 1 or not len(points):
        return []
    chance = scores.chance
    places = np.argsort(-np.where(chance >= LEAST_CHANCE, scores.worth, -1e3 + chance), kind="stable")[:_SHORTLIST]
    short = points.take(places)
    compared = measured.take(np.arange(min(len(measured), _MOST_COMPARED)))
    together = _joined([short, compared, taken])
    logs = beliefs.time.drawn(beliefs.time_view(together), rng.standard_normal((NUM_DRAWS, len(together))))
    chances = _drawn_chance(beliefs, together)
    n, m = len(short), len(compared)
    goal = logs[:, n : n + m].min(axis=1) if m else np.median(logs[:, :n], axis=1)
    for j in range(n + m, len(together)):
        goal = goal - chances[:, j] * np.maximum(goal - logs[:, j], 0.0)
    cost = TRIAL_COST * np.exp(np.clip(scores.mean[places] - float(goal.mean()), -5, 5))
    chosen: list[int] = []
    is_open: BoolArray = chance[places] >= LEAST_CHANCE
    for i in range(len(taken)):
        is_open = is_open & (_num_differences(short, taken, i) >= apart)
    for _ in range(min(num, n)):
        gains = (np.maximum(goal[:, None] - logs[:, :n], 0.0) * chances[:, :n]).mean(axis=0)
        value = np.where(is_open, gains - cost, -1e3 + chance[places])
        value[chosen] = -np.inf
        j = int(np.argmax(value))
        chosen.append(j)
        is_open = is_open & (_num_differences(short, short, j) >= apart)
        goal = goal - chances[:, j] * np.maximum(goal - logs[:, j], 0.0)
    return [int(places[j]) for j in chosen]


def _drawn_chance(beliefs: Beliefs, points: Points) -> FloatArray:
    """Chance of fitting and running under each memory draw, (NUM_DRAWS, n)."""
    limit = beliefs.problem.memory_limit_gib
    valid = beliefs.probability_valid(points)
    if limit is None:
        return np.broadcast_to(valid, (NUM_DRAWS, len(points)))
    matrices = beliefs.design.memory(points)
    fits = beliefs.memory.drawn_fits(matrices.components, limit, matrices.factors)
    drawn: FloatArray = fits * valid
    return drawn


def _num_differences(points: Points, others: Points, place: int) -> IntArray:
    """In how many settings and patches each point differs from one of the others, (n,)."""
    settings = sum(
        (column != others.settings[name][place]).astype(np.int64) for name, column in points.settings.items()
    )
    different: IntArray = settings + (points.patches != others.patches[place]).sum(axis=1)
    return different


def _joined(blocks: list[Points]) -> Points:
    settings = {name: np.concatenate([b.settings[name] for b in blocks]) for name in blocks[0].settings}
    return Points(settings, np.vstack([b.patches for b in blocks]))
