"""Search over a given list of configurations: the search without a campaign, for replays of measured sweeps.

The stable call through which tables of other people's trials are replayed (docs/models.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from infrarsi_hpc.domain.contract import Shape
from infrarsi_hpc.domain.knobs import KNOB_NAME, Configuration, Knob, KnobSet
from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.errors import InputRefused
from infrarsi_hpc.models.basis import Basis
from infrarsi_hpc.models.problem import Problem
from infrarsi_hpc.search.propose import propose
from infrarsi_hpc.search.space import Space
from infrarsi_hpc.stages.experience import shape_of, transformer_owners
from infrarsi_hpc.workloads.generic import GenericBasis
from infrarsi_hpc.workloads.transformer import TransformerBasis
from infrarsi_hpc.workloads.transformer_workload import TransformerWorkload

#: Of a card's nominal size this much can be reserved: driver, context and rounding take the rest.
USABLE_MEMORY = 0.96
#: Outcomes by the words of tables; others are those of the ledger.
_WORDS = {"ok": Outcome.OK, "oom": Outcome.DEVICE_OOM, "error": Outcome.CRASHED}
_NO_SHAPE = Shape(layers=1, hidden=1, heads=1, feed_forward=1, vocabulary=2, sequence_length=1, global_batch=1)
_NOT_IN_WORDS = re.compile(r"[^A-Za-z0-9_.+:/-]+")


class PoolSearch:
    """Ask for the next configurations of a list, tell what became of them.

    Parameters
    ----------
    configs
        The configurations that may be tried, all with the same knobs; numbers where more and less have a meaning.
    workload
        Model, batch and cards (`TransformerWorkload`); anything else is taken as a workload without formulas.
    seed
        The same seed and the same tellings give the same askings.
    experience
        Folders of experience stores.

    Raises
    ------
    InputRefused
        There is no configuration, they differ in their knobs, or a value is no finite number or short word.
    """

    def __init__(
        self,
        configs: Sequence[Mapping[str, Any]],
        workload: Mapping[str, Any],
        seed: int = 0,
        experience: Sequence[Path] = (),
    ) -> None:
        self._configs = [_plain(i, config) for i, config in enumerate(configs)]
        knobs = _knob_set(self._configs)
        parsed = _parsed(workload)
        self._places = {_key(config): i for i, config in reversed(list(enumerate(self._configs)))}
        self._asked: set[int] = set()
        self._told: list[Observation] = []
        self._rng = np.random.default_rng(seed)
        limit = USABLE_MEMORY * parsed.gpu.memory_gib if parsed is not None else _limit(workload)
        basis: Basis = TransformerBasis(parsed) if parsed is not None else GenericBasis()
        self.problem = Problem(
            knob_set=knobs,
            basis=basis,
            shape=shape_of(parsed) if parsed is not None else _NO_SHAPE,
            owners=transformer_owners(experience, parsed) if parsed is not None else (),
            memory_limit_gib=limit,
            pool=tuple(self._configs),
        )
        self._space = Space(self.problem)

    def ask(self, n: int) -> list[int]:
        """Places of up to `n` configurations to try next, none of them twice."""
        found: list[int] = []
        told = {_key(row.configuration) for row in self._told}
        pending = [
            Observation(trial=f"p{i}", configuration=self._configs[i], outcome=Outcome.CANCELLED)
            for i in sorted(self._asked)
            if _key(self._configs[i]) not in told
        ]
        for candidate in propose(self.problem, [*self._told, *pending], n, self._rng, self._space):
            place = self._places[_key(candidate.configuration)]
            if place not in self._asked:
                found.append(place)
        for place in range(len(self._configs)) if len(found) < n else ():
            # what the rules forbid, and repeats of one configuration, come last
            if len(found) < n and place not in self._asked and place not in found:
                found.append(place)
        self._asked.update(found)
        return found

    def tell(
        self,
        index: int,
        outcome: str,
        step_seconds: float | None = None,
        peak_gib: float | None = None,
        bound_gib: float | None = None,
    ) -> None:
        """What became of a configuration: `ok`, `oom`, `error`, or an outcome of the ledger's.

        Raises
        ------
        InputRefused
            There is no such configuration or outcome, or a number is not finite and above zero.
        """
        if not 0 <= index < len(self._configs):
            raise InputRefused(f"there is no configuration {index}", why=f"there are {len(self._configs)}, from 0 on")
        try:
            ended = _WORDS.get(outcome) or Outcome(outcome)
        except ValueError:
            known = ", ".join([*_WORDS, *(o.value for o in Outcome if o.value not in _WORDS)])
            raise InputRefused(f"{outcome!r} is no outcome", fix=f"one of {known}") from None
        for what, value in (("step_seconds", step_seconds), ("peak_gib", peak_gib), ("bound_gib", bound_gib)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputRefused(
                    f"{what} of configuration {index} is {value}",
                    why="a measured time or peak is a finite number above zero",
                    fix="leave it out, or tell the trial as `error`",
                )
        self._asked.add(index)
        self._told.append(
            Observation(
                trial=f"t{len(self._told):06d}",
                configuration=self._configs[index],
                outcome=ended,
                step_seconds=step_seconds if ended is Outcome.OK else None,
                peak_gib=peak_gib if ended is Outcome.OK else None,
                bound_gib=bound_gib if ended is Outcome.DEVICE_OOM else None,
            )
        )


def _plain(place: int, config: Mapping[str, Any]) -> Configuration:
    """A configuration with plain values: whole numbers as int, words as the models may keep them."""
    plain: Configuration = {}
    for name, value in config.items():
        if not KNOB_NAME.match(str(name)):
            raise InputRefused(f"configuration {place} has a knob {str(name)[:60]!r}", why="no lower_snake_case name")
        if isinstance(value, bool | np.bool_ | int | np.integer):
            plain[name] = int(value)
        elif isinstance(value, float | np.floating):
            if not math.isfinite(value):
                raise InputRefused(f"configuration {place}: {name} is {value}", why="a setting is a finite number")
            plain[name] = int(value) if float(value).is_integer() else float(value)
        elif isinstance(value, str) and value.strip():
            plain[name] = _NOT_IN_WORDS.sub("_", value.strip())[:64]
        else:
            raise InputRefused(
                f"configuration {place}: {name} is {str(value)[:60]!r}", why="a setting is a number or a short word"
            )
    return plain


def _knob_set(configs: Sequence[Configuration]) -> KnobSet:
    if not configs:
        raise InputRefused("there is no configuration to search", fix="give at least one")
    names = list(configs[0])
    for i, config in enumerate(configs):
        if set(config) != set(names):
            raise InputRefused(
                f"configuration {i} has other knobs than the first: {sorted(config)}, not {sorted(names)}"
            )
    knobs = {}
    for name in names:
        values = {config[name] for config in configs}
        if len({isinstance(value, str) for value in values}) > 1:  # numbers among words are words
            values = {str(value) for value in values}
            for config in configs:
                config[name] = str(config[name])
        ordered = tuple(sorted(values, key=lambda v: (isinstance(v, str), v)))
        # a table may have more values than a contract lists
        knobs[name] = Knob.model_construct(values=ordered, baseline=ordered[0], flag=None, role="setting", about="")
    return KnobSet.model_construct(knobs=knobs)


def _key(configuration: Configuration) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(configuration.items()))


def _parsed(workload: Mapping[str, Any]) -> TransformerWorkload | None:
    if "model" not in workload:
        return None
    try:
        return TransformerWorkload.model_validate(dict(workload))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputRefused(f"the workload's {where} cannot be used", why=str(first["msg"])) from error


def _limit(workload: Mapping[str, Any]) -> float | None:
    value = workload.get("memory_gib")
    return float(value) if isinstance(value, int | float) and math.isfinite(value) and value > 0 else None
