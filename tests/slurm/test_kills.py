"""A head that is killed at any moment, with real jobs under it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from slurm_campaigns import COMMAND, check_each_trial_once, make_sleeping_campaign, start_head
from slurm_cluster import Cluster, wait_for

from infrarsi_hpc.edges.ledger import HEAD_LOCK, load_state, read_events

pytestmark = pytest.mark.slurm


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_sleeping_campaign(tmp_path, trial_seconds=1)


def test_ten_kills_lose_no_trial_and_submit_none_twice(slurm: Cluster, project: Path) -> None:
    arguments = ("--max-trials", "8", "--seed", "2", "--batch", "4")
    ledger = project / ".infrarsi" / "killed" / "ledger.jsonl"
    draw = random.Random(11)
    for _ in range(10):
        head = start_head(project, slurm, "killed", *arguments)
        deadline = time.monotonic() + draw.uniform(0.4, 2.2)
        wait_for(lambda head=head, until=deadline: head.poll() is not None or time.monotonic() > until)
        head.kill()
        head.wait()
        if ledger.exists():
            read_events(ledger)
    head = start_head(project, slurm, "killed", *arguments)
    assert head.wait(timeout=300) in (0, 1), (project / "head.log").read_text()[-2000:]
    check_each_trial_once(project, slurm, "killed", num_trials=8)


def test_a_head_that_hands_over_leaves_its_trials_running(slurm: Cluster, tmp_path: Path) -> None:
    go = tmp_path / "go"
    project = make_sleeping_campaign(tmp_path, trial_seconds=0, until=go)
    arguments = ("--max-trials", "3", "--seed", "2")
    ledger = project / ".infrarsi" / "handed" / "ledger.jsonl"
    first = start_head(project, slurm, "handed", *arguments)
    wait_for(lambda: ledger.exists() and b'"submitted"' in ledger.read_bytes())
    first.send_signal(signal.SIGUSR1)
    assert first.wait(timeout=300) == 5
    assert slurm.squeue(), "naive: an interrupted head cancels its trials"
    go.touch()
    second = start_head(project, slurm, "handed", *arguments)
    assert second.wait(timeout=300) in (0, 1)
    check_each_trial_once(project, slurm, "handed", num_trials=3)


def test_cancel_stops_head_and_trials_from_elsewhere_and_the_same_command_goes_on(
    slurm: Cluster, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    project = make_sleeping_campaign(tmp_path, trial_seconds=0, until=go)
    arguments = ("--max-trials", "3", "--seed", "2")
    ledger = project / ".infrarsi" / "stopped" / "ledger.jsonl"
    head = start_head(project, slurm, "stopped", *arguments)
    wait_for(lambda: ledger.exists() and b'"submitted"' in ledger.read_bytes())
    command = [*COMMAND, "cancel", "--campaign", "stopped", "--site", "testbed"]
    subprocess.run(command, cwd=project, env=slurm.environment, check=True, capture_output=True)
    assert head.wait(timeout=300) == 5
    assert not [row for row in slurm.squeue() if row["State"] in ("PENDING", "RUNNING")]
    go.touch()
    again = start_head(project, slurm, "stopped", *arguments)
    assert again.wait(timeout=300) in (0, 1)
    state = load_state(ledger)
    assert state.closed is not None
    assert all(trial.is_final for trial in state.trials.values())


@pytest.mark.full
def test_the_budget_counts_what_runs_and_is_a_hard_stop(slurm: Cluster, tmp_path: Path) -> None:
    project = make_sleeping_campaign(tmp_path, trial_seconds=300)
    # the promotion's reserve is about 44 s, and two trials must be affordable beside it
    head = start_head(project, slurm, "dear", "--max-trials", "3", "--seed", "2", "--budget", str(55 / 3600))
    assert head.wait(timeout=300) in (0, 1)
    state = load_state(project / ".infrarsi" / "dear" / "ledger.jsonl")
    assert state.closed is None, "a larger budget goes on with it"
    assert 55 <= state.device_seconds() < 300, "what was stopped is counted; naive: two trials of 300 s"
    assert not [row for row in slurm.squeue() if row["State"] in ("PENDING", "RUNNING")]


def test_a_head_moves_to_another_login_node(slurm: Cluster, project: Path) -> None:
    arguments = ("--max-trials", "2", "--seed", "2")
    folder = project / ".infrarsi" / "moved"
    elsewhere = ("unshare", "--uts", "sh", "-c", 'hostname login2 && exec "$@"', "sh")
    first = start_head(project, slurm, "moved", *arguments, before=elsewhere)
    wait_for(
        lambda: (folder / "ledger.jsonl").exists() and b'"submitted"' in (folder / "ledger.jsonl").read_bytes(), 60
    )
    first.kill()
    first.wait()
    refused = start_head(project, slurm, "moved", *arguments)
    assert refused.wait(timeout=300) == 4, "from here nobody can see whether it lives"
    assert "login2" in (project / "head.log").read_text()
    long_ago = time.time() - 3600
    os.utime(folder / HEAD_LOCK, (long_ago, long_ago))
    assert start_head(project, slurm, "moved", *arguments).wait(timeout=300) in (0, 1)
    check_each_trial_once(project, slurm, "moved", num_trials=2)


def test_ticks_of_cron_bring_a_campaign_to_its_end(slurm: Cluster, project: Path) -> None:
    ledger = project / ".infrarsi" / "ticks" / "ledger.jsonl"

    def tick() -> bool:
        assert start_head(project, slurm, "ticks", "--once", "--max-trials", "2", "--seed", "1").wait(timeout=300) in (
            0,
            1,
        )
        return load_state(ledger).closed is not None

    wait_for(tick)
    check_each_trial_once(project, slurm, "ticks", num_trials=2)
