"""The scope guard: one row a way out of the scope, with the reason expected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi_hpc.domain.contract import Scope
from infrarsi_hpc.domain.diff import parse_diff
from infrarsi_hpc.verify.scope import check_scope, is_editable

SCOPE = Scope(
    editable=("train/**",),
    locked=("train/__main__.py", "train/loop.py", "train/config.py"),
    settings="train/launch.toml",
    patches="train/patches",
)


def modify(path: str) -> str:
    return f"--- a/{path}\n+++ b/{path}\n@@ -1,1 +1,1 @@\n-x\n+y\n"


def add(path: str, mode: str = "100644") -> str:
    head = f"diff --git a/{path} b/{path}\nnew file mode {mode}\n"
    return f"{head}--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,1 @@\n+x\n"


ABSOLUTE = "--- /home/user01/target.py\n+++ /home/user01/target.py\n@@ -1,1 +1,1 @@\n-x\n+y\n"
LINK = (
    "diff --git a/train/loop.py b/train/loop.py\ndeleted file mode 100644\n--- a/train/loop.py\n+++ /dev/null\n"
    "diff --git a/train/loop.py b/train/loop.py\nnew file mode 120000\n--- /dev/null\n+++ b/train/loop.py\n"
    "@@ -0,0 +1 @@\n+../../scoring/loop_fast.py\n\\ No newline at end of file\n"
)

WAYS_OUT = [
    ("locked", modify("train/loop.py"), "train/loop.py is locked by the contract"),
    ("locked in other letters", modify("train/Loop.py"), "train/Loop.py is locked"),
    ("outside", modify("setup/build.py"), "setup/build.py is outside the editable scope (train/**)"),
    ("climbing", modify("../outside.py"), "../outside.py leaves the project"),
    ("climbing inside", modify("train/../eval/score.py"), "leaves the project"),
    ("absolute", ABSOLUTE, "/home/user01/target.py is an absolute path"),
    ("odd", modify("train/./model.py"), "is not a plain relative path"),
    ("doubled", modify("train//model.py"), "is not a plain relative path"),
    ("contract", modify("train/infrarsi.toml"), "belongs to infrarsi, git or Python itself"),
    ("git", modify("train/.git/hooks/post-checkout"), "belongs to infrarsi, git or Python itself"),
    ("campaigns", modify(".infrarsi/best/ledger.jsonl"), "belongs to infrarsi, git or Python itself"),
    ("settings", modify("train/launch.toml"), "they are changed as knobs"),
    ("library", modify("train/patches/fast.diff"), "is in the patch library"),
    ("link", LINK, "train/loop.py is or becomes a symbolic link"),
    ("link, deleted first", LINK, "train/loop.py is changed by two sections"),
    ("new link", add("train/fast.py", "120000"), "symbolic link"),
    ("submodule", add("train/fast", "160000"), "submodule"),
    ("executable", add("train/fast.py", "100755"), "gets file mode 100755"),
    (
        "mode",
        "diff --git a/train/model.py b/train/model.py\nold mode 100644\nnew mode 100755\n",
        "gets file mode 100755",
    ),
    (
        "binary",
        "diff --git a/train/x b/train/x\nindex 1..2 100644\nBinary files a/train/x and b/train/x differ\n",
        "binary form",
    ),
    (
        "locked file copied away",
        "diff --git a/train/loop.py b/train/loop2.py\ncopy from train/loop.py\ncopy to train/loop2.py\n",
        "train/loop.py is locked",
    ),
    (
        "renamed into the open",
        "diff --git a/train/model.py b/eval/model.py\nrename from train/model.py\nrename to eval/model.py\n",
        "eval/model.py is outside",
    ),
    ("sitecustomize", add("train/sitecustomize.py"), "would be loaded without being asked for"),
    ("usercustomize", add("train/UserCustomize.py"), "would be loaded without being asked for"),
    ("conftest", add("train/conftest.py"), "would be loaded without being asked for"),
    ("pth", add("train/fast.pth"), "would be loaded without being asked for"),
    ("compiled", add("train/model.cpython-311.pyc"), "would be loaded without being asked for"),
    ("extension", add("train/_fast.so"), "would be loaded without being asked for"),
    ("attributes", add("train/.gitattributes"), "would be loaded without being asked for"),
    ("tool settings", add("train/pyproject.toml"), "would change how the program is built or started"),
    ("stands in for a library", add("train/torch/__init__.py"), "in place of the module torch"),
    ("stands in for the standard library", add("train/random.py"), "in place of the module random"),
]


@pytest.mark.parametrize(("text", "reason"), [row[1:] for row in WAYS_OUT], ids=[row[0] for row in WAYS_OUT])
def test_a_way_out_of_the_scope_is_refused_with_its_reason(text, reason) -> None:
    reasons = check_scope(parse_diff(text), SCOPE)
    assert any(reason in said for said in reasons), reasons


@pytest.mark.parametrize(
    "text",
    [
        modify("train/model.py"),
        modify("train/kernels/attention.py"),
        add("train/kernels/flash.py"),
        "--- a/train/model.py\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\n",
        modify("train/queue.py"),  # it is there already: a module's own name is not the patch's doing
    ],
)
def test_what_stays_inside_gives_no_reason(text) -> None:
    assert check_scope(parse_diff(text), SCOPE) == []


def test_locked_wins_over_editable() -> None:
    assert is_editable("train/model.py", SCOPE)
    assert not is_editable("train/loop.py", SCOPE)


@given(
    st.lists(st.sampled_from(["train", "..", ".", "", "model.py", "loop.py", "~", "Loop.py"]), min_size=1, max_size=5)
)
def test_no_path_with_a_way_up_or_to_a_locked_file_is_ever_accepted(parts) -> None:
    path = "/".join(parts)
    text = f"--- a/{path}\n+++ b/{path}\n@@ -1,1 +1,1 @@\n-x\n+y\n"
    if path == "":
        return
    if not check_scope(parse_diff(text), SCOPE):
        assert parts[0] == "train"
        assert ".." not in parts
        assert path.casefold() not in {locked.casefold() for locked in SCOPE.locked}
