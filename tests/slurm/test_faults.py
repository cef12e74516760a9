"""What kills nights, made to happen on a real cluster: one test a fault, each with what the campaign makes of it."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from slurm_batches import Bench, agent_started, label
from slurm_cluster import Cluster, wait_for
from tiny_program import commit_all, git, make_tiny_project

from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.domain.trial import TrialLimits
from infrarsi_hpc.edges import batches
from infrarsi_hpc.errors import SiteError
from infrarsi_hpc.verify.ending import classify

pytestmark = pytest.mark.slurm


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# ---- it works


def test_an_array_brings_a_result_from_every_task(slurm: Cluster, bench: Bench) -> None:
    running = bench.submit(*[[bench.spec(f"t{i}")] for i in range(5)])
    assert set(running.labels().values()) == {"slept"}
    assert running.dispatcher.commands.num_calls["sbatch"] == 1
    script = next((running.folder / "submitit").glob("*submission*.sh")).read_text()
    assert "#SBATCH --array=0-4" in script, "what Slurm ran is the rendered template"
    assert "submitit.core._submit" not in script, "naive: submitit's own executor for arrays"


def test_several_trials_share_an_allocation_where_they_must(slurm: Cluster, bench: Bench) -> None:
    specs = [bench.spec(f"t{i}") for i in range(3)]
    taken = bench.submit(*bench.dispatcher().group(specs, is_one_allocation=True)).results()
    assert len({t.result.node for t in taken.values() if t.result}) == 1
    starts = [t.result.started_at for t in taken.values() if t.result]
    assert starts == sorted(starts)


def test_timed_trials_run_one_at_a_time_where_nodes_share_a_host(slurm: Cluster, bench: Bench) -> None:
    running = bench.submit(*[[bench.spec(f"t{i}", "--seconds", "1")] for i in range(3)], is_timed=True)
    spans = sorted((t.result.started_at, t.result.finished_at) for t in running.results().values() if t.result)
    assert len(spans) == 3
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_polling_asks_once_a_look_however_many_trials_there_are(slurm: Cluster, bench: Bench) -> None:
    running = bench.submit(*[[bench.spec(f"t{i:02d}")] for i in range(12)])
    polls = []
    running.results(on_poll=lambda: polls.append(1))
    calls = running.dispatcher.commands.num_calls
    assert calls["squeue"] <= len(polls) + 1
    assert calls.get("sacct", 0) <= calls["squeue"]


# ---- how a trial's job ends


@pytest.mark.full
def test_a_node_that_dies_under_a_trial_has_it_made_elsewhere(slurm: Cluster, bench: Bench) -> None:
    running = bench.submit([bench.spec("t1", "--until", str(bench.go))])
    wait_for(agent_started(running))
    node = next(row["NodeList"] for row in slurm.squeue() if row["State"] == "RUNNING")
    slurm.kill_node(node)
    bench.go.touch()
    taken = running.results()["t1"]
    assert taken.result is not None
    assert taken.result.node not in ("", node), "the requeued job ran on another node"
    assert (running.folder / "claim-1-0-restart-1").exists()


@pytest.mark.full
def test_a_node_that_dies_under_a_job_that_may_not_start_again_is_infra(slurm: Cluster, tmp_path: Path) -> None:
    bench = Bench(tmp_path, scheduler={"requeue": False})
    running = bench.submit([bench.spec("t1", "--until", str(bench.go))])
    wait_for(agent_started(running))
    slurm.kill_node(next(row["NodeList"] for row in slurm.squeue() if row["State"] == "RUNNING"))
    taken = running.results()["t1"]
    assert taken.ending is not None
    assert taken.ending.label == "infra"
    assert "NODE_FAIL" in taken.ending.evidence
    assert taken.lost_seconds > 0, "what it cost is counted"


def test_a_preempted_trial_is_made_again_by_its_requeued_job(slurm: Cluster, tmp_path: Path) -> None:
    bench = Bench(tmp_path, partition="low")
    running = bench.submit([bench.spec("t1", "--until", str(bench.go))])
    wait_for(agent_started(running))
    node = next(row["NodeList"] for row in slurm.squeue() if row["State"] == "RUNNING")
    high = slurm.sbatch("true", "--partition=all", f"--nodelist={node}", "--exclusive")
    slurm.wait_for_record(high, "COMPLETED")
    bench.go.touch()
    taken = running.results()["t1"]
    assert taken.result is not None
    assert taken.result.problem is None, "naive: the cancelled result of the first start"
    assert (running.folder / "claim-1-0-restart-1").exists()


@pytest.mark.full
def test_a_preempted_trial_whose_job_is_cancelled_is_infra(slurm: Cluster, tmp_path: Path) -> None:
    bench = Bench(tmp_path, partition="lowc")
    running = bench.submit([bench.spec("t1", "--until", str(bench.go))])
    wait_for(agent_started(running))
    node = next(row["NodeList"] for row in slurm.squeue() if row["State"] == "RUNNING")
    slurm.sbatch("sleep 1", "--partition=all", f"--nodelist={node}", "--exclusive")
    assert running.labels() == {"t1": "infra"}


def test_a_job_at_its_time_limit_is_a_timeout_and_no_memory_fact(slurm: Cluster, bench: Bench) -> None:
    running = bench.submit([bench.spec("t1", "--until", str(bench.go))])
    wait_for(agent_started(running))
    slurm.expire(running.id)
    assert running.labels() == {"t1": "timeout/limit"}


def test_memory_of_the_job_is_the_hosts_and_not_the_devices(slurm: Cluster, bench: Bench) -> None:
    running = bench.submit([bench.spec("t1", "--mib", "1500", "--seconds", "5")])
    taken = running.results()["t1"]
    assert label(taken) == "host_oom/cgroup"


def test_memory_of_the_device_is_ours_and_not_the_jobs(slurm: Cluster, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    project = tmp_path / "torch"
    commit = make_tiny_project(project)
    spec = bench.spec("t1", "--rows", "64").model_copy(
        update={
            "project": str(project),
            "baseline_commit": commit,
            "warm_imports": ("torch", "torch._dynamo"),
            "lengths": (4,),
            "limits": TrialLimits(memory_gib=0.02, memory_set_by="harness", wall_seconds=120, idle_seconds=120),
        }
    )
    taken = bench.submit([spec]).results()["t1"]
    assert taken.result is not None
    ending = classify(taken.result, spec)
    assert ending.label == "device_oom/limit"
    assert ending.bound_gib is not None
    assert 0.02 <= ending.bound_gib < 0.1, "the limit, or what was held and asked for at once"


def test_a_helper_that_is_killed_for_the_hosts_memory_taints_a_trial_that_ended_well(
    slurm: Cluster, tmp_path: Path
) -> None:
    bench = Bench(tmp_path)
    project = tmp_path / "torch"
    make_tiny_project(project)
    program = project / "prog" / "__main__.py"
    eats = """import subprocess
subprocess.run([sys.executable, "-S", "-c", "held = b'x' * (1500 << 20)"])
for step in range(args.steps):"""
    program.write_text(program.read_text().replace("for step in range(args.steps):", eats))
    commit_all(project)
    spec = bench.spec("t1").model_copy(
        update={
            "project": str(project),
            "baseline_commit": git(project, "rev-parse", "HEAD"),
            "warm_imports": ("torch", "torch._dynamo"),
            "lengths": (4,),
        }
    )
    running = bench.submit([spec])
    taken = running.results()["t1"]
    assert taken.result is not None
    ending = classify(taken.result, spec)
    assert ending.outcome is Outcome.OK, "naive: host_oom, though every rank came to its end"
    assert ending.is_tainted
    slurm.wait_for_record(running.id, "OUT_OF_MEMORY")


def test_a_job_that_a_person_cancels_is_cancelled(slurm: Cluster, bench: Bench) -> None:
    running = bench.submit([bench.spec("t1", "--until", str(bench.go))])
    wait_for(agent_started(running))
    slurm.run("scancel", running.id)
    assert running.labels() == {"t1": "cancelled"}


def test_a_cancelled_waiting_job_is_cancelled_too(slurm: Cluster, bench: Bench) -> None:
    slurm.run("scontrol", "update", "partitionname=h100", "state=down")
    running = bench.submit([bench.spec("t1")])
    slurm.run("scancel", running.id)
    assert running.labels() == {"t1": "cancelled"}


def test_a_failing_setup_line_is_told_with_the_logs_last_line(slurm: Cluster, tmp_path: Path) -> None:
    bench = Bench(tmp_path, environment={"setup": ("echo module not found >&2; exit 3",)})
    taken = bench.submit([bench.spec("t1")]).results()["t1"]
    assert taken.ending is not None
    assert taken.ending.label == "infra"
    assert "module not found" in taken.ending.evidence


# ---- Slurm itself is away


def test_an_outage_of_the_controller_at_submit_is_waited_out(slurm: Cluster, bench: Bench) -> None:
    slurm.stop("slurmctld")
    running = bench.submit([bench.spec("t1")], pause=lambda _: slurm.start("slurmctld"))
    assert any("Slurm cannot take it now" in word for word in bench.words)
    assert running.labels() == {"t1": "slept"}


def test_an_outage_of_the_controller_at_a_poll_leaves_the_last_state_standing(slurm: Cluster, bench: Bench) -> None:
    running = bench.submit([bench.spec("t1", "--until", str(bench.go))])
    wait_for(agent_started(running))
    running.dispatcher.look(running.folder, 1, running.job)
    slurm.stop("slurmctld")
    running.dispatcher._watch(running.folder, 1, running.job)._next = 0.0
    [sight] = running.dispatcher.look(running.folder, 1, running.job)
    assert sight.phase == "running", "naive: squeue shows no job, so all have ended"
    assert any("does not answer" in word for word in bench.words)
    slurm.start("slurmctld")
    bench.go.touch()
    assert running.labels() == {"t1": "slept"}


def test_an_outage_of_the_accounts_is_no_end_of_jobs(slurm: Cluster, bench: Bench) -> None:
    slurm.stop("slurmdbd")
    running = bench.submit([bench.spec("t1", "--seconds", "1")])
    assert running.labels() == {"t1": "slept"}
    second = Bench(bench.campaign.parent / "second")
    lost = second.submit([second.spec("t1", "--until", str(second.go))])
    wait_for(agent_started(lost))
    slurm.run("scancel", lost.id)
    assert lost.labels() == {"t1": "cancelled"}
    slurm.start("slurmdbd")


def test_a_site_without_accounts_is_told_once_and_works(slurm: Cluster, tmp_path: Path) -> None:
    commands = with_program(tmp_path, slurm, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    bench = Bench(tmp_path / "home", scheduler={"bin": str(commands)})
    running = bench.submit([bench.spec("t1")], [bench.spec("t2", "--until", str(bench.go))])
    wait_for(agent_started(running, "t2"))
    slurm.run("scancel", f"{running.id}_1")
    assert running.labels() == {"t1": "slept", "t2": "cancelled"}
    assert sum("keeps no accounts" in word for word in bench.words) == 1


def with_program(folder: Path, slurm: Cluster, name: str, text: str) -> Path:
    """A folder with Slurm's programs in which one is a stand-in."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(parents=True)
    for program in ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo"):
        path = bin_folder / program
        path.write_text(f"#!/bin/bash\n{text}\n" if program == name else f'#!/bin/bash\nexec /usr/bin/{program} "$@"\n')
        path.chmod(0o755)
    return bin_folder


def test_a_job_whose_sbatch_never_answered_is_adopted_and_not_made_twice(slurm: Cluster, tmp_path: Path) -> None:
    commands = with_program(tmp_path, slurm, "sbatch", '/usr/bin/sbatch "$@" > /dev/null; sleep 300')
    bench = Bench(tmp_path / "home", scheduler={"bin": str(commands)}, limits={"command_seconds": 10.0})
    running = bench.submit([bench.spec("t1")])
    assert any("found the job of an unanswered submission" in word for word in bench.words)
    assert running.labels() == {"t1": "slept"}
    assert len(slurm.sacct(running.id, "-X")) == 1


def test_a_ghost_job_that_starts_after_it_was_given_up_makes_nothing(slurm: Cluster, bench: Bench) -> None:
    tasks = [[bench.spec("t1")]]
    folder = bench.write(tasks)
    assert batches.claim(folder, 1, 0), "the head gives the submission up"
    dispatcher = bench.dispatcher()
    job = dispatcher.submit(folder, 1, tasks)
    slurm.wait_for_state(str(job["id"]), "COMPLETED")
    assert not (bench.campaign / "trials" / "t1" / "result.json").exists()


# ---- refusals


@pytest.mark.parametrize(
    ("changes", "partition", "field"),
    [
        ({"user": {"account": "nobody"}}, "h100", "user.account"),
        ({"user": {"qos": "gold"}}, "h100", "user.qos"),
        ({"partition": "ghost"}, "ghost", "partition.name"),
        ({"partition": "h100", "max_time": "600"}, "h100", "partition.max_time"),
        ({"partition": "h100", "gpus_per_node": 8}, "h100", "gpu"),
    ],
)
def test_a_refusal_for_good_stops_and_names_the_profiles_field(
    slurm: Cluster, tmp_path: Path, changes: dict, partition: str, field: str
) -> None:
    if "partition" in changes:
        changed = {k: v for k, v in changes.items() if k != "partition"}
        bench = Bench(tmp_path)
        profile = bench.site.model_dump()
        row = next((p for p in profile["partition"] if p["name"] == partition), None)
        if row is None:
            profile["partition"] = [*profile["partition"], {"name": partition, "shares_host": True}]
        else:
            row.update(changed)
        bench.site = type(bench.site).model_validate(profile)
        bench.partition = partition
    else:
        bench = Bench(tmp_path, **changes)
    many = "gpus_per_node" in changes
    spec = bench.spec("t1", wall_seconds=30000.0 if "max_time" in changes else 60.0)
    if many:
        spec = spec.model_copy(update={"device": "cuda", "ranks": 8})
    with pytest.raises(SiteError) as caught:
        bench.submit([spec])
    assert field in str(caught.value)
    assert "infrarsi site show testbed" in str(caught.value)
    assert bench.words == [], "nothing was tried again"


def test_the_submit_limit_is_waited_for(slurm: Cluster, tmp_path: Path) -> None:
    bench = Bench(tmp_path, user={"qos": "tiny"}, limits={"submit_jobs": 2})
    held = [slurm.sbatch("sleep 60", "--qos=tiny") for _ in range(2)]
    tasks = bench.dispatcher().group([bench.spec("t1"), bench.spec("t2")], is_one_allocation=False)
    assert len(tasks) == 2
    freed = threading.Event()

    def pause(seconds: float) -> None:
        if not freed.is_set():
            slurm.run("scancel", *held)
            freed.set()
        time.sleep(min(seconds, 1))

    running = bench.submit(*tasks, pause=pause)
    assert freed.is_set()
    assert any("submit limit is reached" in word for word in bench.words)
    assert set(running.labels().values()) == {"slept"}


# ---- files


def test_a_result_that_appears_late_is_taken(slurm: Cluster, tmp_path: Path) -> None:
    bench = Bench(tmp_path, storage={"result_grace_seconds": 60.0})
    running = bench.submit([bench.spec("t1", "--seconds", "1")])
    shown = bench.campaign / "trials" / "t1" / "result.json"
    hidden = shown.with_name("hidden")
    wait_for(shown.exists)
    shown.rename(hidden)  # as a file server's cache would have it
    slurm.wait_for_state(running.id, "COMPLETED")
    looks = []

    def show_later() -> None:
        looks.append(1)
        phases = [s.phase for s in running.dispatcher.look(running.folder, 1, running.job)]
        if phases == ["over"] and hidden.exists():
            hidden.rename(shown)

    assert running.labels(on_poll=show_later) == {"t1": "slept"}
    assert looks


@pytest.mark.root
def test_a_quota_that_is_full_while_writing_is_infra_with_its_reason(slurm: Cluster, tmp_path: Path) -> None:
    home = tmp_path / "small"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(home)], check=True)
    try:
        bench = Bench(tmp_path)
        bench.campaign = home / "campaign"
        running = bench.submit([bench.spec("t1", "--until", str(bench.go))])
        wait_for(agent_started(running))
        with open(home / "filler", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                pass
        bench.go.touch()
        taken = running.results()["t1"]
        assert taken.ending is not None
        assert taken.ending.label == "infra"
    finally:
        slurm.run("scancel", running.id)
        wait_for(lambda: not slurm.squeue())
        subprocess.run(["umount", "--lazy", str(home)], check=True)


def test_a_number_that_slurm_used_before_is_not_taken_for_our_job(slurm: Cluster, bench: Bench) -> None:
    before = int(slurm.sbatch("exit 3"))
    slurm.wait_for_record(str(before), "FAILED")
    slurm.stop("slurmctld")
    shutil.rmtree(slurm.base / "state")
    (slurm.base / "state").mkdir()
    slurm.start("slurmctld")
    running = bench.submit([bench.spec("t1", "--seconds", "3")])
    assert int(running.id) <= before, "the controller counts from the beginning again"
    assert running.labels() == {"t1": "slept"}


def test_a_head_on_another_login_node_finds_the_jobs_of_the_first(slurm: Cluster, bench: Bench) -> None:
    running = bench.submit([bench.spec("t1", "--until", str(bench.go))])
    program = """
import json, sys
from pathlib import Path
from infrarsi_hpc.edges.sites import read_profile
from infrarsi_hpc.edges.slurm.dispatcher import SlurmDispatcher
home = Path(sys.argv[1])
site = read_profile("testbed", {}, home)
dispatcher = SlurmDispatcher(site, home / "campaign", sys.argv[2])
found = dispatcher.adopt(home / "campaign" / "rounds" / "r0001", 1)
print(json.dumps(found))
"""
    home = bench.campaign.parent
    elsewhere = ["unshare", "--uts", "sh", "-c", 'hostname login2 && exec "$@"', "sh"]
    done = subprocess.run(
        [*elsewhere, sys.executable, "-c", program, str(home), bench.tag],
        env=slurm.environment | {"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["id"] == running.job["id"]
    bench.go.touch()
    assert running.labels() == {"t1": "slept"}
