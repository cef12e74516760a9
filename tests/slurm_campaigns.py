"""Whole campaigns on a real Slurm whose trials sleep: every part of a head is the real one, only training is not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from slurm_batches import SLEEPER
from slurm_cluster import Cluster
from tiny_program import CONTRACT, commit_all

from infrarsi_hpc.domain.noise import DoctorReport
from infrarsi_hpc.edges.ledger import load_state, read_events
from infrarsi_hpc.edges.project import open_project, write_doctor

COMMAND = [sys.executable, "-m", "infrarsi_hpc.cli.app"]
SLEEPY = """
[knobs.width]
values = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
baseline = 6
flag = "--width"
[knobs.depth]
values = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
baseline = 6
flag = "--depth"
"""


def make_sleeping_campaign(home: Path, *, trial_seconds: float, until: Path | None = None) -> Path:
    """A locked project of trials that sleep, with a doctor's report as if the baseline had been examined.

    With `until` they end when that file is there, and not before.
    """
    project = home / "project"
    (project / "prog").mkdir(parents=True)
    program = SLEEPER.replace(
        'parser.add_argument("--fill", default="")',
        'parser.add_argument("--fill", default="")\n'
        'for name in ("--width", "--depth", "--rows"):\n    parser.add_argument(name)',
    )
    (project / "prog" / "__main__.py").write_text(program)
    contract = CONTRACT[: CONTRACT.index("[knobs.delay]")] + SLEEPY
    contract = contract.replace(
        '"--rows", "4"]', f'"--rows", "4", "--seconds", "{trial_seconds}", "--until={until or ""}"]'
    )
    contract = contract.replace("[workload.shape]", "warm_imports = []\n[workload.shape]", 1).replace(
        "[measurement]",
        f"[limits]\nwall_seconds = {trial_seconds + 600}\nidle_seconds = {trial_seconds + 600}\n[measurement]",
    )
    (project / "infrarsi.toml").write_text(contract)
    (project / "launch.toml").write_text("schema_version = 1\n[settings]\nwidth = 6\ndepth = 6\n")
    (project / ".gitignore").write_text(".infrarsi/\n__pycache__/\n")
    commit_all(project)
    subprocess.run([*COMMAND, "init"], cwd=project, check=True, capture_output=True)
    opened = open_project(project)
    report = DoctorReport(
        contract_sha256=opened.contract.digest,
        baseline_commit=opened.lock.baseline_commit,
        device_key="cpu-test-1core",
        node="h100-0",
        measured_at=0.0,
        num_runs=5,
        step_seconds=0.1,
        within_run_cv=0.05,
        between_run_cv=0.05,
        detectable_speedup=1.05,
        pairs_needed=6,
        peak_gib=0.1,
        memory_kind="vmdata_growth",
        matmul_ceiling_flops=1e11,
        mfu=0.1,
        phases={},
        num_parameters=1,
        parameters_digest="",
        matmul_dtypes=("float32",),
        evaluation_loss=None,
        loss_spread_relative=0.01,
        evaluation_spread_relative=0.01,
        update_spread_relative=0.01,
        wall_seconds=1.0,
        device_seconds=1.0,
        reference={"1": (), "2": (), "3": ()},
    )
    write_doctor(opened, report, "testbed-h100")
    return project


def start_head(
    project: Path, cluster: Cluster, name: str, *arguments: str, before: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """`infrarsi run` on the testbed, in a session of its own; it writes to head.log."""
    with open(project / "head.log", "ab") as log:
        return subprocess.Popen(
            [*before, *COMMAND, "run", "--campaign", name, "--site", "testbed", "--no-experience", *arguments],
            cwd=project,
            env=cluster.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def check_each_trial_once(project: Path, cluster: Cluster, name: str, *, num_trials: int) -> None:
    """No trial is lost, none was submitted twice or made twice: ledger, folders and Slurm's own accounts agree."""
    folder = project / ".infrarsi" / name
    events, rest = read_events(folder / "ledger.jsonl")
    assert rest == b""
    state = load_state(folder / "ledger.jsonl")
    assert state.closed is not None
    assert state.unfinished() == []
    finished = Counter((e["trial"], e["attempt"]) for e in events if e["event"] == "finished")
    assert len(state.trials) == num_trials
    assert set(finished.values()) == {1}
    ran = Counter()
    for trial, record in state.trials.items():
        assert record.attempt == 1, f"{trial} was made {record.attempt} times: {record.ending}"
        result = json.loads((folder / "trials" / trial / "result.json").read_bytes())
        assert result["runs"], f"{trial}: {result['problem_text']}"
        ran[record.round] += 1
    for number in state.rounds:
        claims = list((folder / "rounds" / f"r{number:04d}").glob("claim-1-*"))
        assert len(claims) == ran[number], "every task was begun by one agent"
    done = cluster.run("sacct", "-X", "-n", "-P", "-S", "now-1day", "--format=JobName%100,JobID,State")
    jobs = {tuple(line.split("|")[:2]) for line in done.stdout.splitlines() if state.uid in line}
    bases = Counter(job for job, _ in {(name, job_id.partition("_")[0]) for name, job_id in jobs})
    assert set(bases.values()) <= {1}, f"a round was submitted twice: {bases}"
