"""Experience as a campaign began with it: kept in its folder, so that whoever goes on or reports believes the same.

A store grows while a campaign runs; read again, it would give other beliefs and other proposals.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from infrarsi_hpc.edges.atomic import write_json
from infrarsi_hpc.edges.typed_files import read_json
from infrarsi_hpc.errors import InputRefused
from infrarsi_hpc.models.normal import Normal
from infrarsi_hpc.models.owners import Named, Owner

SCHEMA_VERSION = 1
_MOST_PARAMETERS = 400
_Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Belief(_Record):
    names: tuple[str, ...] = Field(max_length=_MOST_PARAMETERS)
    mean: tuple[_Finite, ...]
    root: tuple[tuple[_Finite, ...], ...]

    @model_validator(mode="after")
    def _is_square(self) -> _Belief:
        size = len(self.names)
        if len(self.mean) != size or len(self.root) != size or any(len(row) != size for row in self.root):
            raise ValueError(f"{size} names need as many means, and a square root of as many rows and columns")
        return self


class _KeptOwner(_Record):
    name: str = Field(max_length=300)
    trust: float = Field(gt=0, allow_inf_nan=False)
    num_trials: int = Field(ge=0)
    time: _Belief
    memory: _Belief


class _KeptOwners(_Record):
    schema_version: int
    owners: tuple[_KeptOwner, ...] = Field(max_length=16)


def owners_path(folder: Path) -> Path:
    """Where a campaign keeps them."""
    return folder / "owners.json"


def write_owners(folder: Path, owners: tuple[Owner, ...]) -> None:
    """Keep what a campaign begins with."""
    rows = [
        {
            "name": owner.name[:300],
            "trust": owner.trust,
            "num_trials": owner.num_trials,
            "time": _plain(owner.time),
            "memory": _plain(owner.memory),
        }
        for owner in owners
    ]
    write_json(owners_path(folder), {"schema_version": SCHEMA_VERSION, "owners": rows})


def read_owners(folder: Path) -> tuple[Owner, ...] | None:
    """What a campaign began with; none where nothing was kept.

    Raises
    ------
    InputRefused
        The file is not what was written.
    """
    path = owners_path(folder)
    if not path.exists():
        return None
    fix = f"restore it from a backup, or remove {path}: then experience is read anew"
    kept = read_json(path, _KeptOwners, InputRefused, schema=SCHEMA_VERSION, fix=fix)
    return tuple(Owner(o.name, _named(o.time), _named(o.memory), o.trust, o.num_trials) for o in kept.owners)


def _plain(named: Named) -> dict[str, object]:
    return {"names": named.names, "mean": named.belief.mean.tolist(), "root": named.belief.root.tolist()}


def _named(kept: _Belief) -> Named:
    size = len(kept.names)
    return Named(kept.names, Normal(np.array(kept.mean, float), np.array(kept.root, float).reshape(size, size)))
