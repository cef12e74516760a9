"""What git knows about a project: commits, files at a commit, the state of the work tree; and diffs applied to folders.

Thin functions over the git command: no shell, a time limit, plain English answers, paths taken literally. Hooks,
replaced objects, file system monitors and a surrounding GIT_DIR never take part; a user's own settings count where they
are about the user (name, safe folders, ignored files).

Does not cover: submodules (listed as entries, never entered), and content that git filters rewrite on checkout (LFS).
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from infrarsi_hpc.domain.diff import parse_diff
from infrarsi_hpc.errors import PatchError, ProjectError

TIMEOUT_SECONDS = 120
#: The product's own files at the top of a project: they do not make a work tree dirty.
_OWN_FILE = re.compile(r"infrarsi[\w.-]*\.(?:toml|lock)\Z")
_OWN_FOLDER = ".infrarsi/"
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.quotePath=false",
    "commit.gpgSign=false",
    "advice.detachedHead=false",
    "color.ui=false",
)
_PERSON = ("GIT_AUTHOR_", "GIT_COMMITTER_")


@dataclass(frozen=True)
class Entry:
    """A file in a commit's tree."""

    mode: str
    blob: str

    @property
    def is_plain(self) -> bool:
        """Whether it is a file, not a symbolic link or a submodule."""
        return self.mode.startswith("100")


# ---- the repository


def repository_root(folder: Path) -> Path:
    """The top folder of the repository that `folder` is in.

    Raises
    ------
    ProjectError
        There is none, or git is not installed.
    """
    return Path(_text(folder, "rev-parse", "--show-toplevel").rstrip("\n"))


def head_commit(root: Path) -> str:
    """The commit that is checked out.

    Raises
    ------
    ProjectError
        The repository has no commit yet.
    """
    commit = commit_of(root, "HEAD")
    if commit is None:
        raise ProjectError(
            f"{root} has no commit yet",
            why="trials run a commit, so that everyone can run the same code again",
            fix="git add the training code and git commit it",
        )
    return commit


def current_branch(root: Path) -> str | None:
    """The branch that is checked out; none where HEAD is detached."""
    done = call(root, "symbolic-ref", "--quiet", "--short", "HEAD", accept=(0, 1))
    return done.stdout.decode().strip() or None


def commit_of(root: Path, name: str) -> str | None:
    """The commit that a branch, tag or digest stands for, or none."""
    done = call(root, "rev-parse", "--verify", "--quiet", name + "^{commit}", accept=(0, 1, 128))
    _raise_if_no_repository(root, done.stderr.decode("utf-8", "replace"))
    return done.stdout.decode().strip() or None


def has_commit(root: Path, commit: str) -> bool:
    """Whether the repository has a commit."""
    return commit_of(root, commit) is not None


def is_ancestor(root: Path, ancestor: str, commit: str) -> bool:
    """Whether `commit` is `ancestor` or follows it."""
    return call(root, "merge-base", "--is-ancestor", ancestor, commit, accept=(0, 1)).returncode == 0


def parents_of(root: Path, commit: str) -> list[str]:
    """A commit's parents, first one first."""
    return _text(root, "rev-list", "--parents", "--max-count=1", commit).split()[1:]


def commits_saying(root: Path, text: str) -> list[str]:
    """Commits in HEAD's history whose message has this text, newest first."""
    return _text(root, "log", "--format=%H", "--fixed-strings", "--grep", text, "HEAD").split()


def identity(root: Path) -> str:
    """Who commits, as git would write it.

    Raises
    ------
    ProjectError
        git does not know.
    """
    try:
        return _text(root, "var", "GIT_COMMITTER_IDENT").strip()
    except ProjectError as error:
        raise ProjectError(
            "git does not know who you are",
            why=error.why,
            fix='git config user.name "Your Name" && git config user.email you@example.org',
        ) from error


# ---- the work tree


def dirty_files(root: Path, ignored: Collection[str] = ()) -> list[str]:
    """Files that differ from HEAD or are new and not ignored; the product's own and `ignored` ones do not count."""
    records = _text(root, "status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=normal").split("\0")
    names = [record[3:] for record in records if record]
    own = {name for name in names if _OWN_FILE.match(name) or name.startswith(_OWN_FOLDER)}
    return [name for name in names if name not in own and name not in ignored]


def is_dirty(root: Path) -> bool:
    """Whether anything would be lost or left out if only HEAD counted."""
    return bool(dirty_files(root))


def require_clean(root: Path) -> None:
    """Refuse a work tree with changes.

    Raises
    ------
    ProjectError
        Naming the first of them.
    """
    dirty = dirty_files(root)
    if dirty:
        more = f" and {len(dirty) - 5} more" if len(dirty) > 5 else ""
        raise ProjectError(
            f"the work tree has uncommitted changes: {', '.join(dirty[:5])}{more}",
            why="they would be mixed with the commit, or lost",
            fix="git commit or git stash them, then run the same command again",
        )


def ignore(root: Path, pattern: str) -> None:
    """Have git ignore a pattern in this clone alone; no file of the project changes."""
    path = root / _text(root, "rev-parse", "--git-path", "info/exclude").strip()
    present = path.read_text("utf-8") if path.exists() else ""
    if pattern not in present.splitlines():
        path.parent.mkdir(parents=True, exist_ok=True)
        gap = "" if present.endswith("\n") or not present else "\n"
        path.write_text(f"{present}{gap}{pattern}\n", "utf-8")


# ---- files at a commit


def entries_at(root: Path, commit: str) -> dict[str, Entry]:
    """Every file below `root` at a commit, by path."""
    entries = {}
    for record in _text(root, "ls-tree", "-r", "-z", commit).split("\0"):
        if record:
            (mode, _, blob), path = record.partition("\t")[0].split(" "), record.partition("\t")[2]
            entries[path] = Entry(mode, blob)
    return entries


def files_at(root: Path, commit: str) -> list[str]:
    """Paths of the files below `root` at a commit, sorted."""
    return sorted(entries_at(root, commit))


def contents_at(root: Path, commit: str, paths: Iterable[str]) -> dict[str, bytes]:
    """Contents of files at a commit; those that it does not have are left out."""
    entries = entries_at(root, commit)
    wanted = [path for path in dict.fromkeys(paths) if path in entries and entries[path].mode != "160000"]
    data = call(root, "cat-file", "--batch", stdin="".join(entries[p].blob + "\n" for p in wanted).encode()).stdout
    contents: dict[str, bytes] = {}
    at = 0
    for path in wanted:
        end = data.index(b"\n", at)
        size = int(data[at:end].split()[2])
        contents[path] = data[end + 1 : end + 1 + size]
        at = end + 1 + size + 1
    return contents


def digests_at(root: Path, commit: str, paths: Iterable[str]) -> dict[str, str]:
    """SHA-256 of files at a commit; those that it does not have are left out."""
    contents = contents_at(root, commit, paths)
    return {path: hashlib.sha256(data).hexdigest() for path, data in contents.items()}


def show(root: Path, commit: str, path: str) -> bytes | None:
    """One file at a commit, or none."""
    return contents_at(root, commit, [path]).get(path)


def changed_files(root: Path, before: str, after: str) -> list[str]:
    """Paths that differ between two commits."""
    names = _text(root, "diff", "--name-only", "--no-renames", "--no-ext-diff", "-z", before, after, "--")
    return [name for name in names.split("\0") if name]


def diff_between(root: Path, before: str, after: str) -> str:
    """The unified diff between two commits, in git's plain form whatever the user's settings."""
    plain = ("--no-color", "--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/", "--no-renames")
    return _text(root, "diff", *plain, before, after, "--")


def patch_id(root: Path, commit: str) -> str | None:
    """A digest of what a commit changes, the same wherever it stands; none for a merge or a first commit."""
    parents = parents_of(root, commit)
    if len(parents) != 1:
        return None
    done = call(
        root, "patch-id", "--stable", stdin=diff_between(root, parents[0], commit).encode("utf-8", "surrogateescape")
    )
    return done.stdout.decode().split(" ")[0] or None


# ---- diffs on folders


def check_patch(folder: Path, text: str) -> None:
    """Whether a diff would apply to a folder, repository or not.

    Raises
    ------
    PatchError
        It would not; the message has git's words.
    """
    _apply(folder, text, "--check")


def apply_patch(folder: Path, text: str) -> list[str]:
    """Apply a strict diff to a folder, repository or not; gives the paths that changed.

    Raises
    ------
    PatchError
        It does not apply (then nothing changed), or it left a file that it names as it was.
    """
    paths = list(parse_diff(text).paths)
    before = {path: _content(folder / path) for path in paths}
    _apply(folder, text)
    idle = [path for path in paths if _content(folder / path) == before[path]]
    copied = {change.old_path for change in parse_diff(text).files if change.kind == "copy"}
    if set(idle) - copied:
        raise PatchError(
            f"git accepted the diff but left {idle[0]} as it was",
            why="its paths are not relative to this folder, or its content is there already",
            fix="make the diff in the project's top folder with `git diff`",
        )
    return [path for path in paths if path not in idle]


def _apply(folder: Path, text: str, *options: str) -> None:
    # no repository on purpose: inside one, git skips paths that lie outside the folder it is started in, and says 0
    done = call(
        folder,
        "apply",
        "--whitespace=nowarn",
        *options,
        "-",
        stdin=text.encode("utf-8"),
        accept=(0, 1, 128),
        extra={"GIT_DIR": "/nonexistent", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"},
    )
    if done.returncode != 0:
        raise PatchError(
            "the diff does not apply",
            why=done.stderr.decode("utf-8", "replace").strip()[:2000],
            fix="make it against the baseline commit's files",
        )


def _content(path: Path) -> bytes | None:
    try:
        return os.readlink(path).encode() if path.is_symlink() else path.read_bytes()  # noqa: PTH115
    except (FileNotFoundError, NotADirectoryError):
        return None


# ---- calling git


def call(
    root: Path,
    *arguments: str,
    stdin: bytes = b"",
    accept: Collection[int] = (0,),
    extra: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder; for `edges/git_commit` and this module.

    Raises
    ------
    ProjectError
        git is missing, takes too long, is in no repository, or ends with a code that is not accepted.
    """
    keep = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k.startswith(_PERSON)}
    environment = keep | {
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_EDITOR": "true",
        "GIT_PAGER": "cat",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        **(extra or {}),
    }
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    try:
        done = subprocess.run(
            ["git", *settings, *arguments],
            cwd=root,
            env=environment,
            input=stdin,
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        if not root.is_dir():
            raise ProjectError(f"{root} is not a folder", fix="check the path") from error
        raise ProjectError(
            "git is not installed", why="no `git` on PATH", fix="install git, or load the module that has it"
        ) from error
    except (NotADirectoryError, PermissionError) as error:
        raise ProjectError(f"{root} cannot be entered", why=str(error), fix="check the path") from error
    except subprocess.TimeoutExpired as error:
        raise ProjectError(
            f"git {arguments[0]} took longer than {TIMEOUT_SECONDS} s",
            why="a slow file system, or another git holds a lock",
            fix=f"try `git {arguments[0]}` in {root} by hand",
        ) from error
    if done.returncode not in accept:
        said = done.stderr.decode("utf-8", "replace").strip()
        _raise_if_no_repository(root, said)
        raise ProjectError(
            f"git {arguments[0]} failed in {root}",
            why=said[:2000] or f"exit code {done.returncode}",
            fix="put right what git says, then run the same command again",
        )
    return done


def _text(root: Path, *arguments: str) -> str:
    return call(root, *arguments).stdout.decode("utf-8", "surrogateescape")


def _raise_if_no_repository(root: Path, said: str) -> None:
    if "not a git repository" in said:
        raise ProjectError(
            f"{root} is not in a git repository",
            why="infrarsi measures commits and hands its result over as one",
            fix=f"git init {root}, git add the training code and git commit it",
        )
    if "dubious ownership" in said:
        raise ProjectError(
            f"git does not trust {root}", why="it belongs to another user", fix=said.strip().splitlines()[-1].strip()
        )
