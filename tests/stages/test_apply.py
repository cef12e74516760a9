"""Apply on real repositories: what is committed, what is refused, and that nothing is ever half-done."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infrarsi_hpc.domain.campaign import CampaignState, PlannedTrial, PromotionResult, TrialRecord
from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.contract import Contract, Lock
from infrarsi_hpc.domain.outcome import Ending, Outcome
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.domain.reading import Reading
from infrarsi_hpc.domain.verdict import Belief, Speedup, Verdict
from infrarsi_hpc.edges import git, git_commit
from infrarsi_hpc.errors import ContractError, InfrarsiError, PatchError, ProjectError
from infrarsi_hpc.stages.apply.commit import ApplyReport, apply, revert

LAUNCH = """# How the training is launched.
schema_version = 1

[settings]
micro_batch = 1   # sequences at a time
precision = "fp32"
"""
MODEL = "a = 1\nb = 2\nc = 3\n"
PATCH_TEXT = "--- a/train/model.py\n+++ b/train/model.py\n@@ -1,3 +1,3 @@\n a = 1\n-b = 2\n+b = 20\n c = 3\n"
NEW_TEXT = "--- /dev/null\n+++ b/train/fast.py\n@@ -0,0 +1,1 @@\n+fast = True\n"
PATCHES = {p.sha256: p for p in (Patch(name="fuse", text=PATCH_TEXT, title="Fuse b"), Patch(name="new", text=NEW_TEXT))}
BELIEVED = Verdict(belief=Belief.BELIEVED)


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def trial(name: str, **values: Any) -> TrialRecord:
    candidate = values.pop("candidate")
    plan = {k: values.pop(k) for k in ("finalist", "pair", "arm") if k in values}
    record = TrialRecord(
        PlannedTrial(trial=name, candidate=candidate, lengths=(6, 24), seed=1, **plan),
        purpose=values.pop("purpose", "verify"),
        round=1,
        ending=Ending(outcome=values.pop("outcome", Outcome.OK)),
        verdict=values.pop("verdict", BELIEVED),
        device_seconds=600.0,
    )
    record.reading = Reading(slope_seconds=values.pop("seconds", None))
    return record


@dataclass
class World:
    """A project after a campaign, ready to be applied."""

    root: Path
    contract: Contract
    lock: Lock
    state: CampaignState
    asked: list[str]

    def apply(self, *, agrees: bool = True, **changes: Any) -> ApplyReport:
        def confirm(text: str) -> bool:
            self.asked.append(text)
            return agrees

        values = {"state": self.state, "contract": self.contract, "lock": self.lock, "patches": PATCHES} | changes
        return apply(self.root, **values, campaign="best", confirm=confirm)

    def revert(self) -> ApplyReport:
        return revert(self.root, campaign="best")

    def picture(self) -> dict[str, Any]:
        """Everything a user could see: branches, HEAD, index, and every file of the work tree."""
        files = {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and ".git" not in path.parts and ".infrarsi" not in path.parts
        }
        return {
            "head": run(self.root, "symbolic-ref", "HEAD"),
            "branches": run(self.root, "for-each-ref", "refs/heads"),
            "status": run(self.root, "status", "--porcelain"),
            "files": files,
        }


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    root = tmp_path / "project"
    (root / "train").mkdir(parents=True)
    (root / "train/model.py").write_text(MODEL)
    (root / "train/loop.py").write_text("loop\n")
    (root / "launch.toml").write_text(LAUNCH)
    (root / "README.md").write_text("readme\n")
    run(root, "init", "-q", "-b", "main")
    run(root, "config", "user.name", "A Person")
    run(root, "config", "user.email", "person@example.org")
    run(root, "add", "-A")
    run(root, "commit", "-q", "-m", "first")
    git.ignore(root, ".infrarsi/")
    (root / "infrarsi.toml").write_text("# the contract\n")
    (root / "infrarsi.lock").write_text("{}\n")
    shape = dict.fromkeys(
        ("layers", "hidden", "heads", "feed_forward", "vocabulary", "sequence_length", "global_batch"), 8
    )
    contract = Contract.model_validate(
        {
            "schema_version": 1,
            "name": "tiny",
            "scope": {"editable": ["train/**"], "locked": ["train/loop.py"], "settings": "launch.toml"},
            "workload": {
                "kind": "torch-gpt",
                "command": ["python", "-m", "train", "{steps}", "{seed}"],
                "shape": shape,
            },
            "knobs": {
                "micro_batch": {"values": [1, 2, 4], "baseline": 1, "flag": "--micro-batch"},
                "precision": {"values": ["fp32", "bf16"], "baseline": "fp32", "flag": "--precision"},
                "threads": {"values": [1, 2], "baseline": 1, "flag": "--threads"},
            },
        }
    )
    head = git.head_commit(root)
    lock = Lock(
        contract_sha256=contract.digest,
        baseline_commit=head,
        locked_files=git.digests_at(root, head, ["train/loop.py"]),
        editable_files=("train/model.py",),
        versions={},
    )
    return World(root, contract, lock, _state(contract, head), [])


def _state(contract: Contract, head: str) -> CampaignState:
    settings = {"micro_batch": 4, "precision": "bf16", "threads": 1}
    winner = Candidate(configuration=settings, patches=tuple(PATCHES))
    baseline = Candidate(configuration=contract.knob_set.baseline())
    state = CampaignState()
    state.opened = {
        "campaign": "best",
        "contract_sha256": contract.digest,
        "baseline_commit": head,
        "doctor": {"between_run_cv": 0.021, "within_run_cv": 0.013, "device_key": "cpu-two-cores"},
    }
    for pair in (1, 2, 3, 4):
        for arm, candidate, seconds in (("baseline", baseline, 0.2), ("candidate", winner, 0.1)):
            name = f"v{pair}{arm[0]}"
            own = {"finalist": winner.id, "pair": pair, "arm": arm}
            state.trials[name] = trial(name, candidate=candidate, seconds=seconds, **own)
    state.trials["t1"] = trial("t1", candidate=winner, purpose="search", outcome=Outcome.DEVICE_OOM)
    state.promotions = [
        PromotionResult(
            candidate=winner,
            speedup=Speedup(ratio=2.0, low=1.8, high=2.2, confidence=0.95, num_pairs=4),
            verdict=Verdict(belief=Belief.BELIEVED, labels=("precision changed: fp32 -> bf16",)),
            baseline_seconds=0.2,
            candidate_seconds=0.1,
        )
    ]
    return state


# ---- what is committed


def test_the_winner_is_committed_on_its_own_branch_with_its_evidence(world: World) -> None:
    before = git.head_commit(world.root)
    report = world.apply()
    assert report.is_done
    assert git.current_branch(world.root) == "infrarsi/best"
    assert git.head_commit(world.root) == report.commit
    assert git.parents_of(world.root, report.commit or "") == [before]
    assert not git.is_dirty(world.root)
    assert (world.root / "train/model.py").read_text() == MODEL.replace("b = 2", "b = 20")
    assert (world.root / "train/fast.py").read_text() == "fast = True\n"
    assert git.changed_files(world.root, before, report.commit or "") == [
        "infrarsi.lock", "infrarsi.toml", "launch.toml", "train/fast.py", "train/model.py"
    ]  # fmt: skip
    message = run(world.root, "log", "-1", "--format=%B")
    for words in (
        "Train at least 1.80x faster: micro_batch 4, precision bf16, 2 patches",
        "in 4 interleaved pairs of runs: 2.000x [1.800, 2.200]",
        "95% confidence interval",
        "Step time 200 ms before, 100 ms after",
        "Noise on cpu-two-cores: 1.3% between steps, 2.1% between runs",
        "micro_batch: 1 -> 4",
        f"Fuse b (sha256 {next(iter(PATCHES))[:16]})",
        "precision changed: fp32 -> bf16",
        "Cost: 1.5 device-hours over 9 trials (8 ok, 1 device_oom)",
        "Infrarsi-Campaign: best",
        f"Infrarsi-Contract: {world.contract.digest}",
    ):
        assert words in message


def test_settings_are_written_among_the_comments_and_unread_knobs_stay_out(world: World) -> None:
    world.apply()
    assert (world.root / "launch.toml").read_text() == LAUNCH.replace("micro_batch = 1 ", "micro_batch = 4 ").replace(
        '"fp32"', '"bf16"'
    )


def test_before_anything_happens_diff_settings_and_evidence_are_shown(world: World) -> None:
    before = world.picture()
    report = world.apply(agrees=False)
    assert not report.is_done
    assert world.picture() == before
    for words in ("+b = 20", "micro_batch: 1 -> 4", "commit on branch infrarsi/best", "Infrarsi-Campaign: best"):
        assert words in world.asked[0]


def test_the_report_is_json(world: World) -> None:
    data = world.apply().data
    assert json.loads(json.dumps(data)) == data
    assert data["speedup"]["low"] == 1.8


def test_changes_outside_the_contracts_scope_are_named_not_refused(world: World) -> None:
    (world.root / "README.md").write_text("better\n")
    run(world.root, "commit", "-qam", "readme")
    report = world.apply()
    assert report.notes == ("changed since the baseline, outside the contract's scope: README.md",)
    assert "README.md" in world.asked[0]


# ---- audits


def _commit(path: str, text: str) -> Callable[[World], None]:
    def change(world: World) -> None:
        (world.root / path).write_text(text)
        run(world.root, "commit", "-qam", "later")

    return change


def _write(path: str, text: str) -> Callable[[World], None]:
    return lambda world: (world.root / path).write_text(text) and None


def _opened(**changes: Any) -> Callable[[World], None]:
    return lambda world: (world.state.opened or {}).update(changes)


def _promoted(**changes: Any) -> Callable[[World], None]:
    def change(world: World) -> None:
        world.state.promotions = [world.state.promotions[0].model_copy(update=changes)]

    return change


def _orphan(world: World) -> None:
    run(world.root, "checkout", "-q", "--orphan", "other")
    run(world.root, "commit", "-qm", "another beginning")


def _undecided_run(world: World) -> None:
    world.state.trials["v2c"].verdict = Verdict(belief=Belief.UNDECIDED, reasons=("no dtypes were seen",))


def _settings(world: World) -> None:
    winner = world.state.promotions[0].candidate
    configuration = {**winner.configuration, "micro_batch": 3}
    _promoted(candidate=winner.model_copy(update={"configuration": configuration}))(world)


def _link(world: World) -> None:
    (world.root / "train/fast.py").symlink_to("../README.md")
    run(world.root, "add", "-A", "train")
    run(world.root, "commit", "-qm", "link")


def _ignored(world: World) -> None:
    git.ignore(world.root, "train/fast.py")
    (world.root / "train/fast.py").write_text("mine")


def _nobody(world: World) -> None:
    run(world.root, "config", "--unset", "user.name")
    run(world.root, "config", "user.useConfigOnly", "true")


REFUSALS: list[tuple[str, Callable[[World], Any], type[InfrarsiError], str]] = [
    ("dirty", _write("train/model.py", "x"), ProjectError, "uncommitted changes: train/model.py"),
    ("detached", lambda w: run(w.root, "checkout", "-q", "--detach"), ProjectError, "HEAD is detached"),
    ("locked file changed", _commit("train/loop.py", "faster\n"), ProjectError, "not what was locked, at HEAD"),
    ("editable file changed", _commit("train/model.py", "x\n"), ProjectError, "were changed since the baseline"),
    ("another history", _orphan, ProjectError, "does not contain the baseline commit"),
    ("branch exists", lambda w: run(w.root, "branch", "infrarsi/best"), ProjectError, "exists already"),
    ("another contract", _opened(contract_sha256="0" * 64), ContractError, "ran under another contract"),
    ("another baseline", _opened(baseline_commit="0" * 40), ContractError, "another baseline"),
    ("another campaign", _opened(campaign="worst"), ProjectError, "belongs to worst"),
    ("nobody promoted", lambda w: w.state.promotions.clear(), ProjectError, "no promoted candidate"),
    ("not believed", _promoted(verdict=Verdict(belief=Belief.UNDECIDED)), ProjectError, "no promoted candidate"),
    (
        "bound too low",
        _promoted(speedup=Speedup(ratio=2.0, low=1.0, high=4.0, confidence=0.95, num_pairs=4)),
        ProjectError,
        "does not prove 1.010x",
    ),
    (
        "a claim that its runs do not give",
        _promoted(speedup=Speedup(ratio=3.0, low=2.8, high=3.2, confidence=0.95, num_pairs=4)),
        ProjectError,
        "its runs say 2.000x",
    ),
    ("a run that is not believed", _undecided_run, ProjectError, "promotion run v2c of the winner is not believed"),
    ("settings in broken TOML", _commit("launch.toml", "[settings\n"), ProjectError, "launch.toml is not valid TOML"),
    ("settings that are no table", _commit("launch.toml", "settings = 1\n"), ProjectError, "is not a table"),
    ("a file in the way", _ignored, PatchError, "patch new may not be applied"),
    ("who", _nobody, ProjectError, "does not know who you are"),
]


@pytest.mark.parametrize(("change", "kind", "words"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_an_audit_that_fails_refuses_and_changes_nothing(change, kind, words, world: World) -> None:
    change(world)
    before = (
        run(world.root, "for-each-ref"),
        run(world.root, "status", "--porcelain"),
        run(world.root, "rev-parse", "HEAD"),
    )
    with pytest.raises(kind) as error:
        world.apply()
    assert words in str(error.value)
    assert error.value.fix
    after = (
        run(world.root, "for-each-ref"),
        run(world.root, "status", "--porcelain"),
        run(world.root, "rev-parse", "HEAD"),
    )
    assert after == before
    assert world.asked == []


def test_settings_that_the_contract_does_not_list_are_refused(world: World) -> None:
    """The identity of the candidate changes with them, so its runs are no longer found."""
    _settings(world)
    with pytest.raises(ProjectError):
        world.apply()


def test_a_patch_that_is_not_what_was_measured_is_refused(world: World) -> None:
    sha256 = next(iter(PATCHES))
    other = Patch(name="fuse", text=PATCH_TEXT.replace("b = 20", "b = 30"))
    with pytest.raises(PatchError, match="is not what its name says"):
        world.apply(patches=PATCHES | {sha256: other})
    with pytest.raises(PatchError, match="is missing"):
        world.apply(patches={})


def test_a_patch_through_a_link_is_refused(world: World) -> None:
    _link(world)
    with pytest.raises(PatchError, match="may not be applied") as error:
        world.apply()
    assert "link" in error.value.why


def test_a_patch_outside_the_scope_is_refused_even_if_the_ledger_promoted_it(world: World) -> None:
    narrow = world.contract.model_copy(
        update={"scope": world.contract.scope.model_copy(update={"editable": ("x/**",)})}
    )
    world.lock = world.lock.model_copy(update={"contract_sha256": narrow.digest})
    _opened(contract_sha256=narrow.digest)(world)
    with pytest.raises(PatchError) as error:
        world.apply(contract=narrow)
    assert "outside the editable scope" in error.value.why


def test_a_failure_at_the_last_moment_leaves_everything_as_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = world.picture()

    def fail(*_: object) -> None:
        raise ProjectError("git checkout failed")

    monkeypatch.setattr(git_commit, "switch_to", fail)
    with pytest.raises(ProjectError, match="checkout failed"):
        world.apply()
    assert world.picture() == before
    assert not (world.root / ".infrarsi/best/applied.json").exists()


def test_a_kill_between_branch_and_checkout_is_made_good_by_the_next_apply(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(git_commit, "switch_to", die)
        patched.setattr("infrarsi_hpc.stages.apply.commit._restore", lambda *_: None)
        with pytest.raises(Killed):
            world.apply()
    assert git.commit_of(world.root, "refs/heads/infrarsi/best") is not None, "the branch is there, the checkout is not"
    assert git.current_branch(world.root) == "main"
    report = world.apply()
    assert report.is_done
    assert git.current_branch(world.root) == "infrarsi/best"


# ---- taking it back


def test_apply_and_revert_leave_everything_as_it_was(world: World) -> None:
    before = world.picture()
    world.apply()
    assert world.picture() != before
    assert world.revert().is_done
    assert world.picture() == before
    with pytest.raises(ProjectError, match="is not applied here"):
        world.revert()
    assert world.apply().is_done, "and again"


def test_a_contract_that_was_committed_before_comes_back_too(world: World) -> None:
    run(world.root, "add", "-f", "infrarsi.toml", "infrarsi.lock")
    run(world.root, "commit", "-qm", "contract")
    (world.root / "infrarsi.toml").write_text("# the contract, next version\n")
    before = world.picture()
    world.apply()
    assert git.show(world.root, "HEAD", "infrarsi.toml") == b"# the contract, next version\n"
    world.revert()
    assert world.picture() == before


def test_an_unmerged_branch_is_deleted_from_wherever_one_stands(world: World) -> None:
    before = world.picture()
    world.apply()
    run(world.root, "checkout", "-q", "main")
    world.revert()
    assert git.commit_of(world.root, "refs/heads/infrarsi/best") is None
    assert world.picture()["head"] == before["head"]


@pytest.mark.parametrize("how", ["fast forward", "merge commit", "rebased", "from the branch"])
def test_a_merged_commit_is_reverted_by_its_opposite(how: str, world: World) -> None:
    world.apply()
    if how != "from the branch":
        run(world.root, "checkout", "-q", "main")
    if how == "fast forward":
        run(world.root, "merge", "-q", "--ff-only", "infrarsi/best")
    elif how == "merge commit":
        run(world.root, "merge", "-q", "--no-ff", "-m", "merge", "infrarsi/best")
    elif how == "rebased":
        (world.root / "README.md").write_text("meanwhile\n")
        run(world.root, "commit", "-qam", "meanwhile")
        run(world.root, "cherry-pick", "infrarsi/best")
    else:
        run(world.root, "branch", "-f", "main", "infrarsi/best")
    report = world.revert()
    assert report.is_done
    assert git.current_branch(world.root) == "main"
    assert (world.root / "train/model.py").read_text() == MODEL
    assert (world.root / "launch.toml").read_text() == LAUNCH
    assert not (world.root / "train/fast.py").exists()
    assert (world.root / "infrarsi.toml").read_text() == "# the contract\n", "kept, as it was before apply"
    assert git.commit_of(world.root, "refs/heads/infrarsi/best") is None
    assert not git.is_dirty(world.root)
    assert len(git.commits_saying(world.root, "Infrarsi-Campaign: best")) == 1, "history keeps both"


def test_commits_on_top_are_not_lost(world: World) -> None:
    world.apply()
    _commit("README.md", "mine\n")(world)
    with pytest.raises(ProjectError, match="has commits on top") as error:
        world.revert()
    assert "git revert" in error.value.fix
    assert git.current_branch(world.root) == "infrarsi/best"


def test_a_squash_with_other_changes_is_left_to_a_person(world: World) -> None:
    world.apply()
    _commit("README.md", "mine\n")(world)
    run(world.root, "checkout", "-q", "main")
    run(world.root, "merge", "-q", "--squash", "infrarsi/best")
    run(world.root, "commit", "-qm", "all of it\n\nInfrarsi-Campaign: best")
    run(world.root, "branch", "-qD", "infrarsi/best")
    with pytest.raises(ProjectError, match="is gone") as error:
        world.revert()
    assert "git revert" in error.value.fix


def test_later_changes_in_the_way_of_a_revert_are_named_and_kept(world: World) -> None:
    world.apply()
    run(world.root, "checkout", "-q", "main")
    run(world.root, "merge", "-q", "--ff-only", "infrarsi/best")
    _commit("train/model.py", "rewritten\n")(world)
    before = world.picture()
    with pytest.raises(ProjectError, match="cannot be reverted by itself"):
        world.revert()
    assert world.picture() == before


def test_nothing_is_reverted_in_a_dirty_tree_or_before_an_apply(world: World) -> None:
    with pytest.raises(ProjectError, match="is not applied here"):
        world.revert()
    world.apply()
    (world.root / "train/model.py").write_text("mine\n")
    with pytest.raises(ProjectError, match="uncommitted changes"):
        world.revert()
    assert (world.root / "train/model.py").read_text() == "mine\n"
