"""The testbed itself: what the other tests rely on, and that it leaves a machine as it found it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import TESTBED, Cluster, free_ports, wait_for

pytestmark = pytest.mark.slurm

EAT_300_MIB = f"{sys.executable} -S -c 'import time; held = bytearray(300 << 20); time.sleep(20)'"


def processes_with(variable: str) -> list[int]:
    """Living processes that have a variable in their environment."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if variable.encode() in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
        except OSError:
            continue
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_up_where_all_is_up_changes_nothing(slurm: Cluster) -> None:
    before = slurm.status()
    assert before["healthy"]
    assert set(before["nodes"].values()) == {"idle"}
    assert slurm.up() == f"export SLURM_CONF={slurm.conf}\n"
    assert slurm.status()["daemons"] == before["daemons"]


def test_two_jobs_on_one_node_see_a_typed_gpu_each(slurm: Cluster) -> None:
    script = "echo $(hostname) $CUDA_VISIBLE_DEVICES; sleep 60"
    jobs = [slurm.sbatch(script, "-pa100", "-wa100-1", "--gres=gpu:a100:1") for _ in range(2)]
    outputs = {wait_for(lambda job=job: slurm.output(job), what="first line") for job in jobs}  # type: ignore[misc]
    assert outputs == {"a100-1 0\n", "a100-1 1\n"}


def test_a_job_over_its_memory_is_ended_and_accounted_for(slurm: Cluster) -> None:
    job = slurm.sbatch(f"{EAT_300_MIB}; echo the script went on", "--mem=50M")
    enforced = slurm.status()["settings"]["memory_cgroup"] is not None
    record = slurm.wait_for_record(job, "OUT_OF_MEMORY" if enforced else "FAILED")
    assert record["ExitCode"] == ("0:125" if enforced else "0:9")
    # the script may go on and end well: only the state says what happened
    assert ("the script went on" in slurm.output(job)) == enforced


def test_accounting_knows_a_job_with_its_steps(slurm: Cluster) -> None:
    job = slurm.sbatch("srun -n1 true; exit 3")
    expected = {job: ("FAILED", "3:0"), f"{job}.batch": ("FAILED", "3:0"), f"{job}.0": ("COMPLETED", "0:0")}
    # not the first FAILED: one of 144 such jobs under load was "FAILED 0:0" for one look, and then 3:0
    wait_for(lambda: {r["JobID"]: (r["State"], r["ExitCode"]) for r in slurm.sacct(job)} == expected, what="record")


REFUSALS = {
    "partition": ("-pnope", "Invalid partition name specified"),
    "partition of another account": ("-pvip", "Invalid account or account/partition combination specified"),
    "account": ("-Anope", "Invalid account or account/partition combination specified"),
    "qos": ("-qnope", "Invalid qos specification"),
    "time over the partition's": ("-t999", "Requested time limit is invalid (missing or exceeds some limit)"),
    "more nodes than there are": ("-N9", "More processors requested than permitted"),
    "more GPUs than a node has": ("--gres=gpu:h100:3", "Requested node configuration is not available"),
    "GPUs of another partition": ("--gres=gpu:a100:1", "Requested node configuration is not available"),
    "memory over a node's": ("--mem=99G", "Requested node configuration is not available"),
    "feature": ("-Cnope", "Invalid feature specification"),
    "node name": ("-wnope", "Invalid node name specified"),
    "array index over MaxArraySize": ("--array=0-5000", "Invalid job array specification"),
    "reservation": ("--reservation=nope", "Requested reservation is invalid"),
    "over a submit limit": ("-qtiny --array=0-3", "QOSMaxSubmitJobPerUserLimit"),
    "GRES that no node has": ("--gres=fpga:1", "Invalid generic resource (gres) specification"),
    "time in no format": ("--time=soon", "Invalid --time specification"),
}


@pytest.mark.parametrize(("options", "words"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_wrong_request_is_refused_in_slurms_words(slurm: Cluster, options: str, words: str) -> None:
    done = slurm.run("sbatch", "-o/dev/null", *options.split(), "--wrap=true")
    assert done.returncode != 0
    assert words in done.stderr
    assert slurm.squeue() == []


def test_three_jobs_of_the_small_qos_are_accepted_and_a_fourth_is_not(slurm: Cluster) -> None:
    slurm.sbatch("sleep 60", "-qtiny", "--array=0-2")
    fourth = slurm.run("sbatch", "-qtiny", "-o/dev/null", "--wrap=true")
    assert "job submit limit" in fourth.stderr


def test_a_closed_partition_refuses_and_is_open_for_the_next_test(slurm: Cluster) -> None:
    slurm.run("scontrol", "update", "partitionname=a100", "state=inactive")
    done = slurm.run("sbatch", "-pa100", "-o/dev/null", "--wrap=true")
    assert "Required partition not available (inactive or drain)" in done.stderr
    slurm.run("scontrol", "update", "nodename=h100-1", "state=drain", "reason=test")
    slurm.heal()
    assert set(slurm.status()["nodes"].values()) == {"idle"}
    slurm.wait_for_state(slurm.sbatch("true", "-pa100"), "COMPLETED")


def test_a_low_job_gives_way_and_begins_again(slurm: Cluster) -> None:
    low = slurm.sbatch("echo restarts: ${SLURM_RESTART_COUNT:-0}; sleep 60", "-plow", "-wh100-0", "--exclusive")
    wait_for(lambda: slurm.output(low) == "restarts: 0\n")
    high = slurm.sbatch("sleep 60", "-wh100-0", "--exclusive")
    slurm.wait_for_state(high, "RUNNING")
    slurm.wait_for_record(low, "PREEMPTED")
    slurm.run("scancel", high)
    slurm.begin_again(low)
    wait_for(lambda: slurm.output(low) == "restarts: 1\n", what="second start")


def test_a_job_of_the_cancelling_partition_gives_way_for_good(slurm: Cluster) -> None:
    low = slurm.sbatch("sleep 60", "-plowc", "-wh100-0", "--exclusive")
    slurm.wait_for_state(low, "RUNNING")
    slurm.sbatch("sleep 60", "-wh100-0", "--exclusive")
    assert slurm.wait_for_state(low, "PREEMPTED", "PENDING") == "PREEMPTED"


def test_a_killed_node_takes_its_jobs_along_and_a_stopped_one_does_not(slurm: Cluster) -> None:
    # a clean environment and a session of its own: known by neither its variables nor its terminal
    hidden = "env -i setsid sleep 60 & echo $!; wait"
    killed = slurm.sbatch(hidden, "-wh100-0", "--no-requeue")
    stopped = slurm.sbatch(hidden, "-wh100-1")
    pids = {job: int(wait_for(lambda job=job: slurm.output(job))) for job in (killed, stopped)}  # type: ignore[misc]
    slurm.stop("slurmd.h100-1")
    slurm.kill_node("h100-0")
    assert not is_running(pids[killed])
    assert is_running(pids[stopped])
    slurm.declare_down("h100-0")
    slurm.revive_node("h100-0")
    slurm.revive_node("h100-1")
    assert slurm.wait_for_record(killed, "NODE_FAIL")["NodeList"] == "h100-0"
    assert slurm.state(stopped) == "RUNNING"


def test_a_job_outlives_its_controller_and_the_database(slurm: Cluster) -> None:
    job = slurm.sbatch("sleep 60")
    slurm.wait_for_state(job, "RUNNING")
    slurm.stop("slurmctld")  # killed, it would have forgotten a job this young
    slurm.kill("slurmdbd")
    assert slurm.run("scontrol", "ping").returncode == 1
    assert "Problem talking to the database" in slurm.run("sacct", "-j", job).stderr
    slurm.heal_daemons()
    assert slurm.state(job) == "RUNNING"
    slurm.run("scancel", job)
    slurm.wait_for_record(job, "CANCELLED")


def test_a_controller_that_hangs_answers_again(slurm: Cluster) -> None:
    with slurm.frozen("slurmctld"), pytest.raises(subprocess.TimeoutExpired):
        slurm.run("squeue", seconds=0.5)
    assert slurm.squeue() == []


@pytest.fixture
def other() -> Iterator[Cluster]:
    """A second cluster beside the first, without accounting: that takes a second to start."""
    cluster = Cluster("other", "--accounting=none", "--max-array-size=5", "--grace=3")
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


def test_down_leaves_no_process_no_name_no_cgroup_and_no_folder(slurm: Cluster, other: Cluster) -> None:
    assert "accounting storage is disabled" in other.run("sacct").stderr
    assert "Invalid job array" in other.run("sbatch", "--array=0-5", "-o/dev/null", "--wrap=true").stderr
    job = other.sbatch("env -i sleep 300 & echo $!; trap '' TERM; wait; sleep 300", "--gres=gpu:2")
    task = int(wait_for(lambda: other.output(job)))
    cgroup = other.status()["settings"]["memory_cgroup"]
    names = f"# slurm-testbed {other.base}\n"
    assert names in Path("/etc/hosts").read_text()
    mine = slurm.status()
    other.down()
    assert not is_running(task)
    assert processes_with(f"SLURM_CONF={other.conf}") == []
    assert names not in Path("/etc/hosts").read_text()
    assert f"# slurm-testbed {slurm.base}\n" in Path("/etc/hosts").read_text()
    assert cgroup is None or not Path(cgroup).exists()
    assert not other.base.exists()
    assert slurm.status() == mine
    other.down()  # and once more: nothing to do


def test_a_process_that_only_has_a_recorded_id_is_never_signalled(other: Cluster) -> None:
    with subprocess.Popen(["sleep", "300"]) as stranger:
        pid = other.status()["daemons"]["slurmd.a100-0"]
        (other.base / "run" / "slurmd.a100-0.started").write_text(f"{stranger.pid} 12345")
        other.down()
        assert stranger.poll() is None
        stranger.kill()
        os.kill(pid, signal.SIGKILL)  # the one whose record was overwritten


def test_what_cannot_be_is_said_in_one_line(slurm: Cluster, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    new = slurm.base.with_name(f"{slurm.base.name}-new")
    wrong = {
        "holds something that is no testbed": ["up", f"--base={tmp_path}"],
        "cannot be had": ["up", f"--base={new}", f"--port-base={slurm.port_base}"],
        "runs with other settings": ["up", f"--base={slurm.base}", f"--port-base={free_ports()}"],
        "is no daemon of this testbed": ["stop", f"--base={slurm.base}", "sshd"],
        "there is no testbed in": ["start", f"--base={new}", "slurmctld"],
        "at most 60 letters": ["up", f"--base={tmp_path}/a folder"],
    }
    for words, arguments in wrong.items():
        done = slurm.run(sys.executable, str(TESTBED), *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert words in done.stderr
        assert done.stderr.startswith("slurm-testbed: ")
        assert done.stderr.count("\n") == 1
    assert (tmp_path / "thesis.tex").exists()
    assert not new.exists()
