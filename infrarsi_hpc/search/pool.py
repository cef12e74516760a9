"""The candidates that one proposal chooses from: never tried, allowed, with patches that may go together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.models.basis import FloatArray, IntArray
from infrarsi_hpc.models.beliefs import Beliefs
from infrarsi_hpc.models.design import Points
from infrarsi_hpc.search.patches import patch_sets, refused_patches
from infrarsi_hpc.search.space import Space

#: Rows of settings drawn over the whole space, for each of the two patch sets that are looked at everywhere.
MOST_ROWS = 2_000
#: How many of the best measured candidates have all their neighbours looked at.
_NUM_CENTRES = 4

Key = tuple[tuple[int, ...], frozenset[str]]


@dataclass
class Pool:
    """Rows of settings with their patches, in the order in which they were added, each once."""

    beliefs: Beliefs
    space: Space
    rows: list[tuple[int, ...]] = field(default_factory=list)
    patches: list[tuple[str, ...]] = field(default_factory=list)
    #: Why a row is in, for those with a story (pairs); by place.
    stories: dict[int, str] = field(default_factory=dict)
    _places: dict[Key, int] = field(default_factory=dict)
    _tried: frozenset[Key] = frozenset()
    _refused: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        tried = set()
        for row in self.beliefs.observations:
            encoded = self.space.encode(row.configuration)
            if encoded is not None:
                tried.add((encoded, frozenset(row.patches)))
        self._tried = frozenset(tried)
        self._refused = refused_patches(self.beliefs)

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, rows: Iterable[Sequence[int]], patches: tuple[str, ...], story: str | None = None) -> None:
        """Add allowed rows with these patches; those that were tried, or are in already, are passed over."""
        chosen = frozenset(patches)
        if chosen & self._refused or not self.beliefs.problem.is_compatible(chosen):
            return
        listed = [tuple(row) for row in rows]
        if not listed:
            return
        codes = np.array(listed, np.int64)
        allowed = self.space.allowed(codes) & self.space.meets(codes, self.beliefs.problem.needs(chosen))
        for row in (row for row, is_allowed in zip(listed, allowed, strict=True) if is_allowed):
            key: Key = (row, chosen)
            place = self._places.get(key)
            if key in self._tried:
                continue
            if place is None:
                place = self._places[key] = len(self.rows)
                self.rows.append(key[0])
                self.patches.append(patches)
            if story is not None:
                self.stories[place] = story

    def place(self, row: tuple[int, ...], patches: tuple[str, ...]) -> int | None:
        """Where this row is, if it is in."""
        return self._places.get((row, frozenset(patches)))

    def points(self, places: Sequence[int] | None = None) -> Points:
        """Columns of some rows, or of all."""
        chosen = range(len(self.rows)) if places is None else places
        return points_of(self.beliefs, self.space, [self.rows[i] for i in chosen], [self.patches[i] for i in chosen])

    def candidate(self, place: int, source: str, reason: str) -> Candidate:
        """One row as a candidate."""
        return Candidate(
            configuration=self.space.configuration(self.rows[place]),
            patches=self.patches[place],
            source=source,
            reason=reason[:500],
        )


def points_of(
    beliefs: Beliefs, space: Space, rows: Sequence[Sequence[int]], patches: Sequence[tuple[str, ...]]
) -> Points:
    """Columns for encoded rows and their patches."""
    encoded = np.array(rows, np.int64).reshape(-1, len(space.names))
    place = {sha: j for j, sha in enumerate(beliefs.design.patch_ids)}
    chosen = np.zeros((len(encoded), len(place)), bool)
    for i, names in enumerate(patches):
        for sha in names:
            chosen[i, place[sha]] = True
    return Points(space.settings(encoded), chosen)


def measured_by_speed(beliefs: Beliefs) -> tuple[list[int], FloatArray]:
    """Places of the measured observations from fast to slow by shrunk estimate, and those estimates (log seconds)."""
    measured = beliefs.measured
    if not measured:
        return [], np.zeros(0)
    mean, _ = beliefs.log_seconds(beliefs.points.take(np.array(measured)))
    order = np.argsort(mean, kind="stable")
    return [measured[i] for i in order], mean[order]


def incumbent_of(beliefs: Beliefs) -> Candidate:
    """The fastest measured candidate by shrunk estimate; the bare baseline where nothing was measured."""
    places, _ = measured_by_speed(beliefs)
    if not places:
        return Candidate(configuration=beliefs.problem.knob_set.baseline())
    row = beliefs.observations[places[0]]
    return Candidate(configuration=row.configuration, patches=row.patches, source=row.source)


def build_pool(beliefs: Beliefs, space: Space, incumbent: Candidate, rng: np.random.Generator) -> Pool:
    """Candidates over the whole space and around the best ones, with the patch sets that are worth it."""
    pool = Pool(beliefs, space)
    sets = patch_sets(beliefs, incumbent)
    places, _ = measured_by_speed(beliefs)
    centres = [beliefs.observations[i].configuration for i in places[:_NUM_CENTRES]] or [incumbent.configuration]
    encoded = [row for row in map(space.encode, centres) if row is not None]
    if encoded:
        nearest = _listed(space.neighbours(np.array(encoded[:1], np.int64)))
        for chosen in sets[:12]:
            pool.add(nearest, chosen)
        near = _listed(space.neighbours(np.array(encoded, np.int64)))
        for chosen in sets[:3]:
            pool.add(near, chosen)
    everywhere = _listed(space.rows(MOST_ROWS, rng))
    for chosen in dict.fromkeys([sets[0], ()]):
        pool.add(everywhere, chosen)
    return pool


def _listed(rows: IntArray) -> list[tuple[int, ...]]:
    return [tuple(row) for row in rows.tolist()]
