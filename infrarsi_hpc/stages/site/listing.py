"""List: every profile that can be named with --site, where it comes from, and whether it can be used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infrarsi_hpc.edges.site_trust import is_agreed
from infrarsi_hpc.edges.sites import profile_folders, profile_paths, read_file, read_profile
from infrarsi_hpc.errors import ProfileError


def list_profiles(environment: Mapping[str, str], home: Path) -> list[dict[str, Any]]:
    """One row a profile: name, origin (`own`, `shipped`), state (`ok`, `untrusted`, `broken`), and what it has.

    A profile that cannot be read has its problem in `description`; it never hides the others.
    """
    own, _ = profile_folders(environment, home)
    rows = []
    for name, path in sorted(profile_paths(environment, home).items()):
        row = {"name": name, "origin": "own" if path.parent == own else "shipped", "file": str(path)}
        try:
            profile = read_profile(name, environment, home, for_use=False)
            is_usable = path.parent != own or is_agreed(own, read_file(path))
        except ProfileError as error:
            why = error.why.split("\n")[0]
            broken = {"state": "broken", "scheduler": "", "partitions": [], "description": why or error.what}
            rows.append({**row, **broken})
            continue
        rows.append(
            {
                **row,
                "state": "ok" if is_usable else "untrusted",
                "scheduler": profile.scheduler.kind,
                "partitions": [partition.name for partition in profile.partition],
                "description": profile.description,
            }
        )
    return rows
