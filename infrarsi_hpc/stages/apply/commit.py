"""Apply: audit what was promoted, commit it on a branch of its own, and be able to take it back.

The commit is built aside from git's own objects, so that nothing of it is seen until the branch is there; the work tree
changes in one checkout at the end. A note of what was done stands in `.infrarsi/CAMPAIGN/applied.json` before it is.

Covers: a contract, lock, locked or editable file that is not what the campaign ran; a verdict that is not believed;
patches that leave the scope, are links at HEAD, or do not apply; dirty trees; branches that are there already.
Does not cover: files outside both lists that changed since the baseline (named in the report, not refused).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from infrarsi_hpc.domain.campaign import CampaignState, PromotionResult
from infrarsi_hpc.domain.contract import Contract, Lock
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.domain.verdict import Speedup
from infrarsi_hpc.edges import git, git_commit
from infrarsi_hpc.edges.atomic import write_bytes, write_json
from infrarsi_hpc.edges.project import CAMPAIGNS, CONTRACT, lock_name
from infrarsi_hpc.edges.typed_files import read_json
from infrarsi_hpc.errors import ContractError, ProjectError
from infrarsi_hpc.stages.apply.audit import audit_campaign, audit_files, audit_repository, known_patch, patched
from infrarsi_hpc.stages.apply.text import commit_message, confirmation, settings_changes, settings_text


class Applied(BaseModel):
    """`applied.json`: what an apply did, so that it can be undone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    campaign: str
    state: Literal["applying", "applied", "reverted"]
    branch: str
    commit: str
    original_branch: str
    original_commit: str
    contract_sha256: str
    contract_file: str = CONTRACT

    @property
    def own_files(self) -> list[str]:
        """The contract and its lock."""
        return [self.contract_file, lock_name(self.contract_file)]


@dataclass(frozen=True)
class ApplyReport:
    """What apply or revert did, for people (`text`) and for `--json` (`data`)."""

    text: str
    is_done: bool
    branch: str
    commit: str | None = None
    original_branch: str | None = None
    speedup: Speedup | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    patches: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def data(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "is_done": self.is_done,
            "branch": self.branch,
            "commit": self.commit,
            "original_branch": self.original_branch,
            "speedup": self.speedup.model_dump(mode="json") if self.speedup else None,
            "settings": self.settings,
            "patches": list(self.patches),
            "notes": list(self.notes),
        }


def apply(
    project: Path,
    state: CampaignState,
    contract: Contract,
    lock: Lock,
    patches: Mapping[str, Patch],
    *,
    campaign: str,
    confirm: Callable[[str], bool],
    contract_file: str = CONTRACT,
) -> ApplyReport:
    """Commit the promoted candidate on branch `infrarsi/CAMPAIGN`, made from the current HEAD, and check it out.

    `confirm` gets the diff, the settings' changes and the evidence as text; without its consent nothing happens.

    Raises
    ------
    ProjectError
        The repository is not as the campaign left it, is dirty or detached, or has such a branch already.
    ContractError
        Contract, lock and campaign do not belong together.
    PatchError
        A patch of the winner leaves the scope or does not apply.
    """
    branch = f"infrarsi/{campaign}"
    _finish_interrupted(project, campaign)
    promoted = audit_campaign(state, contract, lock, campaign)
    original, head = audit_repository(project, lock, branch)
    notes = audit_files(project, contract, lock, head)
    chosen = [known_patch(patches, sha256) for sha256 in promoted.candidate.patches]
    contents = _new_contents(project, head, contract, promoted, chosen, contract_file)
    message = commit_message(state, contract, promoted, chosen, campaign)
    commit = git_commit.make_commit(project, head, contents, message)
    changes = settings_changes(git.show(project, head, contract.scope.settings), contract, promoted.candidate)
    if not confirm(confirmation(git.diff_between(project, head, commit), changes, message, branch, notes)):
        return ApplyReport(f"nothing was changed; {branch} was not made", is_done=False, branch=branch, notes=notes)
    record = Applied(
        campaign=campaign,
        state="applying",
        branch=branch,
        commit=commit,
        original_branch=original,
        original_commit=head,
        contract_sha256=contract.digest,
        contract_file=contract_file,
    )
    _put_in_place(project, record)
    text = f"committed {commit[:12]} on branch {branch}, which is checked out; `git checkout {original}` goes back"
    return ApplyReport(
        text=f"{text}\nnext: merge {branch}, or take it back with `infrarsi apply --revert`",
        is_done=True,
        branch=branch,
        commit=commit,
        original_branch=original,
        speedup=promoted.speedup,
        settings=dict(promoted.candidate.configuration),
        patches=promoted.candidate.patches,
        notes=notes,
    )


def revert(project: Path, *, campaign: str) -> ApplyReport:
    """Undo `apply`: leave and delete its branch, or, where its commit was merged, commit the opposite.

    The contract and the lock stay in the work tree as they are now.

    Raises
    ------
    ProjectError
        Nothing was applied, more commits stand on the branch, or later changes are in the way.
    """
    record = _read_record(project, campaign)
    if record is None or record.state == "reverted":
        raise ProjectError(
            f"campaign {campaign} is not applied here",
            why="it was reverted already" if record else "`infrarsi apply` has not been run for it in this clone",
            fix="infrarsi apply" if record is None else "nothing needs to be done",
        )
    git.require_clean(project)
    tip = git.commit_of(project, f"refs/heads/{record.branch}")
    current = git.current_branch(project)
    original = git.commit_of(project, f"refs/heads/{record.original_branch}")
    is_ours = current == record.branch and tip == record.commit and original is not None
    if is_ours and git.is_ancestor(project, record.commit, original or ""):
        _leave_branch(project, record)  # merged in the meantime: take it back there
        current = record.original_branch
    if current is not None and current != record.branch:
        merged = _merged_commit(project, record)
        if merged is not None:
            return _revert_merged(project, record, merged)
    if tip is None:
        raise ProjectError(
            f"branch {record.branch} is gone, and its commit {record.commit[:12]} is not in this branch's history",
            why="it was deleted, or merged elsewhere or as part of another commit",
            fix=f"git revert the commit that has the changes of {record.commit[:12]}, on the branch that has it",
        )
    if tip != record.commit:
        raise ProjectError(
            f"branch {record.branch} has commits on top of the one that apply made",
            why="deleting it would lose them",
            fix=f"git revert {record.commit[:12]} on that branch, or merge the branch first and revert then",
        )
    return _drop_branch(project, record, current)


# ---- the commit


def _new_contents(
    project: Path, head: str, contract: Contract, promoted: PromotionResult, chosen: Sequence[Patch], contract_file: str
) -> dict[str, bytes | None]:
    """Every file that the commit changes, with its new content."""
    contents = patched(project, head, contract, chosen)
    settings = contract.scope.settings
    contents[settings] = settings_text(git.show(project, head, settings), contract, promoted.candidate, settings)
    for name in (contract_file, lock_name(contract_file)):
        contents[name] = (project / name).read_bytes()
    return contents


def _finish_interrupted(project: Path, campaign: str) -> None:
    """A kill between note, branch and checkout: what got to the end counts, what did not is taken back."""
    record = _read_record(project, campaign)
    if record is None or record.state != "applying":
        return
    if git.current_branch(project) == record.branch:
        _write_record(project, record.model_copy(update={"state": "applied"}))
        return
    git_commit.unstage_files(project, record.own_files)
    if git.commit_of(project, f"refs/heads/{record.branch}") == record.commit:
        git_commit.delete_branch(project, record.branch, record.commit)
    _record_path(project, campaign).unlink()


def _put_in_place(project: Path, record: Applied) -> None:
    """Note, branch, checkout; whatever fails takes back what went before it."""
    if git.head_commit(project) != record.original_commit:
        raise ProjectError("HEAD moved while the commit was being looked at", fix="run the same command again")
    _write_record(project, record)
    try:
        git_commit.create_branch(project, record.branch, record.commit)
    except BaseException:
        _record_path(project, record.campaign).unlink()
        raise
    try:
        # staged as the commit has them, they are no obstacle to the checkout
        git_commit.stage_files(project, record.own_files)
        git_commit.switch_to(project, record.branch)
    except BaseException:
        _restore(project, record)
        raise
    _write_record(project, record.model_copy(update={"state": "applied"}))


def _restore(project: Path, record: Applied) -> None:
    if git.current_branch(project) == record.branch:
        _leave_branch(project, record)
    else:
        git_commit.unstage_files(project, record.own_files)
    git_commit.delete_branch(project, record.branch, record.commit)
    _record_path(project, record.campaign).unlink(missing_ok=True)


# ---- taking it back


def _merged_commit(project: Path, record: Applied) -> str | None:
    """The commit of this apply in HEAD's history, also after a rebase; none if it is not there or was reverted."""
    found = git.commits_saying(project, f"Infrarsi-Campaign: {record.campaign}")
    if record.commit in found:
        commit = record.commit
    elif found and git.has_commit(project, record.commit):
        # the same change under another digest; a squash with other changes in it is not the same
        mine = git.patch_id(project, record.commit)
        commit = next((c for c in found if git.patch_id(project, c) == mine), "")
    else:
        return None
    return None if not commit or git.commits_saying(project, f"This reverts commit {commit}") else commit


def _revert_merged(project: Path, record: Applied, commit: str) -> ApplyReport:
    kept = _set_aside(project, record.own_files)
    try:
        git_commit.revert_commit(project, commit)
    finally:
        _put_back(kept)
    if git.commit_of(project, f"refs/heads/{record.branch}") == record.commit:
        git_commit.delete_branch(project, record.branch, record.commit)
    _write_record(project, record.model_copy(update={"state": "reverted"}))
    head = git.head_commit(project)
    text = f"commit {head[:12]} takes back {commit[:12]}, which had been merged into {git.current_branch(project)}"
    return ApplyReport(
        text, is_done=True, branch=record.branch, commit=head, original_branch=git.current_branch(project)
    )


def _drop_branch(project: Path, record: Applied, current: str | None) -> ApplyReport:
    if current == record.branch:
        if git.commit_of(project, f"refs/heads/{record.original_branch}") is None:
            raise ProjectError(
                f"branch {record.original_branch}, from which {record.branch} was made, is gone",
                fix="git checkout the branch you want to be on, then run the same command again",
            )
        _leave_branch(project, record)
    git_commit.delete_branch(project, record.branch, record.commit)
    _write_record(project, record.model_copy(update={"state": "reverted"}))
    now = git.current_branch(project) or "no branch"
    text = f"branch {record.branch} was deleted; {now} is checked out as it was (the commit was {record.commit[:12]})"
    return ApplyReport(text, is_done=True, branch=record.branch, original_branch=record.original_branch)


def _leave_branch(project: Path, record: Applied) -> None:
    kept = _set_aside(project, record.own_files)
    try:
        git_commit.switch_to(project, record.original_branch)
    finally:
        _put_back(kept)


def _set_aside(project: Path, names: Sequence[str]) -> dict[Path, bytes]:
    """Contents of the product's own files, which then stand as HEAD has them, so that git may replace them."""
    kept = {project / name: (project / name).read_bytes() for name in names if (project / name).is_file()}
    tracked = git.entries_at(project, "HEAD")
    git_commit.restore_files(project, [name for name in names if name in tracked])
    return kept


def _put_back(kept: Mapping[Path, bytes]) -> None:
    for path, content in kept.items():
        if not path.is_file() or path.read_bytes() != content:
            write_bytes(path, content)


# ---- the note


def _record_path(project: Path, campaign: str) -> Path:
    return project / CAMPAIGNS / campaign / "applied.json"


def _read_record(project: Path, campaign: str) -> Applied | None:
    path = _record_path(project, campaign)
    if not path.exists():
        return None
    return read_json(path, Applied, ContractError, schema=1, fix=f"undo the commit by hand with git, and remove {path}")


def _write_record(project: Path, record: Applied) -> None:
    path = _record_path(project, record.campaign)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, record.model_dump(mode="json"))
