"""A training program of 40 lines that real agents run in tests: it learns, allocates, fails and hangs when told to."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from infrarsi_hpc.domain.trial import TrialResult
from infrarsi_hpc.edges.agent.main import run_task

SOURCE = """
import argparse, os, sys, time
import torch, torch.distributed as dist, torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--rows", type=int, default=2)
parser.add_argument("--depth", type=int, default=0)
parser.add_argument("--evaluate")
parser.add_argument("--chunks", type=int, default=1)
parser.add_argument("--delay", type=int, default=0)
parser.add_argument("--do", default="train")  # crash, nothing, nan, flood, hang, exit or desert
args = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(args.seed)
deep = [layer for _ in range(args.depth) for layer in (torch.nn.Linear(64, 64), torch.nn.GELU())]
model = torch.nn.Sequential(
    torch.nn.Embedding(256, 64), *deep, torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 256)
)
if args.evaluate:
    model.load_state_dict(torch.load(args.evaluate, weights_only=True))
    print('{"loss": %f}' % float(sum(p.abs().mean() for p in model.parameters())))
    raise SystemExit
if args.do == "crash":
    raise ValueError("told to crash")
if args.do == "nothing":
    raise SystemExit
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if world > 1:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
rows = args.rows // world
for step in range(args.steps):
    draw = torch.Generator().manual_seed(1000 * args.seed + step)
    tokens = torch.randint(256, (args.rows, 512), generator=draw)[rank * rows : (rank + 1) * rows]
    time.sleep(args.delay / 1000)
    for piece in tokens.chunk(args.chunks):
        loss = F.cross_entropy(model(piece).flatten(0, 1), piece.flatten()) / args.chunks
        loss.backward()
    if args.do == "nan":
        model[0].weight.data.fill_(float("nan"))
    optimizer.step()
    optimizer.zero_grad()
    if args.do == "flood":
        sys.stdout.write("noise " * 2_000_000 + "\\n")
    if step == 2 and (args.do == "exit" or (args.do == "desert" and rank == 1)):
        os._exit(9)
    if step == 2 and args.do in ("hang", "desert"):
        time.sleep(600)
"""


def make_tiny_project(folder: Path) -> str:
    """Write the program as a committed repository; gives the commit."""
    (folder / "prog").mkdir(parents=True)
    (folder / "prog" / "__main__.py").write_text(SOURCE)
    commit_all(folder)
    return git(folder, "rev-parse", "HEAD")


CONTRACT = """
schema_version = 1
name = "tiny"
[scope]
editable = ["prog/*.py"]
settings = "launch.toml"
[workload]
kind = "torch"
command = ["python", "-m", "prog", "--steps", "{steps}", "--seed", "{seed}", "--rows", "4"]
evaluate = ["python", "-m", "prog", "--evaluate", "{weights}", "--seed", "{seed}"]
[workload.shape]
layers = 1
hidden = 8
heads = 1
feed_forward = 8
vocabulary = 256
sequence_length = 512
global_batch = 4
[measurement]
trial_steps = 10
short_steps = 4
long_steps = 20
max_pairs = 6
[tolerances]
evaluation_relative = 0.2
[knobs.delay]
values = [20, 10, 0]
baseline = 20
flag = "--delay"
[knobs.chunks]
values = [1, 2, 4]
baseline = 4
flag = "--chunks"
"""


def make_tiny_campaign_project(folder: Path, contract: str = CONTRACT) -> None:
    """The program with a contract of two knobs: `delay` sleeps in every step, `chunks` splits the batch."""
    (folder / "prog").mkdir(parents=True)
    (folder / "prog" / "__main__.py").write_text(SOURCE)
    (folder / "launch.toml").write_text("schema_version = 1\n[settings]\ndelay = 20\nchunks = 4\n")
    (folder / "infrarsi.toml").write_text(contract)
    (folder / ".gitignore").write_text(".infrarsi/\n__pycache__/\n")
    commit_all(folder)


def commit_all(folder: Path) -> None:
    if not (folder / ".git").exists():
        git(folder, "init", "-q", "-b", "main")
        git(folder, "config", "user.name", "Test")
        git(folder, "config", "user.email", "test@example.org")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "state", "--allow-empty")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def spec(project: Path, commit: str, **changes: Any) -> dict[str, Any]:
    """A spec of the tiny program, as plain JSON-able data."""
    limits = {"memory_gib": None, "memory_set_by": "device", "wall_seconds": 600.0, "idle_seconds": 600.0}
    whole = {
        "schema_version": 1,
        "trial": "t1",
        "attempt": 1,
        "purpose": "search",
        "project": str(project),
        "baseline_commit": commit,
        "patches": [],
        "locked_files": {},
        "configuration": {},
        "command": ["python", "-m", "prog", "--steps", "{steps}", "--seed", "{seed}"],
        "evaluate": ["python", "-m", "prog", "--evaluate", "{weights}", "--seed", "{seed}"],
        "python": "",
        "warm_imports": ["torch", "torch._dynamo"],
        "environment": {},
        "device": "cpu",
        "ranks": 1,
        "lengths": [6],
        "seed": 3,
        "limits": limits | changes.pop("limits", {}),
        "evidence": {"profile": False, "evaluation_seed": None} | changes.pop("evidence", {}),
    }
    arguments = changes.pop("arguments", [])
    whole.update(changes)
    whole["command"] = [*whole["command"], *arguments]
    return whole


def run_specs(home: Path, *specs: dict[str, Any]) -> list[TrialResult]:
    """Let a real agent make these trials in a batch of their own (in this process; the ranks are real ones)."""
    for item in specs:
        folder = home / "trials" / item["trial"]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "spec.json").write_text(json.dumps(item))
    (home / "batch.json").write_text(
        json.dumps({"schema_version": 1, "attempt": 1, "tasks": [[str(home / "trials" / s["trial"]) for s in specs]]})
    )
    assert run_task(str(home), 1) == "done"
    return [TrialResult.model_validate_json((home / "trials" / s["trial"] / "result.json").read_bytes()) for s in specs]
