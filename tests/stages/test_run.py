"""Whole campaigns on a real, tiny torch program: to the end, through kills, interruptions and bad workloads."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tiny_program import CONTRACT, commit_all, make_tiny_campaign_project

from infrarsi_hpc.edges import local
from infrarsi_hpc.edges.ledger import load_state, read_events

pytestmark = [pytest.mark.training, pytest.mark.campaign]

COMMAND = [sys.executable, "-m", "infrarsi_hpc.cli.app"]


def infrarsi(project: Path, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"INFRARSI_STORE": str(project.parent / "store")}
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A locked and examined project; tests run campaigns of their own in it."""
    project = tmp_path_factory.mktemp("campaigns") / "project"
    make_tiny_campaign_project(project)
    assert infrarsi(project, "init").returncode == 0
    done = infrarsi(project, "doctor", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["step_seconds"] > 0.02  # the baseline sleeps 20 ms in every step
    assert report["phases"]["forward"] > 0
    return project


def start(project: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"INFRARSI_STORE": str(project.parent / "store")}
    return subprocess.Popen(
        [*COMMAND, "run", *arguments],
        cwd=project,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell's background job, which a test run may be, has it ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def check_each_trial_once(project: Path, campaign: str) -> None:
    """No finished trial is lost, none was made twice: ledger, folders and logs agree."""
    folder = project / ".infrarsi" / campaign
    events, rest = read_events(folder / "ledger.jsonl")
    assert rest == b""
    finished = Counter((e["trial"], e["attempt"]) for e in events if e["event"] == "finished")
    assert set(finished.values()) == {1}
    state = load_state(folder / "ledger.jsonl")
    assert state.closed is not None
    assert state.unfinished() == []
    ids = [t.plan.candidate.id for t in state.trials.values() if t.purpose == "search"]
    assert len(ids) == len(set(ids))
    for name, trial in state.trials.items():
        assert trial.attempt == 1, f"{name} was made {trial.attempt} times: {trial.ending}"
        claims = list((folder / "rounds" / f"r{trial.round:04d}").glob("claim-*"))
        assert claims


def test_a_campaign_ends_with_a_verified_speedup_a_report_and_a_commit(locked: Path) -> None:
    done = infrarsi(locked, "run", "--max-trials", "8", "--seed", "1", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["promoted"]["candidate"]["configuration"]["delay"] == 0
    assert summary["promoted"]["speedup"]["low"] > 1.0
    again = infrarsi(locked, "run", "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout) == summary, "a closed campaign is read, not run again"
    assert infrarsi(locked, "report").returncode == 0
    html = (locked / ".infrarsi" / "tiny" / "report.html").read_text()
    assert "delay" in html
    assert (locked / ".infrarsi" / "tiny" / "report.md").exists()
    applied = infrarsi(locked, "apply", "--yes")
    assert applied.returncode == 0, applied.stderr
    assert "delay = 0" in (locked / "launch.toml").read_text()
    assert infrarsi(locked, "apply", "--revert", "--yes").returncode == 0
    assert "delay = 20" in (locked / "launch.toml").read_text()
    segments = list((locked.parent / "store").glob("*/*.h5"))
    assert segments, "the experience store has the campaign's rounds"


def test_kills_lose_no_trial_and_make_none_twice(locked: Path) -> None:
    arguments = ("--campaign", "killed", "--max-trials", "5", "--seed", "2", "--no-experience")
    draw = random.Random(7)
    ledger = locked / ".infrarsi" / "killed" / "ledger.jsonl"
    for _ in range(3):  # ten of them on a real Slurm: tests/slurm/test_kills.py
        head = start(locked, *arguments)
        size = ledger.stat().st_size if ledger.exists() else 0
        # let it write something, then kill it at a random moment after that
        deadline = time.monotonic() + 300
        while head.poll() is None and time.monotonic() < deadline:
            if ledger.exists() and ledger.stat().st_size > size:
                break
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.8))
        head.kill()
        head.communicate()
        assert read_events(ledger)[0]
    done = infrarsi(locked, "run", *arguments, "--json")
    assert done.returncode in (0, 1), done.stderr
    check_each_trial_once(locked, "killed")


def test_ctrl_c_leaves_everything_resumable_and_no_process_behind(locked: Path) -> None:
    arguments = ("--campaign", "stopped", "--max-trials", "4", "--seed", "3", "--no-experience")
    head = start(locked, *arguments)
    ledger = locked / ".infrarsi" / "stopped" / "ledger.jsonl"
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not (ledger.exists() and b'"submitted"' in ledger.read_bytes()):
        time.sleep(0.05)
    os.kill(head.pid, signal.SIGHUP)  # a closed terminal stops nothing
    time.sleep(0.3)
    assert head.poll() is None
    os.kill(head.pid, signal.SIGINT)
    _, errors = head.communicate(timeout=300)
    assert head.returncode == 5
    assert "the same command goes on" in errors
    job = load_state(ledger).rounds[1].job
    assert job is not None
    assert not local.is_alive(job)
    done = infrarsi(locked, "run", *arguments, "--json")
    assert done.returncode in (0, 1), done.stderr
    state = load_state(ledger)
    assert state.closed is not None
    assert state.unfinished() == []


def test_the_head_stays_small_and_prints_a_job_script_that_a_shell_reads(locked: Path) -> None:
    code = (
        "import re, sys\n"
        "from infrarsi_hpc.cli.app import main\n"
        "sys.argv = ['infrarsi', 'run', '--campaign', 'small', '--max-trials', '3', '--json']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        # not ru_maxrss: that one is inherited from whoever started the process
        "peak_kib = int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "print(peak_kib / 1024, 'torch' in sys.modules, file=sys.stderr)"
    )
    environment = os.environ | {"INFRARSI_STORE": str(locked.parent / "store")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=locked, env=environment, capture_output=True, text=True, check=True)
    resident_mib, has_torch = done.stderr.splitlines()[-1].split()
    assert float(resident_mib) < 200
    assert has_torch == "False"
    script = infrarsi(locked, "run", "--print-job", "--max-trials", "3")
    subprocess.run(["bash", "-n"], input=script.stdout, text=True, check=True)
    assert "--max-trials 3" in script.stdout


def test_a_head_that_waits_for_its_time_is_seen_and_can_be_cancelled(locked: Path) -> None:
    arguments = ("--campaign", "tonight", "--start-at", "+2h")
    head = start(locked, *arguments)
    folder = locked / ".infrarsi" / "tonight"
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not (folder / "ledger.jsonl").exists():
        time.sleep(0.05)
    seen = infrarsi(locked, "status", "--campaign", "tonight")
    assert f"process {head.pid}" in seen.stdout, "naive: there is no campaign before its first event"
    assert infrarsi(locked, "run", *arguments).returncode == 4, "one head a campaign, also before it has begun"
    assert infrarsi(locked, "report", "--campaign", "tonight").returncode == 3
    assert infrarsi(locked, "cancel", "--campaign", "tonight").returncode == 0
    head.communicate(timeout=300)
    assert head.returncode == 5
    seen = infrarsi(locked, "status", "--campaign", "tonight")
    assert "it has not begun" in seen.stdout
    assert "it was asked to stop" in seen.stdout
    assert "infrarsi campaigns resume tonight" in seen.stdout


def test_a_cancel_while_the_baseline_is_examined_stops_that(tmp_path: Path) -> None:
    project = tmp_path / "project"
    make_tiny_campaign_project(project)
    assert infrarsi(project, "init").returncode == 0
    head = start(project, "--max-trials", "2")
    rounds = project / ".infrarsi" / "doctor" / "rounds"
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not list(rounds.glob("*/began-*")) and not list(rounds.glob("*/claim-*")):
        time.sleep(0.05)
    assert infrarsi(project, "cancel").returncode == 0
    _, errors = head.communicate(timeout=300)
    assert head.returncode == 5, errors
    assert "the doctor was stopped" in errors


def test_a_second_head_on_the_same_campaign_is_turned_away(locked: Path) -> None:
    arguments = ("--campaign", "double", "--max-trials", "2", "--no-experience")
    head = start(locked, *arguments)
    try:
        ledger = locked / ".infrarsi" / "double" / "ledger.jsonl"
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and not (ledger.exists() and ledger.stat().st_size):
            time.sleep(0.05)
        second = infrarsi(locked, "run", *arguments)
        assert second.returncode == 4
        assert "another infrarsi runs this campaign" in second.stderr
    finally:
        os.kill(head.pid, signal.SIGINT)
        head.communicate(timeout=300)


def test_a_dry_run_starts_and_writes_nothing(locked: Path) -> None:
    done = infrarsi(locked, "run", "--campaign", "dry", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["candidates"]
    assert not (locked / ".infrarsi" / "dry").exists()


def test_a_budget_that_is_spent_ends_the_campaign(locked: Path) -> None:
    done = infrarsi(locked, "run", "--campaign", "poor", "--budget", "0.000001", "--no-experience", "--json")
    summary = json.loads(done.stdout)
    assert summary["is_closed"]
    assert summary["num_search_trials"] == 0


@pytest.mark.parametrize(
    ("do", "words"),
    [
        ("crash", "told to crash"),
        ("nothing", "ended with exit code 0, and no"),
        ("hang", "timeout/hang"),
        ("nan", "diverged"),
    ],
)
def test_a_baseline_that_does_not_run_is_said_with_its_reason(tmp_path: Path, do: str, words: str) -> None:
    project = tmp_path / "project"
    contract = CONTRACT.replace('"--rows", "4"', f'"--rows", "4", "--do", "{do}"')
    # a limit that the others cannot meet, however slow the machine
    make_tiny_campaign_project(project, contract + f"\n[limits]\nidle_seconds = {3 if do == 'hang' else 300}\n")
    commit_all(project)
    assert infrarsi(project, "init").returncode == 0
    done = infrarsi(project, "doctor")
    assert done.returncode == 3
    assert "the baseline does not run" in done.stderr
    assert words in done.stderr
    assert "fix:" in done.stderr
    assert "Traceback (most recent call last)" not in done.stderr.split("last lines of its log")[0]


def test_try_prints_evidence_and_a_verdict(locked: Path) -> None:
    done = infrarsi(locked, "try", "--set", "delay=0", "--json")
    assert done.returncode == 0, done.stderr
    tried = json.loads(done.stdout)
    assert tried["verdict"]["belief"] == "believed"
    assert tried["reading"]["step_seconds"] < tried["baseline_step_seconds"]
    wrong = infrarsi(locked, "try", "--set", "delay=7")
    assert wrong.returncode == 2
    assert "its values: 20, 10, 0" in wrong.stderr


def test_a_detached_head_goes_on_without_its_terminal(locked: Path) -> None:
    arguments = ("run", "--campaign", "away", "--max-trials", "2", "--seed", "5", "--no-experience")
    done = infrarsi(locked, *arguments, "--detach", "--json")
    assert done.returncode == 0, done.stderr
    started = json.loads(done.stdout)
    assert os.getsid(started["pid"]) == started["pid"], "a session of its own"
    ledger = locked / ".infrarsi" / "away" / "ledger.jsonl"
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not (ledger.exists() and load_state(ledger).closed):
        time.sleep(0.2)
    check_each_trial_once(locked, "away")
    assert "t0001" in Path(started["log"]).read_text()
    both = infrarsi(locked, *arguments, "--detach", "--once")
    assert both.returncode == 2
