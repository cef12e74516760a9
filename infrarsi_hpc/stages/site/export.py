"""Export: a profile as others may have it, made anew from its values; comments of the file never travel.

What leaves is shown first. The audit of `site_sharing` runs over the very text that is written, read back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from infrarsi_hpc.domain.personal import names_in
from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.domain.site_sharing import Removal, personal_findings, shareable
from infrarsi_hpc.edges.atomic import write_text
from infrarsi_hpc.edges.site_questions import login_name
from infrarsi_hpc.edges.site_text import profile_toml
from infrarsi_hpc.edges.sites import Refusal, parse
from infrarsi_hpc.errors import ProfileError, UsageError

HEADING = ("A site profile for infrarsi: `infrarsi site import FILE`.",)


@dataclass(frozen=True)
class Export:
    """What would be written, and what was left out of it."""

    profile: SiteProfile
    text: str
    removals: tuple[Removal, ...]


def prepare_export(profile: SiteProfile, known: Iterable[str] = ()) -> Export:
    """The shareable text of a profile. `known` are names to look for besides those that the profile gives away.

    Raises
    ------
    ProfileError
        Something personal would stay in it; nothing is written then.
    """
    known = tuple(known)
    try:
        cleaned, removals = shareable(profile, known)
    except ValueError as error:
        raise _not_clean(profile, str(error)) from error
    text = profile_toml(cleaned, heading=HEADING)
    again = parse(text)
    if isinstance(again, Refusal) or again != cleaned:
        raise _not_clean(profile, "what is written would not be read back as the same profile")
    if found := personal_findings(again, known):
        raise _not_clean(profile, "; ".join(f"{item.field}: {item.reason}" for item in found))
    return Export(cleaned, text, removals)


def own_names(environment: Mapping[str, str], home: Path) -> tuple[str, ...]:
    """Names of whoever exports: the login name, and what their home folder is called."""
    names = {login_name(), environment.get("USER", ""), *names_in(str(home))}
    return tuple(sorted(name for name in names if name and name != "root"))


def write_export(export: Export, path: Path) -> None:
    """Write it where nothing stands yet.

    Raises
    ------
    UsageError
        There is such a file.
    """
    if path.exists():
        raise UsageError(f"{path} exists", why="an export does not replace a file", fix="name another with -o")
    write_text(path, export.text)


def _not_clean(profile: SiteProfile, why: str) -> ProfileError:
    return ProfileError(
        f"the profile {profile.name} cannot be made shareable",
        why=why,
        fix="take these fields out of a copy of the profile, and export the copy",
    )
