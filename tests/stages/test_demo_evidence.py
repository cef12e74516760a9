"""The demo's patches under the open contract: honest ones are believed, cheats refused by evidence, not by path."""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infrarsi_hpc.stages.demo import write_demo

pytestmark = [pytest.mark.training, pytest.mark.campaign]


def infrarsi(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"INFRARSI_STORE": str(project.parent / "store")}
    command = [sys.executable, "-m", "infrarsi_hpc.cli.app", *arguments]
    return subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=400, check=False
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo, locked under both contracts and examined under the open one."""
    project = write_demo(tmp_path_factory.mktemp("demo") / "project")
    assert infrarsi(project, "init").returncode == 0
    assert infrarsi(project, "init", "--contract", "infrarsi.open.toml").returncode == 0
    examined = infrarsi(project, "doctor", "--contract", "infrarsi.open.toml", "--json")
    assert examined.returncode == 0, examined.stderr
    report = json.loads(examined.stdout)
    assert set(report["phases"]) == {"data", "forward", "backward", "optimizer", "communication"}
    assert 0 < report["mfu"] < 1
    return project


@pytest.mark.parametrize(
    ("patches", "settings", "belief", "words"),
    [
        (["trim-padding"], [], "refused", "tokens, the contract says 1024"),
        (["amortise-updates"], [], "refused", "moved no weights"),
        (
            ["library-cross-entropy", "fused-gelu", "native-layer-norm", "cached-causal-bias", "joint-projection"],
            [],
            "believed",
            "",
        ),
        (["joint-clip", "gather-windows", "keep-last-block"], ["recompute=full"], "believed", ""),
        (
            [],
            ["attention=sdpa", "optimizer=fused", "ranks=2", "gradient_sync=last"],
            "believed",
            "",
        ),
    ],
)
def test_patches_and_settings_are_judged_by_what_they_did(
    demo: Path, patches: list[str], settings: list[str], belief: str, words: str
) -> None:
    arguments = [text for name in patches for text in ("--patch", f"patches/{name}.diff")]
    arguments += [text for setting in settings for text in ("--set", setting)]
    done = infrarsi(demo, "try", "--contract", "infrarsi.open.toml", *arguments, "--json")
    tried = json.loads(done.stdout)
    assert tried["verdict"]["belief"] == belief, tried["verdict"]
    assert words in " ".join(tried["verdict"]["reasons"])
    assert done.returncode == (0 if belief == "believed" else 1)


#: Rewritings of the demo's model, `(old, new)` in train/model.py: the same work in other words.
HONEST = [
    ("self.query(x)", 'torch.einsum("bth,oh->bto", x, self.query.weight)'),
    ("self.key(x)", "functional.conv1d(x.transpose(1, 2), self.key.weight[:, :, None]).transpose(1, 2)"),
    ("self.value(x)", "torch.tensordot(x, self.value.weight, dims=([2], [1]))"),
    (
        "self.output(mixed.transpose(1, 2).reshape(x.shape))",
        'torch.einsum("bhtd,ohd->bto", mixed, self.output.weight.unflatten(1, (self.heads, -1)))',
    ),
    (
        "self.down(gelu(self.up(x)))",
        "functional.linear(gelu(torch.cat([functional.linear(x, w) for w in self.up.weight.chunk(4)], -1)), "
        "self.down.weight)",
    ),
    (
        "functional.linear(self.norm(x), self.tokens.weight)",
        "torch.bmm(self.norm(x), self.tokens.weight.t().expand(x.size(0), -1, -1))",
    ),
]
DISHONEST = {
    "a block is left out": [("for block in self.blocks:", "for block in self.blocks[1:]:")],
    "a head is left out": [
        ("self.split(self.query(x))", "self.split(functional.linear(x, self.query.weight[:48]))"),
        ("self.split(self.key(x))", "self.split(functional.linear(x, self.key.weight[:48]))"),
        ("self.split(self.value(x))", "self.split(functional.linear(x, self.value.weight[:48]))"),
        ("x.unflatten(-1, (self.heads, -1))", "x.unflatten(-1, (self.heads - 1, -1))"),
        (
            "self.output(mixed.transpose(1, 2).reshape(x.shape))",
            "functional.linear(mixed.transpose(1, 2).flatten(2), self.output.weight[:, :48])",
        ),
    ],
}


def rewritten(demo: Path, changes: list[tuple[str, str]], diff: Path) -> Path:
    """A diff of the demo's model with some of its code in other words."""
    before = (demo / "train" / "model.py").read_text()
    after = before
    for old, new in changes:
        assert after.count(old) == 1, old
        after = after.replace(old, new)
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), "a/train/model.py", "b/train/model.py"
    )
    diff.write_text("".join(lines))
    return diff


def test_a_model_in_other_words_is_believed(demo: Path, tmp_path: Path) -> None:
    patch = str(rewritten(demo, HONEST, tmp_path / "words.diff"))
    # the memory that it takes is another question
    free = ["--set", "micro_batch=1", "--set", "recompute=full"]
    done = infrarsi(demo, "try", "--contract", "infrarsi.open.toml", "--patch", patch, *free, "--json")
    tried = json.loads(done.stdout)
    assert tried["verdict"]["belief"] == "believed", (tried["ending"], tried["verdict"])


@pytest.mark.parametrize("changes", DISHONEST.values(), ids=DISHONEST.keys())
def test_a_model_that_does_less_is_refused(demo: Path, tmp_path: Path, changes: list[tuple[str, str]]) -> None:
    patch = str(rewritten(demo, changes, tmp_path / "less.diff"))
    done = infrarsi(demo, "try", "--contract", "infrarsi.open.toml", "--patch", patch, "--json")
    tried = json.loads(done.stdout)
    assert tried["verdict"]["belief"] == "refused", (tried["ending"], tried["verdict"])
    assert "of the work is missing" in " ".join(tried["verdict"]["reasons"])


def test_a_patch_of_a_locked_file_is_refused_before_it_runs(demo: Path, tmp_path: Path) -> None:
    loop = (demo / "train" / "loop.py").read_text().splitlines()
    patch = tmp_path / "loop.diff"
    patch.write_text(f"--- a/train/loop.py\n+++ b/train/loop.py\n@@ -1 +1,2 @@\n {loop[0]}\n+# new\n")
    done = infrarsi(demo, "try", "--contract", "infrarsi.open.toml", "--patch", str(patch), "--json")
    assert json.loads(done.stdout)["verdict"]["belief"] == "believed", "the open contract lets the loop be patched"
    locked = tmp_path / "config.diff"
    config = (demo / "train" / "config.py").read_text().splitlines()
    locked.write_text(f"--- a/train/config.py\n+++ b/train/config.py\n@@ -1 +1,2 @@\n {config[0]}\n+# new\n")
    done = infrarsi(demo, "try", "--contract", "infrarsi.open.toml", "--patch", str(locked), "--json")
    tried = json.loads(done.stdout)
    assert tried["ending"]["outcome"] == "refused"
    assert "train/config.py" in tried["verdict"]["reasons"][0]


def test_a_setting_over_the_memory_limit_is_a_bound_for_the_models(demo: Path) -> None:
    done = infrarsi(demo, "try", "--contract", "infrarsi.open.toml", "--set", "micro_batch=8", "--json")
    ending = json.loads(done.stdout)["ending"]
    assert (ending["outcome"], ending["detail"]) == ("device_oom", "limit")
    assert ending["bound_gib"] >= 0.04


@pytest.mark.full
def test_a_compiled_run_is_believed(demo: Path) -> None:
    done = infrarsi(demo, "try", "--contract", "infrarsi.open.toml", "--set", "compile=on", "--json")
    tried = json.loads(done.stdout)
    assert tried["verdict"]["belief"] == "believed", (tried["ending"], tried["verdict"])


def test_a_contract_can_be_drafted_for_the_demo_without_its_own(tmp_path: Path) -> None:
    project = write_demo(tmp_path / "project")
    for name in ("infrarsi.toml", "infrarsi.open.toml"):
        (project / name).unlink()
    subprocess.run(["git", "-C", str(project), "commit", "-qam", "without contracts"], check=True)
    done = infrarsi(project, "init", "--yes", "--goal", "faster steps")
    assert done.returncode == 0, done.stderr
    assert "guess" in done.stderr
    text = (project / "infrarsi.toml").read_text()
    assert 'goal = "faster steps"' in text
    assert "# guess" in text
    plan = infrarsi(project, "run", "--dry-run", "--json")
    assert plan.returncode == 0, plan.stderr
    without_yes = write_demo(tmp_path / "other")
    (without_yes / "infrarsi.toml").unlink()
    subprocess.run(["git", "-C", str(without_yes), "commit", "-qam", "without"], check=True)
    asked = infrarsi(without_yes, "init")
    assert asked.returncode == 2
    assert "--yes" in asked.stderr
