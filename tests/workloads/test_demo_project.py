"""The demo project: the same training under every setting, honest patches that keep it, and two that do not."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from infrarsi_hpc.domain.contract import Contract
from infrarsi_hpc.errors import ProjectError
from infrarsi_hpc.stages.demo import write_demo

HONEST = {
    "library-cross-entropy": [],
    "fused-gelu": [],
    "native-layer-norm": [],
    "cached-causal-bias": [],
    "joint-projection": [],
    "joint-clip": [],
    "gather-windows": [],
    "wide-logits": [],
    "keep-last-block": ["--recompute", "full"],
    "recompute-every-second": ["--recompute", "full"],
}
CHEATS = ("trim-padding", "amortise-updates")
PATCHES = (*HONEST, *CHEATS)
#: Two patches that say different things about the same line.
RIVALS = {frozenset({"keep-last-block", "recompute-every-second"})}

SETTINGS = [
    (1, ["--micro-batch", "1"]),
    (1, ["--micro-batch", "8"]),
    (1, ["--micro-batch", "4", "--recompute", "full"]),
    (1, ["--recompute", "attention", "--optimizer", "foreach"]),
    (1, ["--attention", "sdpa", "--optimizer", "fused", "--allocator", "retain"]),
    (1, ["--data-workers", "2"]),
    (2, ["--micro-batch", "4"]),
    (2, ["--micro-batch", "1", "--gradient-sync", "every"]),
    (2, ["--micro-batch", "2", "--gradient-sync", "last", "--bucket-mib", "1", "--recompute", "full"]),
]

# Imports torch once and forks the ranks of every run from itself, as a campaign's agent does.
FORKING_DRIVER = r"""
import hashlib, json, os, resource, runpy, socket, sys, time, traceback
import torch, torch._dynamo, torch.distributed, torch.nn.parallel, torch.utils.checkpoint
from torch.nn.modules import module
from torch.optim import optimizer

def bare(root):
    return {name.removeprefix("module."): value.detach() for name, value in sorted(root.state_dict().items())}

def digest(root):
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in bare(root).values())).hexdigest()

def rank_process(request, trace):
    seen, kept = {"weights": [], "tokens": [[]]}, []
    def first(root, args):
        hook.remove()
        seen["weights"].append(digest(root))
        if request["limit_mib"]:
            used = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_DATA, (used + request["limit_mib"] * 2**20,) * 2)
        root.register_forward_pre_hook(before)
        before(root, args)
        optimizer.register_optimizer_step_post_hook(after)
        kept.append(root)
    def before(root, args):
        seen["tokens"][-1] += args[0].tolist()
    def after(*_):
        seen["weights"].append(digest(kept[0]))
        seen["tokens"].append([])
    hook = module.register_module_forward_pre_hook(first)
    try:
        runpy.run_module("train", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    if request["save"] and kept:
        torch.save(bare(kept[0]), request["save"])
    if not code:
        json.dump(seen, open(trace, "w"))
    sys.stdout.flush(); sys.stderr.flush()
    os._exit(code)

for line in sys.stdin:
    request = json.loads(line)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids = []
    for rank in range(request["ranks"]):
        pid = os.fork()
        if pid == 0:
            os.chdir(request["folder"])
            sys.path.insert(0, request["folder"])
            log = os.open(f"{request['log']}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1); os.dup2(log, 2)
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(request["ranks"]),
                              MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
            sys.argv = ["train", *request["arguments"]]
            rank_process(request, f"{request['log']}.{rank}.json")
        pids.append(pid)
    codes, deadline = {}, time.monotonic() + 60
    while len(codes) < len(pids):
        for pid in set(pids) - set(codes):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            for pid in set(pids) - set(codes):
                os.kill(pid, 9)
        time.sleep(0.005)
    print(json.dumps([codes[pid] for pid in pids]), flush=True)
"""


@dataclasses.dataclass(frozen=True)
class Trained:
    codes: list[int]
    log: str
    losses: list[float]
    #: Digest of all weights before the first step and after each.
    weights: list[str]
    #: All token sequences of each step over all ranks, sorted.
    tokens: list[list[list[int]]]


class Trainer:
    """Runs the program in some folder, from one process that has torch imported already."""

    def __init__(self, process: subprocess.Popen[str], scratch: Path) -> None:
        self.process, self.scratch = process, scratch
        self.count = itertools.count()

    def __call__(
        self, folder: Path, *arguments: str, ranks: int = 1, limit_mib: int = 0, save: Path | None = None
    ) -> Trained:
        log = self.scratch / f"run{next(self.count)}"
        request = {
            "folder": str(folder),
            "arguments": arguments,
            "ranks": ranks,
            "limit_mib": limit_mib,
            "save": str(save or ""),
            "log": str(log),
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        codes = json.loads(self.process.stdout.readline())
        text = "".join(Path(f"{log}.{rank}").read_text() for rank in range(ranks))
        traces = [json.loads(p.read_text()) for r in range(ranks) if (p := Path(f"{log}.{r}.json")).exists()]
        losses = [float(line.split()[3]) for line in text.splitlines() if line.startswith("step ")]
        tokens = [sorted(itertools.chain(*step)) for step in zip(*(t["tokens"] for t in traces), strict=True)]
        return Trained(codes, text, losses, traces[0]["weights"] if traces else [], [t for t in tokens if t])


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo(tmp_path_factory.mktemp("demo") / "torch-gpt")


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    command = [sys.executable, "-c", FORKING_DRIVER]
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    scratch = tmp_path_factory.mktemp("runs")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=scratch, env=environment
    ) as process:
        yield Trainer(process, scratch)


@pytest.fixture(scope="module")
def baseline(demo: Path, train: Trainer) -> Trained:
    return train(demo, "--steps", "4", "--seed", "3")


@pytest.fixture(scope="module")
def config(demo: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_config", demo / "train" / "config.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules["demo_config"] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def git(folder: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=folder, input=stdin, capture_output=True, text=True, check=False)


def patched(demo: Path, target: Path, *names: str) -> Path:
    shutil.copytree(demo, target)
    for name in names:
        applied = git(target, "apply", f"patches/{name}.diff")
        assert applied.returncode == 0, applied.stderr
    return target


def contract(folder: Path, name: str = "infrarsi.toml") -> Contract:
    return Contract.model_validate(tomllib.loads((folder / name).read_text()))


# ---- written out


def test_the_demo_is_a_clean_repository_with_everything_in_it(demo: Path) -> None:
    assert git(demo, "status", "--porcelain").stdout == ""
    assert git(demo, "branch", "--show-current").stdout.strip() == "main"
    top = {"train", "patches", "README.md", "launch.toml", "infrarsi.toml", "infrarsi.open.toml", ".gitignore"}
    assert {path.name for path in demo.iterdir()} == top | {".git"}
    for ignored in (".infrarsi/torch-gpt/ledger.jsonl", "train/__pycache__/loop.pyc"):
        assert git(demo, "check-ignore", ignored).returncode == 0


def test_a_folder_with_something_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ProjectError, match="not empty"):
        write_demo(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


# ---- the contracts and the settings


@pytest.mark.parametrize(("name", "is_loop_open"), [("infrarsi.toml", False), ("infrarsi.open.toml", True)])
def test_both_contracts_hold_and_differ_in_the_loop_alone(demo: Path, name: str, is_loop_open: bool) -> None:
    scope = contract(demo, name).scope
    assert ("train/loop.py" in scope.editable) is is_loop_open
    assert ("train/loop.py" in scope.locked) is not is_loop_open
    assert {"train/__main__.py", "train/config.py", "infrarsi.toml", "infrarsi.open.toml"} <= set(scope.locked)
    assert all((demo / path).is_file() for path in (*scope.editable, *scope.locked, scope.settings))
    assert scope.patches is not None
    assert (demo / scope.patches / "library.toml").is_file()


def test_the_contract_says_what_the_program_does(demo: Path, config: ModuleType) -> None:
    promised = contract(demo)
    launch = config.launch_settings(demo / "launch.toml")
    assert promised.knob_set.baseline() == launch
    real, shape = config.Config(), promised.workload.shape
    assert (shape.hidden, shape.layers, shape.heads) == (real.width, real.layers, real.heads)
    for name in ("feed_forward", "vocabulary", "sequence_length", "global_batch"):
        assert getattr(shape, name) == getattr(real, name)
    parser = config.parser()
    for knob in promised.knobs.values():
        for value in knob.values if knob.flag else ():
            parser.parse_args([str(knob.flag), str(value)])


def test_what_apply_writes_to_launch_toml_takes_effect_and_flags_override_it(
    config: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = tmp_path / "launch.toml"
    launch.write_text('schema_version = 1\n[settings]\nmicro_batch = 4\nattention = "sdpa"\n')
    monkeypatch.setattr(config.launch_settings, "__defaults__", (launch,))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    settled, _ = config.configure(["--attention", "math"])
    assert (settled.micro_batch, settled.attention) == (4, "math")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--micro-batch", "8", "--ranks", "2"], "do not divide the global batch of 8"),
        (["--micro-batch", "3"], "do not divide the global batch of 8"),
        (["--micro-batch", "0"], "not a count"),
        (["--attention", "flash"], "invalid choice"),
    ],
)
def test_settings_that_cannot_run_end_with_code_2_and_their_reason(
    demo: Path, arguments: list[str], reason: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-B", "-m", "train", *arguments], cwd=demo, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert reason in ended.stderr
    assert "Traceback" not in ended.stderr


# ---- the patch library


def test_the_library_lists_exactly_the_patches_there_are(demo: Path) -> None:
    library = tomllib.loads((demo / "patches" / "library.toml").read_text())
    knobs = contract(demo).knobs
    assert library["schema_version"] == 1
    assert sorted(entry["file"] for entry in library["patch"]) == sorted(f"{name}.diff" for name in PATCHES)
    assert sorted(path.stem for path in (demo / "patches").glob("*.diff")) == sorted(PATCHES)
    for entry in library["patch"]:
        assert 0.5 < entry["expected_time_factor"] < 1.5
        assert all(value in knobs[name].values for name, value in entry.get("needs", {}).items())


@pytest.mark.parametrize("name", PATCHES)
def test_a_patch_applies_and_stays_in_the_editable_files(demo: Path, name: str) -> None:
    checked = git(demo, "apply", "--check", f"patches/{name}.diff")
    assert checked.returncode == 0, checked.stderr
    changed = git(demo, "apply", "--numstat", f"patches/{name}.diff").stdout.split()[2::3]
    assert changed
    assert set(changed) <= set(contract(demo).scope.editable)


def test_any_two_patches_apply_together_but_for_rivals(demo: Path) -> None:
    refused = set()
    for pair in itertools.combinations(PATCHES, 2):
        both = "".join((demo / "patches" / f"{name}.diff").read_text() for name in pair)
        if git(demo, "apply", "--check", "-", stdin=both).returncode != 0:
            refused.add(frozenset(pair))
    assert refused == RIVALS


# ---- training


@pytest.mark.training
def test_the_loss_falls(demo: Path, train: Trainer) -> None:
    losses = train(demo, "--steps", "30", "--micro-batch", "4").losses
    assert len(losses) == 30
    assert 5.3 < losses[0] < 5.6  # close to log(256) = 5.55: it starts by guessing
    assert sum(losses[-5:]) / 5 < losses[0] - 1.0


@pytest.mark.training
@pytest.mark.parametrize(("ranks", "flags"), SETTINGS, ids=lambda value: "-".join(value) if type(value) is list else "")
def test_launch_settings_do_not_change_what_is_learned(
    demo: Path, train: Trainer, baseline: Trained, ranks: int, flags: list[str]
) -> None:
    other = train(demo, "--steps", "4", "--seed", "3", *flags, ranks=ranks)
    assert other.codes == [0] * ranks, other.log
    assert other.weights[0] == baseline.weights[0]
    assert other.tokens == baseline.tokens
    assert other.losses == pytest.approx(baseline.losses, rel=1e-5)


@pytest.mark.training
def test_another_seed_is_another_training(demo: Path, train: Trainer, baseline: Trained) -> None:
    other = train(demo, "--steps", "2", "--seed", "4")
    assert other.weights[0] != baseline.weights[0]
    assert other.tokens[0] != baseline.tokens[0]


@pytest.mark.training
def test_bf16_learns_nearly_the_same(demo: Path, train: Trainer, baseline: Trained) -> None:
    other = train(demo, "--steps", "2", "--seed", "3", "--precision", "bf16")
    assert other.losses == pytest.approx(baseline.losses[:2], rel=2e-3)
    assert other.losses != baseline.losses[:2]


@pytest.mark.training
@pytest.mark.parametrize(("name", "flags"), HONEST.items(), ids=HONEST)
def test_an_honest_patch_keeps_the_losses(
    demo: Path, train: Trainer, baseline: Trained, tmp_path: Path, name: str, flags: list[str]
) -> None:
    other = train(patched(demo, tmp_path / "p", name), "--steps", "4", "--seed", "3", *flags)
    assert other.weights[0] == baseline.weights[0]
    assert other.tokens == baseline.tokens
    assert other.losses == pytest.approx(baseline.losses, rel=1e-3)


@pytest.mark.training
def test_all_honest_patches_together_keep_the_losses(
    demo: Path, train: Trainer, baseline: Trained, tmp_path: Path
) -> None:
    folder = patched(demo, tmp_path / "p", *(name for name in HONEST if name != "keep-last-block"))
    other = train(folder, "--steps", "4", "--seed", "3", "--micro-batch", "4", "--recompute", "full", ranks=2)
    assert other.codes == [0, 0], other.log
    assert other.losses == pytest.approx(baseline.losses, rel=1e-3)


@pytest.mark.training
def test_trimmed_padding_trains_on_fewer_tokens(demo: Path, train: Trainer, baseline: Trained, tmp_path: Path) -> None:
    other = train(patched(demo, tmp_path / "p", "trim-padding"), "--steps", "2", "--seed", "3")
    assert other.losses == pytest.approx(baseline.losses[:2], rel=0.02)  # the loss alone hardly shows it
    assert [len(row) for row in other.tokens[0]] == [96] * 8
    assert [len(row) for row in baseline.tokens[0]] == [128] * 8


@pytest.mark.training
def test_amortised_updates_leave_the_weights_where_they_were_on_odd_steps(
    demo: Path, train: Trainer, baseline: Trained, tmp_path: Path
) -> None:
    def stood_still(trained: Trained) -> list[bool]:
        return [before == after for before, after in itertools.pairwise(trained.weights)]

    other = train(patched(demo, tmp_path / "p", "amortise-updates"), "--steps", "4", "--seed", "3")
    assert stood_still(other) == [True, False, True, False]
    assert stood_still(baseline) == [False] * 4
    assert other.losses[0] == baseline.losses[0]  # one loss alone does not show it


@pytest.mark.training
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_setting_that_does_not_fit_ends_with_the_allocator_s_message(demo: Path, train: Trainer, ranks: int) -> None:
    ended = train(demo, "--steps", "3", "--micro-batch", "4", ranks=ranks, limit_mib=25)
    assert all(code not in (0, -9) for code in ended.codes)
    assert "DefaultCPUAllocator: can't allocate memory" in ended.log
    fits = train(demo, "--steps", "3", "--micro-batch", "1", ranks=ranks, limit_mib=25)
    assert fits.codes == [0] * ranks, fits.log


@pytest.mark.training
def test_held_out_evaluation_prints_one_loss_that_training_lowers(demo: Path, train: Trainer, tmp_path: Path) -> None:
    def evaluate(weights: Path, seed: int) -> float:
        printed = train(demo, "--evaluate", str(weights), "--seed", str(seed))
        assert printed.codes == [0], printed.log
        answer = json.loads(printed.log.splitlines()[-1])
        assert list(answer) == ["loss"]
        return float(answer["loss"])

    early, late = tmp_path / "early.pt", tmp_path / "late.pt"
    train(demo, "--steps", "1", save=early)
    train(demo, "--steps", "12", "--micro-batch", "4", ranks=2, save=late)
    assert evaluate(late, 5) < evaluate(early, 5) - 0.3
    assert evaluate(late, 5) == evaluate(late, 5)
    assert evaluate(late, 5) != evaluate(late, 6)


@pytest.mark.training
def test_held_out_files_are_never_trained_on(demo: Path) -> None:
    script = (
        "from train.data import corpus; held_out = corpus('held_out');"
        "print(len(corpus('train')), len(held_out), held_out[:4000] in corpus('train'))"
    )
    told: Any = subprocess.run(
        [sys.executable, "-B", "-c", script], cwd=demo, capture_output=True, text=True, check=True
    ).stdout.split()
    assert int(told[0]) > 5 * int(told[1]) > 100_000
    assert told[2] == "False"


@pytest.mark.training
def test_started_by_hand_the_program_starts_its_own_ranks(demo: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("WORLD_SIZE", "RANK")}
    ended = subprocess.run(
        [sys.executable, "-B", "-m", "train", "--steps", "2", "--ranks", "2"],
        cwd=demo,
        env={**environment, "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    assert [line.split()[:2] for line in ended.stdout.splitlines()] == [["step", "1"], ["step", "2"]]
