"""Prices: what one setting or patch costs or saves, against the configuration at hand, believed and measured.

Every price is a difference of two predictions of the same posterior, so that what both share (the machine's speed,
the other settings) cancels and does not widen the interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.models.beliefs import Beliefs, fit_beliefs
from infrarsi_hpc.models.owners import Standing
from infrarsi_hpc.models.problem import Problem

#: Half width of a 90% interval in standard deviations.
_HALF_90 = 1.6448536269514722


@dataclass(frozen=True)
class Interval:
    """An estimate with its 90% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Price:
    """What changing one thing does.

    Attributes
    ----------
    kind
        `knob` or `patch`.
    name
        The knob's or patch's name; for a patch `setting` is its digest.
    setting, instead_of
        The value priced, and the one it replaces (`with` and `without` for patches are told by `is_removal`).
    is_removal
        The incumbent has this patch, and the price is of taking it out.
    time_factor, memory_gib
        As measured so far: step-time factor (below 1: faster) and change of peak memory a device, GiB.
    believed_time_factor, believed_memory_gib
        The same before this campaign's trials.
    num_trials
        Finished, believed trials that had this setting or patch.
    """

    kind: str
    name: str
    setting: str
    instead_of: str
    is_removal: bool
    time_factor: Interval
    memory_gib: Interval
    believed_time_factor: Interval
    believed_memory_gib: Interval
    num_trials: int

    @property
    def is_measured(self) -> bool:
        """Whether any trial of this campaign had it."""
        return self.num_trials > 0


@dataclass(frozen=True)
class Change:
    """One step away from a candidate: a knob's value, or a patch put in or taken out."""

    kind: str
    name: str
    setting: str
    instead_of: str
    is_removal: bool
    candidate: Candidate


def prices(problem: Problem, observations: Sequence[Observation], incumbent: Candidate | None = None) -> list[Price]:
    """Price every knob setting and patch against an incumbent (the baseline if none is given).

    Settings come in the order of the knob set, then patches in theirs.
    """
    here = incumbent or Candidate(configuration=problem.knob_set.baseline())
    now, before = fit_beliefs(problem, observations), fit_beliefs(problem, ())
    if set(here.patches) - set(before.design.patch_ids):
        before = now
    return price_changes(now, before, here, changes(problem, here))


def standings(problem: Problem, observations: Sequence[Observation]) -> list[Standing]:
    """Whose beliefs the prices rest on: the textbook and every owner, with what each is trusted before and now."""
    now, before = fit_beliefs(problem, observations).trust, fit_beliefs(problem, ()).trust
    nums = {owner.name: owner.num_trials for owner in problem.owners}
    return [Standing(n, nums.get(n, 0), share, now.time[n], now.memory[n]) for n, share in before.time.items()]


def changes(problem: Problem, incumbent: Candidate) -> list[Change]:
    """All single steps away from a candidate; patches that conflict with one of its own are left out."""
    found = []
    for name, knob in problem.knob_set.knobs.items():
        current = incumbent.configuration.get(name, knob.baseline)
        for value in knob.values:
            if value != current:
                there = Candidate(configuration={**incumbent.configuration, name: value}, patches=incumbent.patches)
                found.append(Change("knob", name, str(value), str(current), False, there))
    for patch in problem.patches:
        sha = patch.sha256
        is_removal = sha in incumbent.patches
        chosen = tuple(p for p in incumbent.patches if p != sha) if is_removal else (*incumbent.patches, sha)
        if problem.is_compatible(chosen):
            there = Candidate(configuration=incumbent.configuration, patches=chosen)
            found.append(Change("patch", patch.name, sha, "", is_removal, there))
    return found


def price_changes(now: Beliefs, before: Beliefs, incumbent: Candidate, steps: Sequence[Change]) -> list[Price]:
    """Price given steps away from a candidate with fitted beliefs, now and before any trial."""
    if not steps:
        return []
    candidates = [step.candidate for step in steps]
    measured_time, measured_gib = time_factors(now, incumbent, candidates), memory_changes(now, incumbent, candidates)
    believed_time = time_factors(before, incumbent, candidates)
    believed_gib = memory_changes(before, incumbent, candidates)
    return [
        Price(
            kind=step.kind,
            name=step.name,
            setting=step.setting,
            instead_of=step.instead_of,
            is_removal=step.is_removal,
            time_factor=measured_time[i],
            memory_gib=measured_gib[i],
            believed_time_factor=believed_time[i],
            believed_memory_gib=believed_gib[i],
            num_trials=_num_trials(now, step),
        )
        for i, step in enumerate(steps)
    ]


def time_factors(beliefs: Beliefs, here: Candidate, there: Sequence[Candidate]) -> list[Interval]:
    """Step-time factor of each candidate against `here`."""
    views = (beliefs.time_view(beliefs.points_of(rows)) for rows in ([here], there))
    mean, sd = beliefs.time.difference(*views)
    return [
        Interval(float(np.exp(m)), float(np.exp(m - _HALF_90 * s)), float(np.exp(m + _HALF_90 * s)))
        for m, s in zip(mean, sd, strict=True)
    ]


def memory_changes(beliefs: Beliefs, here: Candidate, there: Sequence[Candidate]) -> list[Interval]:
    """Change of peak memory of each candidate against `here`, GiB a device."""
    rows = beliefs.design.memory(beliefs.points_of([here, *there]))
    posterior = beliefs.memory.posterior
    mu, jac = posterior.linearised(rows.components, rows.factors)
    peak = np.exp(mu)
    slope = jac * peak[:, None]
    change = slope[1:] - slope[0]
    sd = np.sqrt(np.maximum(np.einsum("ij,ij->i", change @ posterior.covariance, change), 0.0))
    gib = peak[1:] - peak[0]
    return [Interval(float(m), float(m - _HALF_90 * s), float(m + _HALF_90 * s)) for m, s in zip(gib, sd, strict=True)]


def _num_trials(beliefs: Beliefs, step: Change) -> int:
    count = 0
    for row in beliefs.observations:
        if row.outcome is not Outcome.OK or not row.is_believed:
            continue
        if step.kind == "patch":
            count += step.setting in row.patches
        else:
            knob = beliefs.problem.knob_set[step.name]
            count += str(row.configuration.get(step.name, knob.baseline)) == step.setting
    return count
