"""Init: a contract that says what may change and what must not, checked against the project, then locked."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path

from infrarsi_hpc import __version__
from infrarsi_hpc.domain.contract import Contract, Lock
from infrarsi_hpc.domain.globs import matches
from infrarsi_hpc.edges import git
from infrarsi_hpc.edges.project import CAMPAIGNS, lock_name, read_contract, write_lock
from infrarsi_hpc.errors import ContractError, ProjectError
from infrarsi_hpc.stages.draft import draft_contract

LIBRARIES = ("torch", "megatron-core", "numpy", "scipy", "submitit")


def write_contract(root: Path, contract_file: str, goal: str) -> list[str] | None:
    """Write a first contract for a project that has none; gives remarks on what was guessed, or none if there is one.

    Raises
    ------
    ProjectError
        The folder is no git repository with a commit, or nothing in it looks like a training program.
    """
    git.head_commit(_root(root))
    if (root / contract_file).exists():
        return None
    draft = draft_contract(root, contract_file, goal)
    return draft.remarks


def lock_project(root: Path, contract_file: str, *, relock: bool = False) -> Lock:
    """Check the contract against the project and lock both.

    Raises
    ------
    ProjectError
        The tree is dirty, or what the contract names is not there.
    ContractError
        The contract contradicts itself or the project, or another lock stands already.
    """
    contract = read_contract(_root(root) / contract_file)
    dirty = git.dirty_files(root)
    if dirty:
        raise ProjectError(
            f"the work tree has uncommitted changes: {', '.join(dirty[:5])}",
            why="trials run the baseline commit, and what is not committed would silently be left out",
            fix="git add and commit them, or git stash; then run `infrarsi init` again",
        )
    commit = git.head_commit(root)
    files = git.files_at(root, commit)
    lock = make_lock(root, contract_file, contract, commit, files)
    _check_settings(root, contract)
    _check_program(contract, files)
    existing = root / lock_name(contract_file)
    if existing.exists() and not relock:
        _check_unchanged(existing, lock)
    write_lock(root, contract_file, lock)
    git.ignore(root, f"{CAMPAIGNS}/")
    return lock


def make_lock(root: Path, contract_file: str, contract: Contract, commit: str, files: Sequence[str]) -> Lock:
    """The lock of a contract at a commit."""
    editable = [f for f in files if matches(f, contract.scope.editable)]
    locked = [f for f in files if matches(f, contract.scope.locked)]
    harness = [contract_file, lock_name(contract_file), f"{CAMPAIGNS}/x", "infrarsi.toml", "infrarsi.lock"]
    covered = [name for name in harness if matches(name, contract.scope.editable)]
    if covered:
        raise ContractError(
            f"an editable glob covers the contract or the harness: {covered[0]}",
            why="what a patch may change must not include what it is judged by",
            fix="narrow scope.editable, for example to train/*.py",
        )
    both = sorted(set(editable) & set(locked))
    if both:
        editable = [f for f in editable if f not in set(both)]
    for name, globs in (("editable", contract.scope.editable), ("locked", contract.scope.locked)):
        idle = [glob for glob in globs if glob not in harness and not any(matches(f, [glob]) for f in files)]
        if idle:
            raise ContractError(
                f"scope.{name} has {idle[0]!r}, which matches no committed file",
                why="a glob that matches nothing protects nothing",
                fix="correct it, or commit the file",
            )
    if not editable:
        raise ContractError(
            "no file is editable",
            why="every file that scope.editable matches is locked as well",
            fix="correct the scope",
        )
    return Lock(
        contract_sha256=contract.digest,
        baseline_commit=commit,
        locked_files={n: d for n, d in git.digests_at(root, commit, locked).items() if n not in harness},
        editable_files=tuple(editable),
        versions=_versions(),
    )


def _root(root: Path) -> Path:
    top = git.repository_root(root)
    if top.resolve() != root.resolve():
        raise ProjectError(
            f"{root} is inside the repository {top}, not its top folder",
            why="scope and patches are relative to the repository's top",
            fix=f"infrarsi init {top}",
        )
    return root


def _check_settings(root: Path, contract: Contract) -> None:
    """The settings file must say what the contract calls the baseline."""
    path = root / contract.scope.settings
    try:
        table = tomllib.loads(path.read_text("utf-8")).get("settings")
    except FileNotFoundError:
        raise ContractError(
            f"scope.settings names {contract.scope.settings}, which does not exist",
            why="`infrarsi apply` writes the settings that won into this file",
            fix=f"create {contract.scope.settings} with a [settings] table that your program reads, and commit it",
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ContractError(f"{path} cannot be read as TOML", why=str(error), fix="correct the file") from error
    if not isinstance(table, dict):
        raise ContractError(f"{path} has no [settings] table", fix="add one with a line for each knob")
    unknown = sorted(set(table) - set(contract.knobs))
    if unknown:
        raise ContractError(
            f"{contract.scope.settings} sets {unknown[0]!r}, which is no knob of the contract",
            why="a setting that is not a knob would be left at whatever the file says",
            fix=f"add [knobs.{unknown[0]}] to the contract, or take the line out",
        )
    for name, knob in contract.knobs.items():
        if name in table and table[name] != knob.baseline:
            raise ContractError(
                f"{contract.scope.settings} has {name} = {table[name]!r}, the contract's baseline is {knob.baseline!r}",
                why="the baseline must be what the program does today",
                fix="make the two say the same",
            )


def _check_program(contract: Contract, files: Sequence[str]) -> None:
    command = contract.workload.command
    if command[0] not in ("python", "python3"):
        raise ContractError(
            f"workload.command begins with {command[0]!r}",
            why="trials start their program from a Python that has its imports done",
            fix='write ["python", "-m", "package"] or ["python", "script.py"]; workload.python says which Python',
        )
    if len(command) > 2 and command[1] == "-m":
        module = command[2].replace(".", "/")
        expected: tuple[str, ...] = (f"{module}.py", f"{module}/__main__.py")
    else:
        expected = (command[1],)
    if not any(name in files for name in expected):
        raise ContractError(
            f"workload.command starts {' '.join(command[1:3])}, but {' or '.join(expected)} is not committed",
            fix="correct workload.command, or commit the file",
        )
    python = contract.workload.python
    if python and shutil.which(python) is None:
        raise ContractError(f"workload.python is {python}, which cannot be run", fix="correct the path")


def _check_unchanged(existing: Path, lock: Lock) -> None:
    try:
        before = Lock.model_validate_json(existing.read_bytes())
    except ValueError as error:
        raise ContractError(
            f"{existing.name} is damaged", why=str(error).splitlines()[0], fix="write it anew: infrarsi init --relock"
        ) from error
    same = (before.contract_sha256, before.baseline_commit) == (lock.contract_sha256, lock.baseline_commit)
    if not same:
        what = "the contract" if before.contract_sha256 != lock.contract_sha256 else "the code"
        raise ContractError(
            f"{what} changed since it was locked",
            why="campaigns under the old lock cannot be compared with what would follow",
            fix="infrarsi init --relock locks what is there now; the old campaigns stay readable",
        )


def _versions() -> dict[str, str]:
    versions = {"infrarsi-hpc": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
