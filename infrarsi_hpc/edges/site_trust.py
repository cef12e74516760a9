"""Whether what a received profile runs was agreed to: a digest of those lines, kept beside the profiles.

A profile that came by import has an entry in `trusted.json`. It may be used while the digest of what it runs is the
one its owner agreed to; an edit of those lines, or another import under the same name, asks again. Profiles that the
user wrote have no entry and need none.

Does not cover: somebody who can write to the user's own folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.domain.site_execution import executed, execution_digest
from infrarsi_hpc.edges.atomic import write_json
from infrarsi_hpc.edges.typed_files import read_json
from infrarsi_hpc.errors import ProfileError

FILE = "trusted.json"


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Digest of what the profile runs that was agreed to; empty: nothing yet.
    agreed_sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")


class _Trust(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    imported: dict[str, _Entry] = {}


def remember_import(folder: Path, profile: SiteProfile, *, agreed: bool) -> None:
    """Note that a profile came by import, and whether its owner agreed to what it runs."""
    trust = _read(folder)
    entry = _Entry(agreed_sha256=execution_digest(profile) if agreed else "")
    changed = _Trust(imported={**trust.imported, profile.name: entry})
    write_json(folder / FILE, changed.model_dump())


def is_agreed(folder: Path, profile: SiteProfile) -> bool:
    """Whether a profile of the user's folder may be used: written there, or all that it runs agreed to."""
    entry = _read(folder).imported.get(profile.name)
    return entry is None or not executed(profile) or entry.agreed_sha256 == execution_digest(profile)


def require_agreement(folder: Path, profile: SiteProfile) -> None:
    """Refuse an imported profile whose lines nobody has agreed to.

    Raises
    ------
    ProfileError
        Its digest is not the one that was agreed to, or the record cannot be read.
    """
    if is_agreed(folder, profile):
        return
    items = executed(profile)
    shown = [
        f"{item.field}: {item.text}" + (f"  [{'; '.join(item.dangers)}]" if item.dangers else "") for item in items
    ]
    raise ProfileError(
        f"the site profile {profile.name} came from elsewhere, and what it runs as you has not been agreed to",
        why="\n     ".join(shown),
        fix=f"read these lines, then `infrarsi site trust {profile.name}`",
    )


def _read(folder: Path) -> _Trust:
    path = folder / FILE
    if not path.exists():
        return _Trust()
    fix = f"repair {path}, or remove it and import the profiles of {folder} again"
    return read_json(path, _Trust, ProfileError, schema=1, fix=fix)
