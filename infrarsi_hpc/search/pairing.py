"""Pairs: something fast that does not fit, together with the cheapest thing that makes room for it.

A saver (recompute, a smaller micro-batch, a patch that drops copies) costs time; it is worth its price only where
memory is short. So savers are looked for around fast candidates that are believed not to fit, and chosen by what a
freed GiB costs in step time; candidates that fit are left without.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.models.basis import FloatArray
from infrarsi_hpc.models.beliefs import Beliefs
from infrarsi_hpc.search.acquisition import Scores
from infrarsi_hpc.search.pool import Pool, points_of

#: Fast candidates looked at, changes added to one of them at most, and the chance of fitting that is enough.
_NUM_WANTED = 10
_MOST_SAVERS = 3
_ENOUGH = 0.7
_TOO_LITTLE = 0.5


@dataclass(frozen=True)
class _Option:
    row: tuple[int, ...]
    patches: tuple[str, ...]


@dataclass(frozen=True)
class _Belief:
    log_seconds: FloatArray
    gib: FloatArray
    fits: FloatArray


def add_pairs(pool: Pool, scores: Scores, best: float | None) -> None:
    """Add to the pool, with their stories, savers joined to fast candidates that do not fit.

    `scores` are those of the pool's rows; `best` is the log time to beat (none: nothing was measured).
    """
    beliefs = pool.beliefs
    limit = beliefs.problem.memory_limit_gib
    if limit is None or not len(pool):
        return
    for option in _wanted(pool, scores, best):
        found = _make_room(pool, option, limit)
        if found is None:
            continue
        paired, added = found
        before, after = _believe(pool, [option, paired]).gib
        story = (
            f"{_described(pool, option)} is fast but would need about {before:.3g} of {limit:.3g} GiB; "
            f"{', '.join(added)} makes room at the lowest price (about {after:.3g} GiB)"
        )
        pool.add([paired.row], paired.patches, story)


def _wanted(pool: Pool, scores: Scores, best: float | None) -> list[_Option]:
    """Fast candidates that do not fit: tried ones that ran out of memory, and rows of the pool; one a patch set."""
    beliefs = pool.beliefs
    goal = np.inf if best is None else best
    options: list[tuple[float, _Option]] = []
    ended = [i for i, row in enumerate(beliefs.observations) if row.outcome is Outcome.DEVICE_OOM]
    if ended:
        mean, _ = beliefs.log_seconds(beliefs.points.take(np.array(ended)))
        known = {p.sha256 for p in beliefs.problem.patches}
        for value, i in zip(mean, ended, strict=True):
            row = pool.space.encode(beliefs.observations[i].configuration)
            if row is not None and set(beliefs.observations[i].patches) <= known:
                options.append((float(value), _Option(row, beliefs.observations[i].patches)))
    for j in np.flatnonzero((scores.fits < _TOO_LITTLE) & (scores.mean < goal) & (scores.valid > _TOO_LITTLE)):
        options.append((float(scores.mean[j]), _Option(pool.rows[j], pool.patches[j])))
    options = sorted((o for o in options if o[0] < goal), key=lambda o: (o[0], o[1].row, o[1].patches))
    chosen: list[_Option] = []
    for _, option in options:
        # near twins have the same way out: keep those that differ in at least two settings
        if all(_apart(option, other) >= 2 for other in chosen):
            chosen.append(option)
        if len(chosen) == _NUM_WANTED:
            break
    return chosen


def _apart(left: _Option, right: _Option) -> int:
    settings = sum(a != b for a, b in zip(left.row, right.row, strict=True))
    return settings + len(set(left.patches) ^ set(right.patches))


def _make_room(pool: Pool, option: _Option, limit: float) -> tuple[_Option, list[str]] | None:
    """Add the cheapest savers one at a time until it fits; none if it never does."""
    added: list[str] = []
    for _ in range(_MOST_SAVERS):
        steps = _steps(pool, option)
        if not steps:
            return None
        beliefs = _believe(pool, [option, *steps])
        freed = beliefs.gib[0] - beliefs.gib[1:]
        cost = beliefs.log_seconds[1:] - beliefs.log_seconds[0]
        saves = freed > 0.01 * limit
        if not saves.any():
            return None
        enough = saves & (beliefs.fits[1:] >= _ENOUGH)
        # what makes it fit at once: by time alone; else by time a GiB freed, free ones by GiB
        price = np.where(cost > 0, cost / np.maximum(freed, 1e-9), cost - freed)
        order = np.where(enough, cost, np.inf) if enough.any() else np.where(saves, price, np.inf)
        j = int(np.argmin(order))
        added.append(_difference(pool, option, steps[j]))
        option = steps[j]
        if enough.any():
            return option, added
    return None


def _steps(pool: Pool, option: _Option) -> list[_Option]:
    """Single changes of a setting, and single patches that may be added."""
    rows = pool.space.neighbours(np.array([option.row], np.int64)).tolist()
    steps = [_Option(tuple(row), option.patches) for row in rows if tuple(row) != option.row]
    ran = {sha for row in pool.beliefs.observations if row.outcome is Outcome.OK for sha in row.patches}
    for patch in pool.beliefs.problem.patches:
        chosen = (*option.patches, patch.sha256)
        if patch.sha256 in ran - set(option.patches) and pool.beliefs.problem.is_compatible(chosen):
            steps.append(_Option(option.row, chosen))
    return steps


def _believe(pool: Pool, options: list[_Option]) -> _Belief:
    beliefs: Beliefs = pool.beliefs
    points = points_of(beliefs, pool.space, [o.row for o in options], [o.patches for o in options])
    log_gib, _ = beliefs.log_gib(points)
    return _Belief(beliefs.log_seconds(points)[0], np.exp(log_gib), beliefs.probability_fits(points))


def _described(pool: Pool, option: _Option) -> str:
    """What sets an option apart from the baseline."""
    baseline = pool.space.encode(pool.beliefs.problem.knob_set.baseline())
    assert baseline is not None
    return _difference(pool, _Option(baseline, ()), option) or "the baseline"


def _difference(pool: Pool, here: _Option, there: _Option) -> str:
    knobs, names = pool.beliefs.problem.knob_set, pool.space.names
    parts = [f"{name}={knobs[name].values[b]}" for name, a, b in zip(names, here.row, there.row, strict=True) if a != b]
    titles = {p.sha256: p.name for p in pool.beliefs.problem.patches}
    parts += [f"patch {titles.get(sha, sha[:12])}" for sha in there.patches if sha not in here.patches]
    return ", ".join(parts)
