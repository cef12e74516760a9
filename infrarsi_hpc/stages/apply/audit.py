"""What must hold before a winner is committed: the campaign, the repository, its files and its patches, in that order.

Each audit ends in an error that says what differs and what to do; none changes anything.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from infrarsi_hpc.domain.campaign import CampaignState, PromotionResult, TrialRecord
from infrarsi_hpc.domain.contract import Contract, Lock
from infrarsi_hpc.domain.diff import Diff, parse_diff
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.edges import git
from infrarsi_hpc.errors import ContractError, PatchError, ProjectError
from infrarsi_hpc.verify.promotion import paired_speedup
from infrarsi_hpc.verify.scope import check_scope


def audit_campaign(state: CampaignState, contract: Contract, lock: Lock, campaign: str) -> PromotionResult:
    """The campaign's winner, if it ran under this very contract and baseline and its verdict is believed."""
    opened = state.opened
    if opened is None:
        raise ProjectError(f"campaign {campaign} has no beginning in its ledger", fix="infrarsi run")
    if opened["campaign"] != campaign:
        raise ProjectError(
            f"the ledger of campaign {campaign} belongs to {opened['campaign']}", fix="infrarsi campaigns"
        )
    digests = {"the contract": contract.digest, "the lock": lock.contract_sha256, "campaign": opened["contract_sha256"]}
    if len(set(digests.values())) > 1:
        raise ContractError(
            f"campaign {campaign} ran under another contract",
            why="; ".join(f"{who} has digest {digest[:12]}" for who, digest in digests.items()),
            fix="put the contract and the lock of that campaign back (git log infrarsi.toml), or run a new campaign",
        )
    if opened["baseline_commit"] != lock.baseline_commit:
        raise ContractError(
            f"campaign {campaign} measured against another baseline",
            why=f"it ran on commit {opened['baseline_commit'][:12]}, the lock has {lock.baseline_commit[:12]}",
            fix="run a new campaign against the present baseline",
        )
    promoted = state.promoted()
    if promoted is None or promoted.speedup is None:
        reasons = [reason for p in state.promotions for reason in p.verdict.reasons]
        raise ProjectError(
            f"campaign {campaign} has no promoted candidate",
            why="; ".join(reasons[:3])
            or ("it is not finished" if state.closed is None else "no candidate got that far"),
            fix="infrarsi report shows what was measured; infrarsi run goes on or starts a longer campaign",
        )
    if promoted.speedup.low <= contract.measurement.min_speedup:
        raise ProjectError(
            f"the promoted speedup is {promoted.speedup}, which does not prove {contract.measurement.min_speedup:.3f}x",
            why="the lower end of its interval does not exceed the contract's min_speedup: the ledger was altered",
            fix="infrarsi run with a new campaign",
        )
    _audit_evidence(state, promoted)
    for name, value in promoted.candidate.configuration.items():
        if name not in contract.knobs or value not in contract.knobs[name].values:
            raise ContractError(
                f"the winner sets {name} = {value!r}, which the contract does not list", fix="infrarsi run"
            )
    return promoted


def _audit_evidence(state: CampaignState, promoted: PromotionResult) -> None:
    """The runs in the ledger must give the promoted speedup again, and every one of the winner's must be believed."""
    assert promoted.speedup is not None
    arms: dict[int, dict[str, TrialRecord]] = {}
    for trial in state.trials.values():
        if trial.plan.finalist == promoted.candidate.id and trial.plan.pair is not None and trial.plan.arm is not None:
            arms.setdefault(trial.plan.pair, {})[trial.plan.arm] = trial
    seconds: list[tuple[float, float]] = []
    for pair in arms.values():
        winner = pair.get("candidate")
        if winner is not None and (winner.verdict is None or not winner.verdict.is_believed):
            reasons = winner.verdict.reasons if winner.verdict is not None else ("it was never judged",)
            raise ProjectError(
                f"promotion run {winner.plan.trial} of the winner is not believed",
                why="; ".join(reasons),
                fix="infrarsi report shows its evidence; run a new campaign",
            )
        slopes = [pair[arm].reading for arm in ("baseline", "candidate") if arm in pair]
        times = [reading.slope_seconds for reading in slopes if reading is not None and reading.slope_seconds]
        if len(times) == 2:
            seconds.append((times[0], times[1]))
    again = paired_speedup([b for b, _ in seconds], [c for _, c in seconds], promoted.speedup.confidence)
    if again is None or not math.isclose(again.ratio, promoted.speedup.ratio, rel_tol=1e-6):
        raise ProjectError(
            f"the ledger says {promoted.speedup}, its runs say {again or 'nothing'}",
            why="the ledger was altered, or is not complete",
            fix="run a new campaign",
        )


def audit_repository(project: Path, lock: Lock, branch: str) -> tuple[str, str]:
    """The branch that is checked out and the commit to build on, in a clean tree that has the baseline in its past."""
    if git.repository_root(project).resolve() != project.resolve():
        raise ProjectError(f"{project} is not the top folder of its repository", fix="run it in the top folder")
    head = git.head_commit(project)
    current = git.current_branch(project)
    if current is None:
        raise ProjectError(
            "HEAD is detached: no branch is checked out",
            why="revert would not know where to go back to",
            fix="git checkout BRANCH, or git checkout -b NAME to name this place",
        )
    if current == branch:
        raise ProjectError(
            f"{branch} is checked out: this campaign is applied", fix="infrarsi apply --revert undoes it"
        )
    if git.commit_of(project, f"refs/heads/{branch}") is not None:
        raise ProjectError(
            f"branch {branch} exists already",
            why="an earlier apply made it",
            fix=f"infrarsi apply --revert, or git branch -D {branch} if it is not wanted",
        )
    git.require_clean(project)
    git.identity(project)
    if not git.has_commit(project, lock.baseline_commit):
        raise ProjectError(
            f"the baseline commit {lock.baseline_commit[:12]} is gone",
            why="the history was rewritten, or this is another clone",
            fix="git fetch it, or run a new campaign after `infrarsi init --relock`",
        )
    if not git.is_ancestor(project, lock.baseline_commit, head):
        raise ProjectError(
            f"{current} does not contain the baseline commit {lock.baseline_commit[:12]}",
            why="the speedup was measured against that code, not against what is checked out",
            fix="git checkout the branch that has it",
        )
    return current, head


def audit_files(project: Path, contract: Contract, lock: Lock, head: str) -> tuple[str, ...]:
    """Locked and editable files must be what was measured; gives a note on other changes since then."""
    for where, found in (
        ("at the baseline commit", git.digests_at(project, lock.baseline_commit, lock.locked_files)),
        ("at HEAD", git.digests_at(project, head, lock.locked_files)),
        ("in the work tree", _digests_in_tree(project, lock.locked_files)),
    ):
        changed = [path for path, sha256 in lock.locked_files.items() if found.get(path) != sha256]
        if changed:
            raise ProjectError(
                f"locked files are not what was locked, {where}: {', '.join(changed[:5])}",
                why="the speedup holds for the locked ones only",
                fix="put them back (git checkout), or lock anew with `infrarsi init --relock` and run a campaign",
            )
    changed_since = git.changed_files(project, lock.baseline_commit, head)
    editable = sorted(set(changed_since) & set(lock.editable_files))
    if editable:
        raise ProjectError(
            f"files that patches may change were changed since the baseline: {', '.join(editable[:5])}",
            why="the speedup was measured without these changes",
            fix="git revert them, or lock anew with `infrarsi init --relock` and run a campaign",
        )
    others = [path for path in changed_since if path != contract.scope.settings and not path.startswith("infrarsi.")]
    if not others:
        return ()
    return (f"changed since the baseline, outside the contract's scope: {', '.join(others[:8])}",)


def _digests_in_tree(project: Path, paths: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for path in paths:
        file = project / path
        if file.is_file() and not file.is_symlink():
            found[path] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def known_patch(patches: Mapping[str, Patch], sha256: str) -> Patch:
    """The winner's patch whose text has exactly the digest that was measured."""
    patch = patches.get(sha256)
    if patch is None or patch.sha256 != sha256:
        raise PatchError(
            f"patch {sha256[:12]} of the winner is {'missing' if patch is None else 'not what its name says'}",
            why="its text does not have the digest that was measured",
            fix="put the patch library back as it was during the campaign",
        )
    return patch


def patched(project: Path, head: str, contract: Contract, chosen: Sequence[Patch]) -> dict[str, bytes | None]:
    """Contents after the patches, by path (none: deleted), applied by git in this order as in the trials.

    Raises
    ------
    PatchError
        A patch leaves the scope, touches a link or a file that is not committed, or does not apply.
    """
    diffs = [parse_diff(patch.text) for patch in chosen]
    paths = list(dict.fromkeys(path for diff in diffs for path in diff.paths))
    before = git.contents_at(project, head, paths)
    entries = git.entries_at(project, head)
    with tempfile.TemporaryDirectory(prefix="infrarsi-") as scratch:
        folder = Path(scratch)
        for path, content in before.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        for patch, diff in zip(chosen, diffs, strict=True):
            reasons = check_scope(diff, contract.scope) + _unfit_paths(project, folder, entries, diff)
            if reasons:
                raise PatchError(f"patch {patch.name} may not be applied", why="; ".join(reasons), fix="infrarsi run")
            try:
                git.apply_patch(folder, patch.text)
            except PatchError as error:
                raise PatchError(f"patch {patch.name}: {error.what}", why=error.why, fix=error.fix) from error
        return {path: (folder / path).read_bytes() if (folder / path).is_file() else None for path in paths}


def _unfit_paths(project: Path, folder: Path, entries: Mapping[str, git.Entry], diff: Diff) -> list[str]:
    reasons = []
    for path in diff.paths:
        parts = path.split("/")
        above = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
        if not all(entries[name].is_plain for name in above if name in entries):
            reasons.append(f"{path} is or lies behind a link or submodule")
        # the work tree is clean, so a file that HEAD lacks is one that git was told to ignore
        elif path not in entries and not (folder / path).exists() and (project / path).exists():
            reasons.append(f"{path} exists, but is not committed")
    return reasons
