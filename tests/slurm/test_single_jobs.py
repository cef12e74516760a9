"""Jobs that are no trials: the head, a program on several nodes, a command on a node; and asking about any job."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from slurm_batches import Bench, agent_started
from slurm_campaigns import COMMAND, check_each_trial_once, make_sleeping_campaign
from slurm_cluster import Cluster, wait_for
from tiny_program import make_tiny_campaign_project

from infrarsi_hpc.edges.ledger import load_state
from infrarsi_hpc.edges.slurm.commands import SlurmCommands
from infrarsi_hpc.edges.slurm.request import JobRequest, partition_of
from infrarsi_hpc.edges.slurm.single import submit_single
from infrarsi_hpc.errors import SiteError

pytestmark = pytest.mark.slurm


def infrarsi(
    project: Path, cluster: Cluster, *arguments: str, seconds: float = 300
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=project,
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


@pytest.mark.full
def test_a_head_as_a_job_submits_itself_again_before_its_limit(slurm: Cluster, tmp_path: Path) -> None:
    go = tmp_path / "go"
    project = make_sleeping_campaign(tmp_path, trial_seconds=0, until=go)
    arguments = (
        "run",
        "--campaign",
        "night",
        "--site",
        "testbed",
        "--max-trials",
        "4",
        "--seed",
        "1",
        "--no-experience",
    )
    started = infrarsi(project, slurm, *arguments, "--as-job", "--json")
    assert started.returncode == 0, started.stderr
    job = json.loads(started.stdout)["job"]
    again = infrarsi(project, slurm, *arguments, "--as-job")
    assert again.returncode == 4
    assert f"is job {job} already" in again.stderr
    ledger = project / ".infrarsi" / "night" / "ledger.jsonl"
    wait_for(lambda: ledger.exists() and b'"submitted"' in ledger.read_bytes())
    slurm.run("scancel", "--signal=USR1", "--batch", job)
    go.touch()
    wait_for(lambda: load_state(ledger).closed is not None)
    check_each_trial_once(project, slurm, "night", num_trials=4)
    logs = list((project / ".infrarsi" / "night").glob("head-*.log"))
    assert len(logs) == 2, "one log for each head"


@pytest.mark.full
def test_a_program_on_two_nodes_meets_at_the_first(slurm: Cluster, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    program = tmp_path / "meet.py"
    program.write_text(
        "import os, torch, torch.distributed as dist\n"
        "rank, world = int(os.environ['SLURM_PROCID']), int(os.environ['SLURM_NTASKS'])\n"
        "dist.init_process_group('gloo', rank=rank, world_size=world)\n"
        "total = torch.tensor([rank + 1.0]); dist.all_reduce(total)\n"
        "print('sum', total.item(), os.environ['SLURMD_NODENAME'], flush=True)\n"
    )
    request = JobRequest(
        name="meet",
        log=tmp_path / "job-%j.log",
        seconds=120,
        nodes=2,
        tasks_per_node=2,
        cpus=2,
        exclusive=False,
        values={"folder": str(tmp_path), "folders": [str(tmp_path)], "arguments": [str(program)], "ranks_per_node": 2},
    )
    job = submit_single(
        "multinode.sbatch.j2", bench.site, partition_of(bench.site), request, SlurmCommands(bench.site), tmp_path
    )
    slurm.wait_for_state(str(job), "COMPLETED", "FAILED")
    said = (tmp_path / f"job-{job}.log").read_text()
    assert said.count("sum 10.0") == 4, said
    assert "h100-0" in said
    assert "h100-1" in said


def test_a_refused_single_job_names_the_profiles_field(slurm: Cluster, tmp_path: Path) -> None:
    bench = Bench(tmp_path, user={"account": "nobody"})
    request = JobRequest(
        name="x",
        log=tmp_path / "j",
        seconds=60,
        values={"project": "/", "arguments": [], "folder": "/"},
        exclusive=False,
    )
    with pytest.raises(SiteError) as caught:
        submit_single(
            "command.sbatch.j2", bench.site, partition_of(bench.site), request, SlurmCommands(bench.site), tmp_path
        )
    assert "user.account" in caught.value.fix


def test_a_job_is_explained_by_its_number(slurm: Cluster, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    running = bench.submit([bench.spec("t1", "--until", str(bench.go))])
    wait_for(agent_started(running))
    slurm.run("scancel", running.id)
    slurm.wait_for_record(running.id, "CANCELLED")
    done = infrarsi(tmp_path, slurm, "explain", "--site", "testbed", running.id, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["outcome"], found["findings"][0]["state"]) == ("cancelled", "CANCELLED")
    assert "CANCELLED" in found["evidence"]
    alone = slurm.sbatch("true")
    slurm.wait_for_record(alone, "COMPLETED")
    done = infrarsi(tmp_path, slurm, "explain", "--site", "testbed", alone, "--json")
    assert json.loads(done.stdout)["outcome"] == "unknown", "a job that completed shows nothing by itself"
    unknown = infrarsi(tmp_path, slurm, "explain", "--site", "testbed", "999999")
    assert unknown.returncode == 4
    assert "knows no job 999999" in unknown.stderr


@pytest.mark.full
def test_a_campaign_of_real_training_goes_from_init_to_its_end(slurm: Cluster, tmp_path: Path) -> None:
    project = tmp_path / "project"
    make_tiny_campaign_project(project)
    assert infrarsi(project, slurm, "init").returncode == 0
    done = infrarsi(
        project,
        slurm,
        "run",
        "--site",
        "testbed",
        "--max-trials",
        "6",
        "--seed",
        "1",
        "--no-experience",
        "--json",
        seconds=900,
    )
    assert done.returncode in (0, 1), done.stderr
    assert "`infrarsi doctor` runs as job" in done.stderr, "the baseline was examined on a node"
    state = load_state(project / ".infrarsi" / "tiny" / "ledger.jsonl")
    assert state.closed is not None
    assert {t.ending.label for t in state.trials.values() if t.ending} == {"ok"}
    job = state.rounds[1].job
    assert job is not None
    explained = json.loads(infrarsi(project, slurm, "explain", "--site", "testbed", f"{job['id']}_0", "--json").stdout)
    assert explained["outcome"] == "ok"
    assert "t0001 ok, believed" in explained["evidence"]
    blocks = {(t.round, t.plan.pair) for t in state.trials.values() if t.purpose == "verify"}
    for number in {block for block, _ in blocks}:
        nodes = {v.node for v in state.visits if v.round == number}
        assert len(nodes) == 1, "the pairs of a block share an allocation"
