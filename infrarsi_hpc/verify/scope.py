"""May a patch touch what it touches? Asked of the diff itself, before anything is applied.

Covers: paths outside the editable globs, locked paths, absolute and climbing paths, links, submodules, modes, binary
parts, files that Python or a tool loads by itself, new modules that would stand in for the standard library's, the
product's and git's own files.
Does not cover: what the changed lines do (that is for evidence, `verify.checks`), or a path that is a link at the
baseline commit (the diff does not say; `stages.apply` asks git).
"""

from __future__ import annotations

import re
import sys
from pathlib import PurePosixPath

from infrarsi_hpc.domain.contract import Scope
from infrarsi_hpc.domain.diff import Diff, FileChange
from infrarsi_hpc.domain.globs import matches

#: Loaded by Python, pytest or git without being asked for, by name in lower case.
_LOADED_UNASKED = frozenset({"sitecustomize.py", "usercustomize.py", "conftest.py", ".gitattributes", ".gitmodules"})
#: Build and tool settings that change how everything else runs.
_TOOL_FILES = frozenset({"pyproject.toml", "setup.py", "setup.cfg", "pytest.ini", "tox.ini", "pyvenv.cfg"})
_LOADED_ENDINGS = (".pth", ".egg-link", ".so", ".pyd", ".dll", ".dylib", ".pyc", ".pyo")
_OWN = frozenset({"infrarsi.toml", "infrarsi.lock"})
_OWN_FOLDERS = frozenset({".git", ".infrarsi", "__pycache__"})
#: Packages that a training program imports; a new file of that name could be found first.
_IMPORTED = frozenset(
    {"torch", "numpy", "triton", "megatron", "transformer_engine", "apex", "deepspeed", "infrarsi_hpc"}
)
_PLAIN_MODES = (None, "100644")


def is_editable(path: str, scope: Scope) -> bool:
    """Whether a patch may change a path: covered by `editable` and not by `locked`, which wins."""
    return matches(path, scope.editable) and not is_locked(path, scope)


def is_locked(path: str, scope: Scope) -> bool:
    """Whether a path is locked. Letter case does not matter: on some file systems the two are one file."""
    return matches(path.casefold(), [glob.casefold() for glob in scope.locked])


def check_scope(diff: Diff, scope: Scope) -> list[str]:
    """Reasons why the diff leaves the scope, each naming its file; none if it stays inside."""
    reasons: list[str] = []
    for change in diff.files:
        for path in change.paths:
            reasons += _about_path(path, scope)
        reasons += _about_kind(change)
        if change.kind in ("add", "rename", "copy"):
            reasons += _about_new_file(change.path)
    seen: set[str] = set()
    for change in diff.files:
        if change.path in seen:
            reasons.append(f"{change.path} is changed by two sections of the diff")
        seen.add(change.path)
    return list(dict.fromkeys(reasons))


def _about_path(path: str, scope: Scope) -> list[str]:
    parts = path.split("/")
    if path.startswith(("/", "~")) or re.match(r"[A-Za-z]:", path):
        return [f"{path} is an absolute path; paths are relative to the project"]
    if ".." in parts:
        return [f"{path} leaves the project"]
    if "" in parts or "." in parts:
        return [f"{path} is not a plain relative path"]
    folded = [part.casefold() for part in parts]
    if folded[-1] in _OWN or not _OWN_FOLDERS.isdisjoint(folded):
        return [f"{path} belongs to infrarsi, git or Python itself; no patch changes it"]
    if is_locked(path, scope):
        return [f"{path} is locked by the contract"]
    if path.casefold() == scope.settings.casefold():
        return [f"{path} holds the launch settings; they are changed as knobs, not by patches"]
    if scope.patches is not None and matches(path, [scope.patches.rstrip("/") + "/**"]):
        return [f"{path} is in the patch library; a patch does not change patches"]
    if not matches(path, scope.editable):
        return [f"{path} is outside the editable scope ({', '.join(scope.editable)})"]
    return []


def _about_kind(change: FileChange) -> list[str]:
    path = change.path
    if change.is_symlink:
        return [f"{path} is or becomes a symbolic link"]
    if change.is_submodule:
        return [f"{path} is or becomes a submodule"]
    if change.is_binary:
        return [f"{path} is changed in binary form; only text can be reviewed"]
    if change.changes_mode or (change.kind == "add" and change.new_mode not in _PLAIN_MODES):
        return [f"{path} gets file mode {change.new_mode}; modes stay as they are, and new files are plain (100644)"]
    return []


def _about_new_file(path: str) -> list[str]:
    pure = PurePosixPath(path)
    name = pure.name.casefold()
    if name in _LOADED_UNASKED or name.endswith(_LOADED_ENDINGS):
        return [f"{path} would be loaded without being asked for"]
    if name in _TOOL_FILES:
        return [f"{path} would change how the program is built or started"]
    module = pure.parent.name if name == "__init__.py" else pure.stem
    if name.endswith(".py") and (module in _IMPORTED or module in sys.stdlib_module_names) and module != "__init__":
        return [f"{path} could be imported in place of the module {module}; give it another name"]
    return []
