"""What other campaigns measured, summed up as an owner's beliefs: any number of trials becomes one normal.

Each campaign's trials are fitted by themselves with the formulas of their own workload; what its parts scale by is then
taken as one draw from a family of campaigns. Only what has the same name travels: scales of components, factors of a
knob's value. What is local to a campaign (a cliff between two settings) stays there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from infrarsi_hpc.domain.knobs import Configuration, Knob, KnobSet
from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.models.basis import FloatArray, Prior
from infrarsi_hpc.models.design import Design
from infrarsi_hpc.models.memory import fit_peak_memory
from infrarsi_hpc.models.normal import from_covariance, separate
from infrarsi_hpc.models.owners import Named, Owner, hierarchy
from infrarsi_hpc.models.problem import Problem
from infrarsi_hpc.models.rows import memory_rows, time_rows
from infrarsi_hpc.models.step_time import View, fit_step_time

#: Trials of one campaign that are looked at, evenly over its course, and campaigns of a family.
MOST_TRIALS, MOST_CAMPAIGNS = 1000, 48
#: Campaigns of a family differ by this share of what the textbook leaves open, before they show how much.
_BETWEEN = 0.3


@dataclass(frozen=True)
class Campaign:
    """One campaign's trials with the problem that they were of (its basis, shape and limit)."""

    problem: Problem
    observations: tuple[Observation, ...]


def owner_of(name: str, campaigns: Sequence[Campaign], trust: float) -> Owner | None:
    """A family of campaigns as an owner of beliefs; none where they measured nothing."""
    time: list[tuple[Named, Named]] = []
    memory: list[tuple[Named, Named]] = []
    num = 0
    for campaign in campaigns[:MOST_CAMPAIGNS]:
        rows = tuple(row for row in campaign.observations if _speaks(campaign.problem, row.configuration))
        rows = rows if len(rows) <= MOST_TRIALS else rows[:: -(-len(rows) // MOST_TRIALS)]
        problem = replace(campaign.problem, owners=())
        design = Design(problem, tuple(dict.fromkeys(sha for row in rows for sha in row.patches)))
        num += len(rows)
        if (found := _time_of(design, rows)) is not None:
            time.append(found)
        if (found := _memory_of(design, rows)) is not None:
            memory.append(found)
    if not time and not memory:
        return None
    return Owner(name, _joined(time), _joined(memory), trust, num)


def knobs_met(observations: Sequence[Observation], baseline: Configuration | None = None) -> KnobSet:
    """Knobs with the values that trials had: numeric where most of its trials have a number there.

    `baseline` is what factors are against: a campaign's that learns from these trials. Without one, or for knobs that
    it does not have, it is a value that was met.
    """
    met: dict[str, Counter[int | float | str]] = {}
    for row in observations:
        for name, value in row.configuration.items():
            met.setdefault(name, Counter())[value] += 1
    knobs = {}
    for name, counts in met.items():
        num_words = sum(count for value, count in counts.items() if isinstance(value, str))
        is_numeric = 2 * num_words < counts.total()
        values = {v if is_numeric else str(v) for v in counts if not (is_numeric and isinstance(v, str))}
        against = (baseline or {}).get(name)
        if against is None or isinstance(against, str) == is_numeric:
            against = min(values, key=lambda v: (isinstance(v, str), v))
        ordered = tuple(sorted(values | {against}, key=lambda v: (isinstance(v, str), v)))
        knobs[name] = Knob.model_construct(values=ordered, baseline=against, flag=None, role="setting", about="")
    return KnobSet.model_construct(knobs=knobs)


def _speaks(problem: Problem, configuration: Configuration) -> bool:
    """Whether the formulas can be asked about a configuration: numbers where they take numbers, and no rule broken."""
    for name, knob in problem.knob_set.knobs.items():
        value = configuration.get(name, knob.baseline)
        if knob.is_numeric and (isinstance(value, str) or not np.isfinite(value)):
            return False
    return bool(problem.basis.allowed(configuration, problem.shape, None).all())


def _time_of(design: Design, rows: Sequence[Observation]) -> tuple[Named, Named] | None:
    told = time_rows(rows)
    if not told.index.size:
        return None
    points = design.points([(rows[i].configuration, rows[i].patches) for i in told.index])
    matrices = design.time(points)
    prior = design.time_prior
    model = fit_step_time(
        View(matrices.components, matrices.factors, np.zeros((len(points), 1))),
        np.exp(told.log_seconds),
        prior,
        noise=np.hypot(told.noise, design.problem.run_noise),
        has_local=False,
    )
    return Named(design.time_names, model.belief), Named(design.time_names, prior)


def _memory_of(design: Design, rows: Sequence[Observation]) -> tuple[Named, Named] | None:
    told = memory_rows(rows, design.problem.memory_limit_gib)
    if not told.index.size:
        return None
    points = design.points([(rows[i].configuration, rows[i].patches) for i in told.index])
    matrices = design.memory(points)
    prior = design.memory_prior
    model = fit_peak_memory(matrices.components, np.exp(told.log_gib), told.censoring, prior, factors=matrices.factors)
    belief = from_covariance(model.posterior.mode, model.posterior.covariance)
    return Named(design.memory_names, belief), Named(design.memory_names, prior)


def _joined(groups: Sequence[tuple[Named, Named]]) -> Named:
    """One more campaign of the family, as far as these tell."""
    names: dict[str, tuple[float, float]] = {}
    for _, prior in groups:
        width = prior.belief.width
        for i, name in enumerate(prior.names):
            names.setdefault(name, (float(prior.belief.mean[i]), float(width[i])))
    if not names:
        return Named((), separate([]))
    textbook = Named(tuple(names), separate([Prior(mean, width) for mean, width in names.values()]))
    # how fast a machine is, is its own
    share = np.array([1.0 if name == "all" else _BETWEEN for name in names])
    between: FloatArray = share * textbook.belief.width
    return hierarchy([posterior for posterior, _ in groups], textbook, between)
