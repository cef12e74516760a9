"""A site profile: what one machine or cluster offers and demands."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
#: One shell line: no control characters, so that it stays one line wherever it is written.
Line = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$")]
Folder = Annotated[str, StringConstraints(pattern=r"^(/[^\x00-\x1f\x7f]*)?$", max_length=300)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Scheduler(_Section):
    """Who starts trials: this machine itself."""

    kind: Literal["local"] = "local"


class Environment(_Section):
    """Shell lines that make a job's environment, such as `module load cuda/12.4`."""

    setup: tuple[Line, ...] = ()


class Storage(_Section):
    """Where private copies of the code and temporary files go; empty: the system's temporary folder."""

    scratch: Folder = ""


class SiteLimits(_Section):
    """How often the head looks at a running batch."""

    poll_seconds: float = Field(default=0.2, ge=0.05, le=60)


class SiteProfile(_Section):
    """`site_profiles/NAME.toml`, or the user's own `~/.config/infrarsi/sites/NAME.toml`."""

    schema_version: Literal[1]
    name: Name
    scheduler: Scheduler = Scheduler()
    environment: Environment = Environment()
    storage: Storage = Storage()
    limits: SiteLimits = SiteLimits()
