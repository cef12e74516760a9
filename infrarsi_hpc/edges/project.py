"""A project on disk: its contract, its lock, its patch library and its campaigns' folders."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from infrarsi_hpc.domain.contract import SCHEMA_VERSION, Contract, Lock
from infrarsi_hpc.domain.diff import Diff, parse_diff
from infrarsi_hpc.domain.diff_apply import apply_diff
from infrarsi_hpc.domain.diff_repair import repair_diff
from infrarsi_hpc.domain.noise import DoctorReport
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.edges import git
from infrarsi_hpc.edges.atomic import write_json, write_text
from infrarsi_hpc.edges.typed_files import read_json, read_toml
from infrarsi_hpc.errors import ContractError, PatchError, ProjectError, SiteError

CONTRACT = "infrarsi.toml"
LOCK = "infrarsi.lock"
CAMPAIGNS = ".infrarsi"
#: Folders beside the campaigns' own; no campaign may be called so.
DOCTOR_FOLDER, TRY_FOLDER = KEPT_NAMES = ("doctor", "try")
MAX_PATCH_BYTES = 1_000_000


class PatchEntry(BaseModel):
    """One diff of a patch library, as its author describes it."""

    model_config = ConfigDict(extra="forbid")

    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")
    title: str = Field(default="", max_length=200)
    about: str = Field(default="", max_length=2000)
    expected_time_factor: float | None = Field(default=None, gt=0)
    expected_memory_gib: float | None = None
    #: Settings under which the patch makes a difference.
    needs: dict[str, int | float | str] = {}


class PatchLibrary(BaseModel):
    """`library.toml`."""

    model_config = ConfigDict(extra="forbid")

    schema_version: int
    patch: list[PatchEntry] = []


@dataclass(frozen=True)
class Project:
    """A project with its locked contract."""

    root: Path
    contract: Contract
    lock: Lock
    contract_file: str

    def doctor_file(self, where: str = "") -> Path:
        """Where the doctor's report of this machine lies, or that of another place (a site's partition)."""
        place = f"-{where}" if where else ""
        return self.root / CAMPAIGNS / f"doctor-{self.contract.digest[:12]}{place}.json"

    def campaign_folder(self, name: str) -> Path:
        """A campaign's folder."""
        return self.root / CAMPAIGNS / name

    def doctor(self, where: str = "") -> DoctorReport | None:
        """The doctor's report for this very contract and baseline at a place, or none."""
        path = self.doctor_file(where)
        if not path.exists():
            return None
        report = read_json(
            path,
            DoctorReport,
            ContractError,
            schema=1,
            fix="run `infrarsi doctor` again; it writes it anew",
        )
        same = (report.contract_sha256, report.baseline_commit) == (self.contract.digest, self.lock.baseline_commit)
        return report if same else None


def read_contract(path: Path) -> Contract:
    """Read `infrarsi.toml` strictly."""
    return read_toml(
        path,
        Contract,
        ContractError,
        schema=SCHEMA_VERSION,
        fix=f"correct {path.name}; `infrarsi explain --kind contract {path.name}` checks it without running anything",
    )


def open_project(root: Path, contract_file: str = CONTRACT) -> Project:
    """A project whose contract is locked and still what it was.

    Raises
    ------
    ContractError
        No lock, or the contract or a locked file differs from it.
    """
    contract = read_contract(root / contract_file)
    lock_file = root / lock_name(contract_file)
    if not lock_file.exists():
        raise ContractError(
            f"{lock_file.name} does not exist", why="the contract is not locked yet", fix=f"infrarsi init {root}"
        )
    lock = read_json(lock_file, Lock, ContractError, schema=SCHEMA_VERSION, fix="write it anew: infrarsi init --relock")
    if lock.contract_sha256 != contract.digest:
        raise ContractError(
            f"{contract_file} is not what was locked",
            why=f"its digest is {contract.digest[:12]}, {lock_file.name} has {lock.contract_sha256[:12]}",
            fix="undo the edit, or lock the new contract with `infrarsi init --relock` (trials start over)",
        )
    check_locked_files(root, lock)
    return Project(root, contract, lock, contract_file)


def check_locked_files(root: Path, lock: Lock) -> None:
    """Compare the locked files at the baseline commit with their digests; refuse a changed history."""
    if not git.has_commit(root, lock.baseline_commit):
        raise ProjectError(
            f"the baseline commit {lock.baseline_commit[:12]} is gone",
            why="the history was rewritten, or this is another clone",
            fix="fetch it again, or lock the present commit with `infrarsi init --relock` (trials start over)",
        )
    found = git.digests_at(root, lock.baseline_commit, sorted(lock.locked_files))
    changed = [name for name, sha256 in lock.locked_files.items() if found.get(name) != sha256]
    if changed:
        raise ContractError(
            f"locked files are not what was locked: {', '.join(changed[:5])}",
            why="their digests at the baseline commit differ from the lock",
            fix="the lock was edited; write it anew with `infrarsi init --relock`",
        )


def campaign_ledger(root: Path, contract_file: str, name: str | None) -> Path:
    """The ledger of a campaign: the named one, or the one called as the contract is.

    Raises
    ------
    SiteError
        There is no such campaign.
    """
    name = name or read_contract(root / contract_file).name
    path = root / CAMPAIGNS / name / "ledger.jsonl"
    if not path.exists():
        known = sorted(p.parent.name for p in (root / CAMPAIGNS).glob("*/ledger.jsonl"))
        raise SiteError(
            f"there is no campaign {name}",
            why=f"this project has: {', '.join(known) or 'none yet'}",
            fix="infrarsi run starts it; --campaign NAME names another",
        )
    return path


def lock_name(contract_file: str) -> str:
    """The lock beside a contract: infrarsi.lock for infrarsi.toml, infrarsi.open.lock for infrarsi.open.toml."""
    return str(Path(contract_file).with_suffix(".lock"))


def write_lock(root: Path, contract_file: str, lock: Lock) -> None:
    """Write the lock, whole."""
    write_text(root / lock_name(contract_file), json.dumps(lock.model_dump(mode="json"), indent=1) + "\n")


def write_doctor(project: Project, report: DoctorReport, where: str = "") -> None:
    """Keep the doctor's report of a place."""
    path = project.doctor_file(where)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, report.model_dump(mode="json"))


def read_patch(path: Path, files: Mapping[str, str], entry: PatchEntry | None = None) -> tuple[Patch, tuple[str, ...]]:
    """Read one diff against the texts of the baseline's files; gives it with what had to be mended in its form.

    Raises
    ------
    PatchError
        It cannot be read, is no diff, needs a guess, or does not fit the baseline's files.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PatchError(f"{path} cannot be read", why=error.strerror or str(error), fix="check the path") from error
    if len(data) > MAX_PATCH_BYTES:
        raise PatchError(f"{path} is larger than 1 MB", why="such a file is not a diff to review", fix="split it")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PatchError(f"{path} is not UTF-8 text", fix="give a unified diff of text files") from error
    repaired = repair_diff(text, files)
    patch = Patch(
        name=path.stem,
        text=repaired.text,
        title=entry.title if entry else "",
        paths=tuple(parse_diff(repaired.text).paths),
        expected_time_factor=entry.expected_time_factor if entry else None,
        expected_memory_gib=entry.expected_memory_gib if entry else None,
        needs=tuple(entry.needs.items()) if entry else (),
    )
    return patch, repaired.notes


def baseline_texts(project: Project) -> dict[str, str]:
    """The text of every file at the baseline commit that is text."""
    files = git.files_at(project.root, project.lock.baseline_commit)
    texts = {}
    for name, data in git.contents_at(project.root, project.lock.baseline_commit, files).items():
        with contextlib.suppress(UnicodeDecodeError):
            texts[name] = data.decode("utf-8")
    return texts


def patch_library(project: Project) -> dict[str, Patch]:
    """The project's own patches by digest, in the order of `library.toml`; empty where the contract names none."""
    if project.contract.scope.patches is None:
        return {}
    folder = project.root / project.contract.scope.patches
    if not folder.is_dir():
        return {}
    index = folder / "library.toml"
    if index.exists():
        library = read_toml(index, PatchLibrary, PatchError, schema=1, fix=f"correct {index}")
        for entry in library.patch:
            _check_needs(index, entry, project.contract)
        entries: Mapping[str, PatchEntry | None] = {entry.file: entry for entry in library.patch}
    else:
        entries = {path.name: None for path in sorted(folder.glob("*.diff"))}
    texts = baseline_texts(project)
    patches = (read_patch(folder / name, texts, entry)[0] for name, entry in entries.items())
    return {patch.sha256: patch for patch in patches}


def _check_needs(index: Path, entry: PatchEntry, contract: Contract) -> None:
    for name, value in entry.needs.items():
        if name not in contract.knobs or value not in contract.knobs[name].values:
            raise PatchError(
                f"{index}: {entry.file} needs {name} = {value!r}, which the contract does not offer",
                why="it would never be tried",
                fix="correct `needs`, or add the value to the contract's knob",
            )


def conflicts(project: Project, patches: Iterable[Patch]) -> frozenset[frozenset[str]]:
    """Pairs of patches that cannot be applied together, in either order."""
    texts = baseline_texts(project)
    diffs = {patch.sha256: parse_diff(patch.text) for patch in patches}
    return frozenset(
        frozenset(pair)
        for pair in itertools.combinations(diffs, 2)
        if not _apply_together(texts, [diffs[p] for p in pair])
    )


def _apply_together(texts: dict[str, str], diffs: list[Diff]) -> bool:
    for order in itertools.permutations(diffs):
        files = dict(texts)
        try:
            for diff in order:
                changed, _ = apply_diff(files, diff)
                files = {name: text for name, text in (files | changed).items() if text is not None}
        except PatchError:
            return False
    return True
