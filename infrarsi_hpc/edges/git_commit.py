"""Changes to a repository: commits built aside, branches, switching, reverting. Each is done wholly or not at all.

A commit is made from contents with an index of its own; the user's work tree and index are not touched by it, and no
branch knows it until `create_branch`. Only `switch_to` and `revert_commit` touch the work tree, and git itself refuses
there what would overwrite a user's changes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from infrarsi_hpc.edges.git import call, entries_at, identity
from infrarsi_hpc.errors import ProjectError


def start_repository(folder: Path, message: str) -> None:
    """Make a folder a repository with everything in it committed; an identity is set there if the user has none."""
    call(folder, "init", "--quiet", "--initial-branch", "main")
    try:
        identity(folder)
    except ProjectError:
        call(folder, "config", "user.name", "infrarsi demo")
        call(folder, "config", "user.email", "demo@localhost")
    call(folder, "add", "--all")
    call(folder, "commit", "--quiet", "--message", message)


def make_commit(root: Path, parent: str, contents: Mapping[str, bytes | None], message: str) -> str:
    """A commit on top of `parent` with these files changed (none: removed); gives its digest.

    An existing file keeps its mode, a new one is plain. `root` is the repository's top folder.
    """
    entries = entries_at(root, parent)
    with tempfile.TemporaryDirectory(prefix="infrarsi-") as scratch:
        extra = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
        call(root, "read-tree", parent, extra=extra)
        lines = []
        for path, content in contents.items():
            if content is None:
                lines.append(f"0 {'0' * len(parent)}\t{path}")
                continue
            blob = call(root, "hash-object", "-w", "--stdin", stdin=content).stdout.decode().strip()
            mode = entries[path].mode if path in entries else "100644"
            lines.append(f"{mode} {blob}\t{path}")
        call(
            root,
            "update-index",
            "-z",
            "--index-info",
            stdin="".join(f"{line}\0" for line in lines).encode(),
            extra=extra,
        )
        tree = call(root, "write-tree", extra=extra).stdout.decode().strip()
    made = call(root, "commit-tree", tree, "-p", parent, "-F", "-", stdin=message.encode("utf-8"))
    return made.stdout.decode().strip()


def create_branch(root: Path, name: str, commit: str) -> None:
    """A new branch at a commit.

    Raises
    ------
    ProjectError
        There is one of that name already, or git does not allow the name.
    """
    if call(root, "check-ref-format", "--branch", name, accept=(0, 1, 128)).returncode != 0:
        raise ProjectError(
            f"{name!r} cannot be the name of a branch", fix="name the campaign with letters, digits and -"
        )
    call(root, "update-ref", f"refs/heads/{name}", commit, "")  # "": it must not be there yet


def delete_branch(root: Path, name: str, commit: str) -> None:
    """Delete a branch that still stands at `commit`; the commit stays in git's store until it is collected."""
    call(root, "update-ref", "-d", f"refs/heads/{name}", commit)


def switch_to(root: Path, name: str) -> None:
    """Check a branch (or commit) out; nothing that is not committed is overwritten.

    Raises
    ------
    ProjectError
        Something is in the way; nothing changed.
    """
    call(root, "checkout", "--quiet", "--no-guess", "--no-overwrite-ignore", name, "--")


def stage_files(root: Path, paths: list[str]) -> None:
    """Put files as they are in the work tree into the index, ignored ones too."""
    call(root, "add", "--force", "--", *paths)


def unstage_files(root: Path, paths: list[str]) -> None:
    """Take files' index entries back to HEAD; the work tree stays."""
    call(root, "reset", "--quiet", "HEAD", "--", *paths)


def restore_files(root: Path, paths: list[str]) -> None:
    """Take files that HEAD has back to HEAD, in the index and the work tree."""
    call(root, "checkout", "--quiet", "HEAD", "--", *paths)


def revert_commit(root: Path, commit: str) -> None:
    """Commit the opposite of a commit on the current branch.

    Raises
    ------
    ProjectError
        Later changes are in the way; the work tree is as before.
    """
    done = call(root, "revert", "--no-edit", commit, accept=(0, 1, 128))
    if done.returncode == 0:
        return
    call(root, "revert", "--abort", accept=(0, 128))
    said = (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace").strip()
    raise ProjectError(
        f"commit {commit[:12]} cannot be reverted by itself",
        why=said[:2000],
        fix=f"git revert {commit[:12]}, and resolve what it shows",
    )
