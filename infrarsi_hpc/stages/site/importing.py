"""Import: a profile from somebody else. It is data until its owner has seen what it would run, and agreed.

A line that looks dangerous is not agreed to by `--yes`: such a profile is kept, and refused for use until
`infrarsi site trust NAME`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infrarsi_hpc.domain.site import Notes, SiteProfile, User
from infrarsi_hpc.domain.site_execution import Executed, executed
from infrarsi_hpc.edges.atomic import write_bytes, write_text
from infrarsi_hpc.edges.site_text import profile_toml
from infrarsi_hpc.edges.site_trust import is_agreed, remember_import
from infrarsi_hpc.edges.sites import check_name, profile_folders, profile_paths, read_file, read_profile
from infrarsi_hpc.errors import UsageError


@dataclass(frozen=True)
class Import:
    """A received profile, where it would go, and what its owner has to know first."""

    profile: SiteProfile
    path: Path
    items: tuple[Executed, ...]
    remarks: tuple[str, ...]

    @property
    def is_dangerous(self) -> bool:
        """Whether something that it runs looks dangerous."""
        return any(item.dangers for item in self.items)


def prepare_import(source: Path, environment: Mapping[str, str], home: Path, *, name: str = "") -> Import:
    """Read a received file; `name` is another name for it here.

    Raises
    ------
    ProfileError
        It is no site profile.
    UsageError
        Its name cannot be used here.
    """
    profile = read_file(source)
    folder, _ = profile_folders(environment, home)
    remarks = []
    if profile.user != User():
        remarks.append("its [user] table is somebody else's and is left out")
    profile = profile.model_copy(update={"user": User(), "name": check_name(name or profile.name)})
    path = folder / f"{profile.name}.toml"
    known = profile_paths(environment, home).get(profile.name)
    if path.exists():
        remarks.append(f"{path} exists and is replaced; it is kept as {path.name}.bak")
    elif known is not None:
        remarks.append(
            f"it takes the place of the shipped profile {profile.name}: choose another with --name to keep both"
        )
    if profile.notes != Notes():
        remarks.append(f"its notes: {profile.notes.comment}")
    return Import(profile, path, executed(profile), tuple(remarks))


def write_import(received: Import, *, agreed: bool) -> None:
    """Keep a received profile. `agreed`: its owner has seen what it runs, and wants it."""
    folder = received.path.parent
    folder.mkdir(parents=True, exist_ok=True)
    # the refusal first: a profile that is in place without its entry would count as the user's own
    remember_import(folder, received.profile, agreed=False)
    if received.path.exists():
        write_bytes(received.path.with_name(received.path.name + ".bak"), received.path.read_bytes())
    heading = ("Came by `infrarsi site import`.",)
    write_text(received.path, profile_toml(received.profile, heading=heading))
    if agreed:
        remember_import(folder, received.profile, agreed=True)


def untrusted(name: str, environment: Mapping[str, str], home: Path) -> tuple[SiteProfile, tuple[Executed, ...]]:
    """A profile and what of it waits for agreement; nothing waits where it was agreed to, or is the user's own.

    Raises
    ------
    ProfileError
        There is none of that name.
    UsageError
        It is a shipped one.
    """
    profile = read_profile(name, environment, home, for_use=False)
    folder, _ = profile_folders(environment, home)
    path = profile_paths(environment, home)[name]
    if path.parent != folder:
        raise UsageError(f"{name} is a shipped profile", why="it needs no trust", fix="nothing is to be done")
    bare = read_file(path)
    return profile, () if is_agreed(folder, bare) else executed(bare)


def trust(name: str, environment: Mapping[str, str], home: Path) -> None:
    """Agree to what a profile runs, as it stands now."""
    folder, _ = profile_folders(environment, home)
    remember_import(folder, read_file(profile_paths(environment, home)[name]), agreed=True)
