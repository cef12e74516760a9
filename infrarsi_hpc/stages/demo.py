"""Demo: write the demo project out as a repository of its own, for a user to play with."""

from __future__ import annotations

import shutil
from pathlib import Path

from infrarsi_hpc.edges.atomic import site_error
from infrarsi_hpc.edges.git_commit import start_repository
from infrarsi_hpc.errors import ProjectError

SOURCE = Path(__file__).resolve().parent.parent / "demo" / "torch_gpt"


def write_demo(directory: Path) -> Path:
    """Copy the demo into a new or empty folder and commit it.

    Raises
    ------
    ProjectError
        The folder has something in it already.
    SiteError
        It cannot be written.
    """
    directory = directory.resolve()
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ProjectError(
            f"{directory} is not empty", why="the demo never overwrites anything", fix="name a new or an empty folder"
        )
    try:
        shutil.copytree(SOURCE, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        (directory / "gitignore").rename(directory / ".gitignore")
    except OSError as error:
        raise site_error(directory, error) from error
    start_repository(directory, "A small GPT that learns to continue Python source code")
    return directory
