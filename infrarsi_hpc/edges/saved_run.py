"""`run.json`: what `infrarsi run` was called with, so that a campaign can be resumed without remembering it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from infrarsi_hpc.edges.typed_files import read_json
from infrarsi_hpc.errors import InputRefused

SAVED_RUN = "run.json"
Argument = Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00\r\n]*$")]


class SavedRun(BaseModel):
    """The arguments after `infrarsi run`, and when they were saved (Unix seconds)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1]
    arguments: Annotated[tuple[Argument, ...], Field(max_length=1000)]
    saved_at: float = Field(ge=0, le=1e11, allow_inf_nan=False)


def read_saved_run(campaign: Path) -> SavedRun:
    """The arguments that a campaign was last run with.

    Raises
    ------
    InputRefused
        There are none, or the file is not what `infrarsi run` writes.
    """
    fix = f"start it with its arguments instead: infrarsi run --campaign {campaign.name} ..."
    return read_json(campaign / SAVED_RUN, SavedRun, InputRefused, schema=1, fix=fix)
