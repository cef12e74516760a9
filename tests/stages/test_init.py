"""Init: what it refuses, with what advice, and what it locks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_program import CONTRACT, commit_all, git, make_tiny_campaign_project

from infrarsi_hpc.edges.project import open_project, read_contract
from infrarsi_hpc.errors import ContractError, InfrarsiError, ProjectError
from infrarsi_hpc.stages.init import lock_project, write_contract


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    make_tiny_campaign_project(folder)
    return folder


def test_the_lock_names_contract_commit_and_files(project: Path) -> None:
    lock = lock_project(project, "infrarsi.toml")
    assert lock.baseline_commit == git(project, "rev-parse", "HEAD")
    assert lock.editable_files == ("prog/__main__.py",)
    assert open_project(project).lock == lock
    assert git(project, "status", "--porcelain", "--untracked-files=all") in ("?? infrarsi.lock", "")


def test_locking_the_same_again_changes_nothing(project: Path) -> None:
    first = lock_project(project, "infrarsi.toml")
    assert lock_project(project, "infrarsi.toml") == first


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('editable = ["prog/*.py"]', 'editable = ["*", "prog/*.py"]'), "covers the contract or the harness"),
        (('editable = ["prog/*.py"]', 'editable = ["**"]'), "covers the contract or the harness"),
        (('editable = ["prog/*.py"]', 'editable = ["src/*.py"]'), "matches no committed file"),
        (('editable = ["prog/*.py"]', 'editable = ["../x.py"]'), "leaves the project"),
        (('settings = "launch.toml"', 'settings = "start.toml"'), "which does not exist"),
        (("[knobs.chunks]", "[knobs.pieces]"), "is no knob of the contract"),
        (("baseline = 4", "baseline = 2"), "the contract's baseline is 2"),
        (("baseline = 4", "baseline = 3"), "baseline 3 is not among the values"),
        (("baseline = 4", 'baseline = "four"'), "is not among the values"),
        (("values = [1, 2, 4]", 'values = "all"'), "knobs.chunks.values"),
        (("layers = 1", 'layers = "one"'), "workload.shape.layers"),
        (("layers = 1", "layers = 0"), "greater than or equal to 1"),
        (("trial_steps = 10", "trial_stepz = 10"), "measurement.trial_stepz: unknown key"),
        (("schema_version = 1", "schema_version = 7"), "has schema 7; this version reads up to 1"),
        (('"-m", "prog"', '"-m", "gone"'), "is not committed"),
        (('command = ["python"', 'command = ["bash"'), "begins with 'bash'"),
        (('"--steps", "{steps}", ', ""), "has no {steps}"),
        (('name = "tiny"', 'name = "tiny'), "is not valid TOML"),
        (('name = "tiny"', 'name = "tiny"\nname = "twice"'), "is not valid TOML"),
    ],
)
def test_a_contract_that_cannot_be_is_refused_with_its_place(tmp_path: Path, change, words: str) -> None:
    assert change[0] in CONTRACT
    make_tiny_campaign_project(tmp_path / "p", CONTRACT.replace(*change))
    with pytest.raises(InfrarsiError) as caught:
        lock_project(tmp_path / "p", "infrarsi.toml")
    assert words in str(caught.value)
    assert caught.value.fix
    assert caught.value.exit_code == 3
    assert not (tmp_path / "p" / "infrarsi.lock").exists()


def test_a_dirty_tree_is_refused_but_the_contract_itself_may_be_new(project: Path) -> None:
    (project / "infrarsi.toml").write_text(CONTRACT + "\n# a remark\n")
    lock_project(project, "infrarsi.toml")
    (project / "prog" / "__main__.py").write_text("print()\n")
    with pytest.raises(ProjectError, match=r"uncommitted changes: prog/__main__\.py") as caught:
        lock_project(project, "infrarsi.toml", relock=True)
    assert "commit" in caught.value.fix


def test_no_repository_and_no_commit_are_said(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match=r"not.*repository"):
        write_contract(tmp_path, "infrarsi.toml", "")
    git(tmp_path, "init", "-q")
    with pytest.raises(ProjectError, match="no commit"):
        write_contract(tmp_path, "infrarsi.toml", "")


def test_a_missing_contract_is_said_by_readers(project: Path) -> None:
    with pytest.raises(ContractError, match="does not exist"):
        read_contract(project / "other.toml")
    with pytest.raises(ContractError, match="not locked"):
        open_project(project)


def test_an_edited_contract_or_lock_is_refused_until_it_is_locked_again(project: Path) -> None:
    lock_project(project, "infrarsi.toml")
    (project / "infrarsi.toml").write_text(CONTRACT.replace("trial_steps = 10", "trial_steps = 12"))
    with pytest.raises(ContractError, match="is not what was locked"):
        open_project(project)
    with pytest.raises(ContractError, match="the contract changed since it was locked"):
        lock_project(project, "infrarsi.toml")
    lock_project(project, "infrarsi.toml", relock=True)
    open_project(project)
    path = project / "infrarsi.lock"
    edited = json.loads(path.read_text())
    edited["locked_files"] = {"launch.toml": "0" * 64}
    path.write_text(json.dumps(edited))
    with pytest.raises(ContractError, match="locked files are not what was locked"):
        open_project(project)
    path.write_text(json.dumps(edited | {"baseline_commit": "0" * 40}))
    with pytest.raises(ProjectError, match="is gone"):
        open_project(project)
    path.write_text("{")
    with pytest.raises(ContractError, match="is not valid JSON"):
        open_project(project)


def test_comments_do_not_change_a_contracts_digest(project: Path) -> None:
    before = lock_project(project, "infrarsi.toml").contract_sha256
    (project / "infrarsi.toml").write_text("# new words\n" + CONTRACT)
    assert lock_project(project, "infrarsi.toml").contract_sha256 == before


def test_a_subfolder_of_a_repository_is_sent_to_its_top(project: Path) -> None:
    with pytest.raises(ProjectError, match="is inside the repository"):
        lock_project(project / "prog", "infrarsi.toml")


def test_a_project_that_shows_nothing_of_a_training_program_gets_no_guesses(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    commit_all(tmp_path)
    with pytest.raises(ProjectError, match="nothing here looks like a training program"):
        write_contract(tmp_path, "infrarsi.toml", "")
