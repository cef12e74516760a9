"""A patch: a unified diff inside the editable scope, known by its SHA-256."""

from __future__ import annotations

import hashlib

from pydantic import BaseModel, ConfigDict, Field


class Patch(BaseModel):
    """One diff with its name. `text` is kept byte for byte; the digest is of exactly these bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(max_length=100)
    text: str = Field(max_length=1_000_000)
    title: str = Field(default="", max_length=200)
    #: Paths that the diff changes, relative to the project, as read from it.
    paths: tuple[str, ...] = ()
    #: What its author believes: step-time factor (0.9 = ten percent faster) and change of peak memory.
    expected_time_factor: float | None = None
    expected_memory_gib: float | None = None
    #: Settings under which the patch makes a difference; elsewhere it is not tried.
    needs: tuple[tuple[str, int | float | str], ...] = ()

    @property
    def sha256(self) -> str:
        """The patch's digest, in hex."""
        return hashlib.sha256(self.text.encode("utf-8")).hexdigest()
