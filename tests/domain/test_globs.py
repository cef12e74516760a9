"""Globs: `*` stays in its folder, `**` does not, and a glob that cannot be understood is an error."""

from __future__ import annotations

import pytest

from infrarsi_hpc.domain.globs import matches
from infrarsi_hpc.errors import ContractError


@pytest.mark.parametrize(
    ("glob", "inside", "outside"),
    [
        ("train/model.py", ["train/model.py"], ["train/model.pyc", "x/train/model.py", "train/model_py"]),
        ("train/*.py", ["train/model.py"], ["train/sub/model.py", "train/model.txt", "train.py"]),
        ("train/**", ["train/model.py", "train/a/b/c.py"], ["train", "trainer/x.py", "a/train/x.py"]),
        ("train/**/*.py", ["train/model.py", "train/a/b/c.py"], ["train/a/b/c.txt"]),
        ("**/*.py", ["model.py", "a/b/c.py"], ["model.txt"]),
        ("**", ["model.py", "a/b/c.py"], []),
        ("train/", ["train/model.py", "train/a/b"], ["train"]),
        ("train/kernel?.py", ["train/kernel1.py"], ["train/kernel.py", "train/kernel/.py"]),
        ("train/[ab].py", ["train/a.py"], ["train/c.py", "train/ab.py"]),
        ("train/[!ab].py", ["train/c.py"], ["train/a.py"]),
        ("train/a[.py", ["train/a[.py"], ["train/a.py"]),
    ],
)
def test_a_glob_covers_what_it_says(glob, inside, outside) -> None:
    assert [path for path in inside if not matches(path, [glob])] == []
    assert [path for path in outside if matches(path, [glob])] == []


def test_any_of_several_globs_is_enough() -> None:
    assert matches("b.py", ["a.py", "b.py"])
    assert not matches("b.py", [])


def test_a_glob_that_cannot_be_understood_is_an_error_and_not_a_lock_that_holds_nothing() -> None:
    with pytest.raises(ContractError, match="is not a glob"):
        matches("train/a.py", ["train/[z-a].py"])
