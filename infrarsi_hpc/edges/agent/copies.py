"""Private copies of the code: every trial runs the baseline commit plus its patches, never the user's work tree."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

TIMEOUT_SECONDS = 120


class CopyFailed(Exception):
    """The code could not be copied."""


class PatchFailed(Exception):
    """A patch does not apply to the baseline commit."""


def extract_commit(project: Path, commit: str, folder: Path) -> None:
    """Write the files of `commit` into `folder` (which is made).

    Through an index of its own rather than `git archive`, from which a committed .gitattributes can leave files out.
    """
    folder.mkdir(parents=True)
    index = folder.parent / f".{folder.name}.index"
    environment = _git_environment() | {"GIT_INDEX_FILE": str(index)}
    try:
        for arguments in (["read-tree", commit], ["checkout-index", "--all", f"--prefix={folder}/"]):
            done = subprocess.run(
                ["git", "-C", str(project), *arguments],
                capture_output=True,
                env=environment,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
            if done.returncode != 0:
                raise CopyFailed(done.stderr.decode("utf-8", "replace").strip()[:2000] or f"git {arguments[0]} failed")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CopyFailed(str(error)) from error
    finally:
        index.unlink(missing_ok=True)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a pristine tree for one trial."""
    try:
        shutil.copytree(source, target, symlinks=True)
    except (OSError, shutil.Error) as error:
        raise CopyFailed(str(error)) from error


def apply_patch(folder: Path, patch: Path, sha256: str) -> None:
    """Apply a diff to the copy; a diff that changes nothing is a failure, not a success."""
    try:
        text = patch.read_bytes()
    except OSError as error:
        raise PatchFailed(f"{patch.name} cannot be read: {error.strerror}") from error
    if hashlib.sha256(text).hexdigest() != sha256:
        raise PatchFailed(f"{patch.name} is not the patch that was planned (its digest differs)")
    before = hash_tree(folder)
    process = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", "-"],
        input=text,
        capture_output=True,
        cwd=folder,
        env=_git_environment() | {"GIT_CEILING_DIRECTORIES": str(folder.parent)},
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    if process.returncode != 0:
        raise PatchFailed(process.stderr.decode("utf-8", "replace").strip()[:2000])
    if hash_tree(folder) == before:
        raise PatchFailed("the diff applied but changed nothing")


def hash_tree(folder: Path) -> dict[str, str]:
    """SHA-256 of every file by its relative path; links by where they point."""
    digests: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            digests[name] = "link:" + os.readlink(path)  # noqa: PTH115 - works for dangling links on every Python
        elif path.is_file() and "__pycache__" not in path.parts:
            digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


def differing(folder: Path, expected: dict[str, str]) -> list[str]:
    """Which of the expected files are missing, links, or have another digest."""
    wrong = []
    for name, sha256 in expected.items():
        path = folder / name
        try:
            if path.is_symlink() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
                wrong.append(name)
        except OSError:
            wrong.append(name)
    return wrong


def _git_environment() -> dict[str, str]:
    keep = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG")}
    return keep | {"GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
