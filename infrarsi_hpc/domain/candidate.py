"""A candidate: a configuration plus zero or more patches, with who proposed it and why."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from infrarsi_hpc.domain.digest import digest_json
from infrarsi_hpc.domain.knobs import Configuration


class Candidate(BaseModel):
    """What a trial measures. Two candidates with the same settings and patches are the same candidate."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    configuration: Configuration
    #: SHA-256 digests of the patches, applied in this order.
    patches: tuple[str, ...] = ()
    source: str = Field(default="search", max_length=64)
    reason: str = Field(default="", max_length=500)

    @field_validator("patches")
    @classmethod
    def _each_once(cls, patches: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(patches)) != len(patches):
            raise ValueError("a patch is listed twice")
        return patches

    @property
    def id(self) -> str:
        """The first 12 hex digits of the digest of settings and patches (proposer and reason left out)."""
        return digest_json({"configuration": self.configuration, "patches": sorted(self.patches)})[:12]
