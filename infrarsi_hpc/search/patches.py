"""Which patches may still be tried, which are worth a trial of their own, and which go together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.knobs import Configuration
from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.models.beliefs import Beliefs
from infrarsi_hpc.models.design import expected_factor
from infrarsi_hpc.models.prices import memory_changes, time_factors
from infrarsi_hpc.models.validity import BREAKING

#: A patch is worth combining when it makes a step faster by more than this, or saves so much of the limit.
_WORTH_TIME = 0.003
_WORTH_MEMORY = 0.02
#: Believed more broken than this, a patch is given up.
_GIVEN_UP = 0.5


def refused_patches(beliefs: Beliefs) -> frozenset[str]:
    """Patches that are never tried again.

    A patch is refused when a trial broke the contract and differs from a finished one in this patch alone; when it
    crashed or did not start under the same circumstances and never finished elsewhere; or when the validity model
    blames it and it never finished.
    """
    finished = {_key(row.configuration, row.patches) for row in beliefs.observations if row.outcome is Outcome.OK}
    ran = {sha for row in beliefs.observations if row.outcome is Outcome.OK for sha in row.patches}
    refused: set[str] = set()
    for row in beliefs.observations:
        if row.outcome not in BREAKING:
            continue
        for sha in row.patches:
            rest = tuple(p for p in row.patches if p != sha)
            if _key(row.configuration, rest) in finished and (row.outcome is Outcome.REFUSED or sha not in ran):
                refused.add(sha)
    num_settings = len(beliefs.design.feature_settings)
    for j, sha in enumerate(beliefs.design.patch_ids):
        if beliefs.validity.broken[num_settings + j] > _GIVEN_UP and sha not in ran:
            refused.add(sha)
    return frozenset(refused)


def untested_patches(beliefs: Beliefs) -> list[Patch]:
    """Patches that no trial has had yet and that are believed to help, the most promising first.

    Left out: those whose author expects neither time nor memory of them.
    """
    tried = {sha for row in beliefs.observations for sha in row.patches}
    waiting = []
    for patch in beliefs.problem.patches:
        factor, gib = expected_factor(patch), patch.expected_memory_gib
        if patch.sha256 in tried or (factor is not None and factor >= 1 and (gib is None or gib >= 0)):
            continue
        waiting.append((1.0 if factor is None else factor, patch.name, patch))
    return [patch for _, _, patch in sorted(waiting, key=lambda entry: entry[:2])]


def patch_sets(beliefs: Beliefs, incumbent: Candidate) -> list[tuple[str, ...]]:
    """Combinations worth searching over, the most promising first: helpful ones together, with and without each.

    Only patches that have finished a trial are combined, and of those none that is believed to make steps slower
    without saving memory.
    """
    problem = beliefs.problem
    refused = refused_patches(beliefs)
    ran = {sha for row in beliefs.observations if row.outcome is Outcome.OK for sha in row.patches}
    tested = [p.sha256 for p in problem.patches if p.sha256 in ran and p.sha256 not in refused]
    if not tested:
        return [()]
    bare = Candidate(configuration=incumbent.configuration)
    singles = [Candidate(configuration=bare.configuration, patches=(sha,)) for sha in tested]
    gains = [-float(np.log(f.value)) for f in time_factors(beliefs, bare, singles)]
    limit = problem.memory_limit_gib
    saved = [-m.value / limit if limit else 0.0 for m in memory_changes(beliefs, bare, singles)]
    order = sorted(range(len(tested)), key=lambda i: -gains[i])
    together = _greedy(beliefs, [tested[i] for i in order if gains[i] > _WORTH_TIME])
    savers = [tested[i] for i in order if saved[i] > _WORTH_MEMORY]
    useful = [tested[i] for i in order if gains[i] > -_WORTH_TIME or tested[i] in savers]
    own = tuple(sha for sha in incumbent.patches if sha in useful)
    sets: list[tuple[str, ...]] = [together]
    sets += [(*together, sha) for sha in savers[:3] if sha not in together]
    sets += [own, ()]
    sets += [tuple(p for p in together if p != sha) for sha in together]
    sets += [(*own, sha) for sha in useful if sha not in own]
    first: dict[frozenset[str], tuple[str, ...]] = {}
    for chosen in sets:
        if problem.is_compatible(chosen):
            first.setdefault(frozenset(chosen), chosen)
    return list(first.values())


def _greedy(beliefs: Beliefs, ordered: Sequence[str]) -> tuple[str, ...]:
    chosen: tuple[str, ...] = ()
    for sha in ordered:
        if beliefs.problem.is_compatible((*chosen, sha)):
            chosen = (*chosen, sha)
    return chosen


def _key(configuration: Configuration, patches: Sequence[str]) -> str:
    return Candidate(configuration=configuration, patches=tuple(patches)).id
