"""The next batch of candidates: seeds first, then patches on the best so far, then what the models expect most of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.models.basis import IntArray
from infrarsi_hpc.models.beliefs import fit_beliefs
from infrarsi_hpc.models.design import expected_factor
from infrarsi_hpc.models.problem import Problem
from infrarsi_hpc.search.acquisition import Scores, choose, score
from infrarsi_hpc.search.pairing import add_pairs
from infrarsi_hpc.search.patches import untested_patches
from infrarsi_hpc.search.pool import Pool, build_pool, incumbent_of, measured_by_speed
from infrarsi_hpc.search.space import Space

__all__ = ["Prediction", "Problem", "predictions", "propose"]

#: Half width of a 90% interval in standard deviations.
_HALF_90 = 1.6448536269514722
#: As long as nothing was measured, one candidate of a batch fits with this chance.
_SAFE = 0.95
#: Settings in which two candidates of a first batch differ at least.
_APART_AT_FIRST = 2
#: A patch is tried on a candidate that fits with this chance, if there is one.
_ROOM_FOR_A_PATCH = 0.6


@dataclass(frozen=True)
class Prediction:
    """What is believed of one candidate: step time and peak memory with 90% intervals, and chances.

    `peak_high_gib` is none where every trial so far ran out of memory.
    """

    step_seconds: float
    step_low_seconds: float
    step_high_seconds: float
    peak_gib: float
    peak_low_gib: float
    peak_high_gib: float | None
    probability_fits: float
    probability_valid: float


def propose(
    problem: Problem,
    observations: Sequence[Observation],
    num: int,
    rng: np.random.Generator,
    space: Space | None = None,
) -> list[Candidate]:
    """Choose up to `num` candidates, none of which was tried before; fewer when the space is used up.

    `space` is the problem's, for callers that keep it. The same problem, observations and generator state give the same
    candidates.

    Raises
    ------
    ObservationRefused
        A measured time or peak is not a finite number above zero.
    """
    if num < 1:
        return []
    beliefs = fit_beliefs(problem, observations)
    space = space or Space(problem)
    incumbent = incumbent_of(beliefs)
    pool = build_pool(beliefs, space, incumbent, rng)
    places, speeds = measured_by_speed(beliefs)
    best = float(speeds[0]) if places else None
    is_first = all(not _is_searched(problem, row) for row in observations)

    waiting = untested_patches(beliefs)
    num_alone = min(len(waiting), num // 4 if is_first else (num + 1) // 2)
    alone = [place for patch in waiting[: num_alone + 2] for place in _on_its_own(pool, incumbent, patch)][:num_alone]
    reasons = {place: _patch_reason(pool, place, incumbent) for place in alone}
    if not len(pool):
        return []
    scores = score(beliefs, pool.points(), best)
    before = len(pool)
    add_pairs(pool, scores, best)
    if len(pool) > before:
        scores = score(beliefs, pool.points(), best)
    points = pool.points()
    held = list(alone)
    if best is None and num - len(held) > 1:
        held.append(_safest(scores, held))
    # a patch that never ran is tried on its own only: else nobody could tell whose fault a refusal is
    unproven = {patch.sha256 for patch in waiting}
    free = [i for i in range(len(pool)) if unproven.isdisjoint(pool.patches[i])]
    open_places = np.setdiff1d(np.array(free, np.int64), np.array(held, np.int64))
    picked = choose(
        beliefs,
        points.take(open_places),
        scores.take(open_places),
        beliefs.points.take(np.array(places, np.int64)),
        num - len(held),
        rng,
        taken=points.take(np.array(held, np.int64)),
        apart=_APART_AT_FIRST if is_first else 1,
    )
    chosen = [*(int(open_places[i]) for i in picked), *held]
    source = "seed" if is_first else "model"
    return [_explained(pool, scores, i, best, source, reasons) for i in chosen]


def predictions(
    problem: Problem, observations: Sequence[Observation], candidates: Sequence[Candidate]
) -> list[Prediction]:
    """What is believed of candidates after these observations."""
    if not candidates:
        return []
    beliefs = fit_beliefs(problem, observations)
    points = beliefs.points_of(candidates)
    log_seconds, time_sd = beliefs.log_seconds(points)
    log_gib, memory_sd = beliefs.log_gib(points)
    fits, valid = beliefs.probability_fits(points), beliefs.probability_valid(points)
    has_upper = beliefs.memory.has_upper_estimate
    return [
        Prediction(
            step_seconds=float(np.exp(log_seconds[i])),
            step_low_seconds=float(np.exp(log_seconds[i] - _HALF_90 * time_sd[i])),
            step_high_seconds=float(np.exp(log_seconds[i] + _HALF_90 * time_sd[i])),
            peak_gib=float(np.exp(log_gib[i])),
            peak_low_gib=float(np.exp(log_gib[i] - _HALF_90 * memory_sd[i])),
            peak_high_gib=float(np.exp(log_gib[i] + _HALF_90 * memory_sd[i])) if has_upper else None,
            probability_fits=float(fits[i]),
            probability_valid=float(valid[i]),
        )
        for i in range(len(candidates))
    ]


def _is_searched(problem: Problem, row: Observation) -> bool:
    """Whether a trial is anything else than the bare baseline."""
    baseline = problem.knob_set.baseline()
    return bool(row.patches) or {**baseline, **row.configuration} != baseline


def _on_its_own(pool: Pool, incumbent: Candidate, patch: Patch) -> list[int]:
    """The place of a first trial of a patch: on the best so far, or the nearest of its neighbours with room for it."""
    problem, space = pool.beliefs.problem, pool.space
    row = space.encode(incumbent.configuration)
    if row is None:
        return []
    patches = (*incumbent.patches, patch.sha256)
    if not problem.is_compatible(patches):
        patches = (patch.sha256,)
    here = np.array([row], np.int64)
    rows: IntArray = here[space.allowed(here)]
    pool.add(rows.tolist(), patches)
    place = pool.place(row, patches)
    if place is not None and pool.beliefs.probability_fits(pool.points([place]))[0] >= _ROOM_FOR_A_PATCH:
        return [place]
    near = [tuple(r) for r in space.neighbours(here).tolist()]
    pool.add(near, patches)
    places = [p for p in (pool.place(r, patches) for r in near) if p is not None]
    if not places:
        return []
    points = pool.points(places)
    fits = pool.beliefs.probability_fits(points)
    mean, _ = pool.beliefs.log_seconds(points)
    order = np.where(fits >= _ROOM_FOR_A_PATCH, mean, mean.max() + 1 - fits)
    found = places[int(np.argmin(order))]
    return [found]


def _patch_reason(pool: Pool, place: int, incumbent: Candidate) -> str:
    titles = {p.sha256: p for p in pool.beliefs.problem.patches}
    patch = titles[pool.patches[place][-1]]
    belief = (
        "nobody said what it does"
        if expected_factor(patch) is None
        else f"its author believes in a factor of {patch.expected_time_factor:.2f}"
    )
    is_moved = pool.rows[place] != pool.space.encode(incumbent.configuration)
    where = "next to the best so far, where there is room for it" if is_moved else "on the best so far"
    return f"first trial of patch {patch.name}, {where}: {belief}"


def _explained(
    pool: Pool, scores: Scores, place: int, best: float | None, source: str, reasons: dict[int, str]
) -> Candidate:
    mean, sd, fits = float(scores.mean[place]), float(scores.sd[place]), float(scores.fits[place])
    low, high = np.exp(mean - _HALF_90 * sd), np.exp(mean + _HALF_90 * sd)
    numbers = f"believed {_seconds(np.exp(mean))} a step ({_seconds(low)} to {_seconds(high)}), fits with {fits:.0%}"
    if place in reasons:
        return pool.candidate(place, "patch", f"{reasons[place]}; {numbers}")
    if pool.stories.get(place):
        return pool.candidate(place, "pair", f"{pool.stories[place]}; {numbers}")
    if source == "seed":
        why = "fast and safe by the formulas" if fits >= _SAFE else "fast by the formulas, and tells much"
        return pool.candidate(place, source, f"{why}; {numbers}")
    if best is not None and mean >= best:
        return pool.candidate(place, "explore", f"not believed faster, but little is known there; {numbers}")
    gain = "" if best is None else f"{1 - np.exp(mean - best):.1%} faster than the best so far; "
    return pool.candidate(place, source, f"{gain}{numbers}")


def _seconds(value: float) -> str:
    return f"{1000 * value:.3g} ms" if value < 1 else f"{value:.3g} s"


def _safest(scores: Scores, held: Sequence[int]) -> int:
    """The fastest believed place among those that are as good as sure to fit: a first peak must be learned."""
    chance = scores.chance.copy()
    chance[list(held)] = 0.0
    safe = chance >= min(_SAFE, float(chance.max()))
    return int(np.argmin(np.where(safe, scores.mean, np.inf)))
