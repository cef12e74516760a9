"""Make finished campaigns small: pack their many files into one archive each, or remove them for good.

Ledger, report and logs of the head stay. Nothing is touched that a living head holds, that an agent works on, or whose
jobs may still start; whether that is so is asked again under the campaign's own lock. Folders that `doctor` and `try`
left are removed when nobody uses them: each is emptied by the next such command anyway.

Does not cover: a job of another campaign's folder, or files that a person keeps below one of ours.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from infrarsi_hpc.edges import archive
from infrarsi_hpc.edges.atomic import site_error
from infrarsi_hpc.edges.disk_usage import DiskUsage, disk_usage, last_change
from infrarsi_hpc.edges.ledger import HEAD_LOCK, Ledger, load_state
from infrarsi_hpc.edges.lock import held
from infrarsi_hpc.edges.project import CAMPAIGNS, KEPT_NAMES
from infrarsi_hpc.errors import LedgerError, SiteError, UsageError
from infrarsi_hpc.stages.run.activity import head_of, is_at_work, open_jobs

DAY_SECONDS = 86400.0
JOBS_SUFFIX = "-jobs"
#: A folder that has no lock of its own (jobs of single commands) is taken for left behind after this.
LEFTOVER_DAYS = 1.0
CLEANED_AWAY = "its trials were removed before its end"


@dataclass(frozen=True)
class Planned:
    """What is to be done with one folder: `pack`, `delete` (the archive as well) or `remove` (a leftover folder)."""

    folder: Path
    action: Literal["pack", "delete", "remove"]
    before: DiskUsage
    is_closed: bool = True

    @property
    def name(self) -> str:
        """The folder's name, which is the campaign's."""
        return self.folder.name


@dataclass(frozen=True)
class Cleaned:
    """What was done with one folder, or why it was not."""

    plan: Planned
    after: DiskUsage
    problem: str = ""

    def data(self) -> dict[str, Any]:
        """The same as JSON-able data."""
        return {
            "name": self.plan.name,
            "action": self.plan.action,
            "before_mib": round(self.plan.before.mib, 3),
            "after_mib": round(self.after.mib, 3),
            "before_inodes": self.plan.before.num_inodes,
            "after_inodes": self.after.num_inodes,
            "problem": self.problem or None,
        }


def plan_cleaning(
    root: Path, names: Sequence[str] = (), *, older_than_days: float = 0.0, delete: bool = False
) -> list[Planned]:
    """What would be cleaned: the named folders, or every closed campaign and every leftover folder.

    Only what had no event or change for `older_than_days` counts.

    Raises
    ------
    UsageError
        There is no such campaign.
    SiteError
        A named one runs, or has jobs that may still run.
    LedgerError
        A named one's ledger is damaged.
    """
    folders = _folders(root)
    unknown = [name for name in names if name not in folders]
    if unknown:
        raise UsageError(
            f"there is no campaign {unknown[0]}",
            why=f"this project has: {', '.join(folders) or 'none yet'}",
            fix="infrarsi campaigns list",
        )
    plans = (_plan(folders[name], name in names, older_than_days, delete) for name in names or folders)
    return [plan for plan in plans if plan is not None]


def clean(plan: Planned) -> Cleaned:
    """Do what was planned for one folder, if nobody uses it by now; a problem is part of the answer."""
    problem = ""
    try:
        if plan.action == "remove":
            _remove(plan.folder)
        else:
            _clean_campaign(plan.folder, delete=plan.action == "delete")
    except (SiteError, LedgerError) as error:
        problem = f"{error.what}: {error.why}" if error.why else error.what
    return Cleaned(plan, disk_usage(plan.folder) if plan.folder.exists() else DiskUsage(), problem)


def restore(folder: Path) -> int:
    """Put a packed campaign's files back, so that it can go on; gives their number (0: it was not packed).

    Raises
    ------
    SiteError
        Another process has the campaign, or the archive cannot be unpacked.
    """
    if not (folder / archive.ARCHIVE).exists():
        return 0
    lock = folder / HEAD_LOCK
    with held(lock, wait_seconds=0.0):
        return archive.unpack(folder, on_file=lambda: os.utime(lock))


def _folders(root: Path) -> dict[str, Path]:
    """Folders that may be cleaned, by name: campaigns, and what other commands left."""
    found = sorted(path for path in (root / CAMPAIGNS).glob("*") if path.is_dir())
    return {path.name: path for path in found if _is_campaign(path) or _is_leftover(path)}


def _is_campaign(folder: Path) -> bool:
    return (folder / "ledger.jsonl").exists()


def _is_leftover(folder: Path) -> bool:
    is_ours = folder.name in KEPT_NAMES or folder.name.endswith(JOBS_SUFFIX)
    return is_ours and not folder.is_symlink() and not _is_campaign(folder)


def _plan(folder: Path, is_named: bool, older_than_days: float, delete: bool) -> Planned | None:
    if _is_leftover(folder):
        has_lock = folder.name in KEPT_NAMES
        days = older_than_days if is_named and has_lock else max(older_than_days, LEFTOVER_DAYS)
        is_idle = _age_days(last_change(folder)) >= days and not is_at_work(folder)
        return Planned(folder, "remove", disk_usage(folder)) if is_idle else None
    try:
        state = load_state(folder / "ledger.jsonl")
        if is_named:
            _refuse_if_used(folder)
    except LedgerError:
        if is_named:
            raise
        return None
    is_wanted = is_named or (state.closed is not None and head_of(folder) is None)
    has_any = bool(archive.parts(folder)) or (delete and (folder / archive.ARCHIVE).exists())
    if not is_wanted or not has_any or _age_days(state.last_time) < older_than_days:
        return None
    return Planned(folder, "delete" if delete else "pack", disk_usage(folder), state.closed is not None)


def _age_days(then: float) -> float:
    return max(0.0, time.time() - then) / DAY_SECONDS


def _refuse_if_used(folder: Path, *, is_mine: bool = False) -> None:
    """Refuse what a head (another than this process) has, an agent works on, or Slurm may still start."""
    head = None if is_mine else head_of(folder)
    if head is not None:
        raise SiteError(
            f"campaign {folder.name} is running ({head})",
            why="its head needs these files",
            fix=f"wait for its end, or stop it: infrarsi cancel --campaign {folder.name}",
        )
    jobs = open_jobs(folder, load_state(folder / "ledger.jsonl"))
    if jobs or is_at_work(folder):
        numbers = ", ".join(f"{job.kind} {job.id}".strip() for job in jobs) or "an agent's heartbeat"
        raise SiteError(
            f"campaign {folder.name} has trials that may still run",
            why=f"open: {numbers}",
            fix=f"take them in with `infrarsi campaigns resume {folder.name} --once`, "
            f"or stop them: infrarsi cancel --campaign {folder.name}",
        )


def _clean_campaign(folder: Path, *, delete: bool) -> None:
    with Ledger(folder / "ledger.jsonl") as ledger:  # its lock: no head can start meanwhile
        _refuse_if_used(folder, is_mine=True)
        if not delete:
            archive.pack(folder, on_file=ledger.keep_alive)
            return
        if ledger.state.closed is None:  # without its trials it could not go on
            ledger.append("closed", reason=CLEANED_AWAY)
        archive.remove_all(folder)


def _remove(folder: Path) -> None:
    lock = folder.parent / f"{folder.name}.lock"
    with held(lock, wait_seconds=0.0) if folder.name in KEPT_NAMES else nullcontext():
        if is_at_work(folder):
            raise SiteError(f"{folder} is in use", why="an agent works below it", fix="wait for its end")
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise site_error(folder, error) from error
