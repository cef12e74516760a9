"""The git edge on real repositories: what it says, what it refuses, and what hooks and settings cannot do to it."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from infrarsi_hpc.edges import git, git_commit
from infrarsi_hpc.edges.agent import copies
from infrarsi_hpc.errors import PatchError, ProjectError

HEAD = "--- a/train/model.py\n+++ b/train/model.py\n"
PATCH = HEAD + "@@ -1,3 +1,3 @@\n a = 1\n-b = 2\n+b = 20\n c = 3\n"


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def _own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of whoever runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "home").mkdir()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "train").mkdir(parents=True)
    (root / "train/model.py").write_text("a = 1\nb = 2\nc = 3\n")
    (root / "train/loop.py").write_text("loop\n")
    run(root, "init", "-q", "-b", "main")
    run(root, "config", "user.name", "A Person")
    run(root, "config", "user.email", "person@example.org")
    run(root, "add", "-A")
    run(root, "commit", "-q", "-m", "first")
    return root


# ---- what there is


def test_a_repository_is_read(repository: Path) -> None:
    head = git.head_commit(repository)
    assert head == run(repository, "rev-parse", "HEAD")
    assert git.repository_root(repository / "train") == repository
    assert git.current_branch(repository) == "main"
    assert git.files_at(repository, head) == ["train/loop.py", "train/model.py"]
    assert git.digests_at(repository, head, ["train/loop.py", "gone"]) == {
        "train/loop.py": hashlib.sha256(b"loop\n").hexdigest()
    }
    assert git.show(repository, head, "train/loop.py") == b"loop\n"
    assert git.show(repository, head, "gone") is None
    assert git.has_commit(repository, head)
    assert not git.has_commit(repository, "0" * 40)
    assert git.identity(repository).startswith("A Person <person@example.org>")


def test_files_are_those_of_the_commit_and_not_of_the_work_tree(repository: Path) -> None:
    head = git.head_commit(repository)
    (repository / "train/loop.py").write_text("changed\n")
    assert git.show(repository, head, "train/loop.py") == b"loop\n"


def test_odd_names_and_contents_come_through(repository: Path) -> None:
    names = ["a b.py", "café.py", "*.py", ":x", "-n"]
    for name in names:
        (repository / name).write_bytes(b"\x00\n" + name.encode())
    (repository / "link").symlink_to("train/loop.py")
    run(repository, "add", "-A")
    run(repository, "commit", "-q", "-m", "odd")
    head = git.head_commit(repository)
    assert set(names) < set(git.files_at(repository, head))
    assert git.contents_at(repository, head, names) == {name: b"\x00\n" + name.encode() for name in names}
    entries = git.entries_at(repository, head)
    assert not entries["link"].is_plain
    assert entries["a b.py"].is_plain


@pytest.mark.parametrize("where", ["missing", "file", "plain"])
def test_where_there_is_no_repository_the_error_says_what_to_do(where: str, tmp_path: Path) -> None:
    folder = tmp_path / where
    if where == "plain":
        folder.mkdir()
    elif where == "file":
        folder.write_text("")
    with pytest.raises(ProjectError) as error:
        git.head_commit(folder)
    assert error.value.fix


def test_a_repository_without_a_commit_says_so(tmp_path: Path) -> None:
    run(tmp_path, "init", "-q")
    with pytest.raises(ProjectError, match="has no commit yet"):
        git.head_commit(tmp_path)


def test_without_git_the_error_names_it(repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProjectError, match="git is not installed"):
        git.head_commit(repository)


def test_a_detached_head_is_no_branch(repository: Path) -> None:
    run(repository, "checkout", "-q", "--detach")
    assert git.current_branch(repository) is None


def test_nobody_is_asked_who_they_are(repository: Path) -> None:
    run(repository, "config", "--unset", "user.name")
    run(repository, "config", "user.useConfigOnly", "true")
    with pytest.raises(ProjectError, match="does not know who you are") as error:
        git.identity(repository)
    assert "git config user.name" in error.value.fix


# ---- dirty or not


def test_the_products_own_files_do_not_make_a_tree_dirty(repository: Path) -> None:
    (repository / "infrarsi.toml").write_text("x")
    (repository / "infrarsi.open.lock").write_text("x")
    (repository / ".infrarsi").mkdir()
    (repository / ".infrarsi/ledger.jsonl").write_text("x")
    assert not git.is_dirty(repository)
    git.require_clean(repository)
    (repository / "train/new.py").write_text("x")
    (repository / "train/loop.py").write_text("y")
    (repository / "train/infrarsi.toml").write_text("x")
    assert git.dirty_files(repository) == ["train/loop.py", "train/infrarsi.toml", "train/new.py"]
    with pytest.raises(ProjectError, match=r"uncommitted changes: train/loop\.py"):
        git.require_clean(repository)
    assert git.dirty_files(repository, ["train/loop.py", "train/new.py"]) == ["train/infrarsi.toml"]


def test_an_ignored_pattern_changes_no_file_of_the_project(repository: Path) -> None:
    (repository / "out").mkdir()
    (repository / "out/x").write_text("x")
    git.ignore(repository, "out/")
    git.ignore(repository, "out/")
    assert git.dirty_files(repository) == []
    assert (repository / ".git/info/exclude").read_text().count("out/") == 1


# ---- nothing of a user's surroundings takes part


def test_a_surrounding_git_dir_does_not_redirect_the_question(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = git.head_commit(repository)
    other = tmp_path / "other"
    other.mkdir()
    run(other, "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / "index"))
    assert git.head_commit(repository) == head
    assert not git.is_dirty(repository)


def test_a_replaced_commit_is_seen_as_it_was(repository: Path) -> None:
    head = git.head_commit(repository)
    (repository / "train/loop.py").write_text("cheat\n")
    run(repository, "commit", "-qam", "second")
    run(repository, "replace", head, git.head_commit(repository))
    assert run(repository, "show", f"{head}:train/loop.py") == "cheat", "naive: plain git"
    assert git.show(repository, head, "train/loop.py") == b"loop\n"


def test_export_attributes_do_not_leave_files_out(repository: Path, tmp_path: Path) -> None:
    (repository / ".gitattributes").write_text("train/loop.py export-ignore\n")
    run(repository, "add", "-A")
    run(repository, "commit", "-qm", "attributes")
    head = git.head_commit(repository)
    archive = subprocess.run(["git", "archive", head], cwd=repository, check=True, capture_output=True).stdout
    names = tarfile.open(fileobj=io.BytesIO(archive)).getnames()
    assert "train/loop.py" not in names, "naive: git archive"
    copies.extract_commit(repository, head, tmp_path / "copy")
    assert (tmp_path / "copy/train/loop.py").read_text() == "loop\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy", "home", "project"]


def test_hooks_do_not_run(repository: Path, tmp_path: Path) -> None:
    for hook in ("post-checkout", "pre-commit", "reference-transaction"):
        path = repository / ".git/hooks" / hook
        path.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        path.chmod(0o755)
    head = git.head_commit(repository)
    commit = git_commit.make_commit(repository, head, {"train/loop.py": b"new\n"}, "message\n")
    git_commit.create_branch(repository, "topic", commit)
    git_commit.switch_to(repository, "topic")
    assert not (tmp_path / "ran").exists()


# ---- diffs on folders


@pytest.fixture
def copy(repository: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    copies.extract_commit(repository, git.head_commit(repository), folder)
    return folder


def test_a_diff_is_applied_and_its_paths_are_given_back(copy: Path) -> None:
    git.check_patch(copy, PATCH)
    assert (copy / "train/model.py").read_text() == "a = 1\nb = 2\nc = 3\n"
    assert git.apply_patch(copy, PATCH) == ["train/model.py"]
    assert (copy / "train/model.py").read_text() == "a = 1\nb = 20\nc = 3\n"
    with pytest.raises(PatchError, match="does not apply"):
        git.apply_patch(copy, PATCH)


def test_inside_another_repository_a_diff_is_no_silent_no_op(repository: Path) -> None:
    """git apply skips what lies outside the folder that it is started in, and reports success."""
    inner = repository / "scratch/copy"
    (inner / "train").mkdir(parents=True)
    (inner / "train/model.py").write_text("a = 1\nb = 2\nc = 3\n")
    patch = "diff --git a/train/model.py b/train/model.py\n" + PATCH
    naive = subprocess.run(["git", "apply", "-"], cwd=inner, input=patch, text=True, check=False, capture_output=True)
    assert naive.returncode == 0
    assert (inner / "train/model.py").read_text() == "a = 1\nb = 2\nc = 3\n", "naive: success, and nothing changed"
    assert git.apply_patch(inner, patch) == ["train/model.py"]
    assert (inner / "train/model.py").read_text() == "a = 1\nb = 20\nc = 3\n"
    assert (repository / "train/model.py").read_text() == "a = 1\nb = 2\nc = 3\n"


def test_a_diff_that_does_not_fit_changes_nothing_at_all(copy: Path) -> None:
    both = PATCH + PATCH.replace("train/model.py", "train/loop.py")
    with pytest.raises(PatchError, match="does not apply"):
        git.apply_patch(copy, both)
    assert (copy / "train/model.py").read_text() == "a = 1\nb = 2\nc = 3\n"


@pytest.mark.parametrize("path", ["../outside.py", "/tmp/outside.py"])
def test_no_diff_writes_outside_the_folder(copy: Path, path: str) -> None:
    prefix = ("", "") if path.startswith("/") else ("a/", "b/")
    new = f"--- /dev/null\n+++ {prefix[1]}{path}\n@@ -0,0 +1,1 @@\n+x\n"
    with pytest.raises(PatchError):
        git.apply_patch(copy, new)
    assert not (copy.parent / "outside.py").exists()
    assert not Path("/tmp/outside.py").exists()


def test_new_deleted_and_renamed_files_count_as_changed(copy: Path) -> None:
    text = (
        "--- /dev/null\n+++ b/train/new.py\n@@ -0,0 +1,1 @@\n+x\n"
        "--- a/train/loop.py\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-loop\n"
        "diff --git a/train/model.py b/train/gpt.py\nrename from train/model.py\nrename to train/gpt.py\n"
    )
    assert git.apply_patch(copy, text) == ["train/new.py", "train/loop.py", "train/model.py", "train/gpt.py"]
    assert sorted(path.name for path in (copy / "train").iterdir()) == ["gpt.py", "new.py"]


# ---- commits built aside


def test_a_commit_is_made_without_touching_tree_index_or_branch(repository: Path) -> None:
    head = git.head_commit(repository)
    (repository / "train/loop.py").write_text("mine\n")
    run(repository, "add", "-A")
    contents = {"train/model.py": b"new\n", "train/deep/x.py": b"x\n", "train/loop.py": None}
    commit = git_commit.make_commit(repository, head, contents, "subject\n\nbody\n")
    assert git.head_commit(repository) == head
    assert git.dirty_files(repository) == ["train/loop.py"]
    assert git.files_at(repository, commit) == ["train/deep/x.py", "train/model.py"]
    assert git.parents_of(repository, commit) == [head]
    assert run(repository, "log", "-1", "--format=%an|%B", commit) == "A Person|subject\n\nbody"
    assert git.changed_files(repository, head, commit) == ["train/deep/x.py", "train/loop.py", "train/model.py"]


def test_a_files_mode_stays(repository: Path) -> None:
    (repository / "run.sh").write_text("x\n")
    (repository / "run.sh").chmod(0o755)
    run(repository, "add", "-A")
    run(repository, "commit", "-qm", "script")
    commit = git_commit.make_commit(repository, git.head_commit(repository), {"run.sh": b"y\n"}, "m\n")
    assert git.entries_at(repository, commit)["run.sh"].mode == "100755"


def test_a_branch_is_made_once_and_deleted_where_it_stands(repository: Path) -> None:
    head = git.head_commit(repository)
    git_commit.create_branch(repository, "infrarsi/x", head)
    with pytest.raises(ProjectError):
        git_commit.create_branch(repository, "infrarsi/x", head)
    with pytest.raises(ProjectError, match="cannot be the name"):
        git_commit.create_branch(repository, "a..b", head)
    other = git_commit.make_commit(repository, head, {"x": b"x"}, "m\n")
    with pytest.raises(ProjectError):
        git_commit.delete_branch(repository, "infrarsi/x", other)
    git_commit.delete_branch(repository, "infrarsi/x", head)
    assert git.commit_of(repository, "refs/heads/infrarsi/x") is None


def test_a_checkout_does_not_overwrite_what_is_not_committed(repository: Path) -> None:
    head = git.head_commit(repository)
    git_commit.create_branch(repository, "topic", git_commit.make_commit(repository, head, {"new.py": b"x"}, "m\n"))
    git.ignore(repository, "new.py")
    (repository / "new.py").write_text("mine, and ignored")
    with pytest.raises(ProjectError, match="git checkout failed"):
        git_commit.switch_to(repository, "topic")
    assert (repository / "new.py").read_text() == "mine, and ignored"
    assert git.current_branch(repository) == "main"


def test_the_same_change_elsewhere_in_history_is_known_by_its_patch(repository: Path) -> None:
    head = git.head_commit(repository)
    change = {"train/loop.py": b"new\n"}
    one = git_commit.make_commit(repository, head, change, "one\n")
    other = git_commit.make_commit(
        repository, git_commit.make_commit(repository, head, {"x": b"x"}, "x\n"), change, "2\n"
    )
    assert one != other
    assert git.patch_id(repository, one) == git.patch_id(repository, other)
    assert git.patch_id(repository, head) is None


def test_a_revert_that_meets_later_changes_leaves_the_tree_as_it_was(repository: Path) -> None:
    (repository / "train/loop.py").write_text("second\n")
    run(repository, "commit", "-qam", "second")
    second = git.head_commit(repository)
    (repository / "train/loop.py").write_text("third\n")
    run(repository, "commit", "-qam", "third")
    with pytest.raises(ProjectError, match="cannot be reverted by itself"):
        git_commit.revert_commit(repository, second)
    assert not git.is_dirty(repository)
    assert (repository / "train/loop.py").read_text() == "third\n"
    git_commit.revert_commit(repository, git.head_commit(repository))
    assert (repository / "train/loop.py").read_text() == "second\n"
    assert git.commits_saying(repository, "This reverts commit") == [git.head_commit(repository)]
