"""Find and read site profiles: the user's own first, then the shipped ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.edges.shipped import shipped
from infrarsi_hpc.edges.typed_files import read_toml
from infrarsi_hpc.errors import ProfileError

SCHEMA_VERSION = 1


def profile_folders(environment: Mapping[str, str], home: Path) -> tuple[Path, Path]:
    """The user's own folder of profiles, and the shipped one."""
    config = environment.get("XDG_CONFIG_HOME", "")
    base = Path(config) if config.startswith("/") else home / ".config"
    return base / "infrarsi" / "sites", shipped("site_profiles")


def read_profile(name: str, environment: Mapping[str, str], home: Path) -> SiteProfile:
    """A profile by name.

    Raises
    ------
    ProfileError
        There is none of that name, or it is not what the schema says.
    """
    folders = profile_folders(environment, home)
    path = next((f / f"{name}.toml" for f in folders if (f / f"{name}.toml").is_file()), None)
    if path is None:
        known = sorted({p.stem for folder in folders for p in folder.glob("*.toml")})
        raise ProfileError(
            f"there is no site profile {name!r}",
            why=f"known: {', '.join(known)}",
            fix=f"name one of these with --site, or write {folders[0] / name}.toml",
        )
    fix = f"correct {path}"
    profile = read_toml(path, SiteProfile, ProfileError, schema=SCHEMA_VERSION, fix=fix)
    if profile.name != name:
        raise ProfileError(f"{path} calls itself {profile.name!r}", why="name and file name must agree", fix=fix)
    return profile
