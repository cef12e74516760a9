"""Where a user's own files lie, by the XDG base directory specification: relative paths there count as none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def config_folder(environment: Mapping[str, str], home: Path) -> Path:
    """The user's own settings: profiles, templates."""
    return _folder(environment.get("XDG_CONFIG_HOME", ""), home / ".config")


def data_folder(environment: Mapping[str, str], home: Path) -> Path:
    """What is kept for the user: experience."""
    return _folder(environment.get("XDG_DATA_HOME", ""), home / ".local" / "share")


def cache_folder(environment: Mapping[str, str], home: Path) -> Path:
    """What can be made again."""
    return _folder(environment.get("XDG_CACHE_HOME", ""), home / ".cache")


def _folder(named: str, usual: Path) -> Path:
    return (Path(named) if named.startswith("/") else usual) / "infrarsi"
