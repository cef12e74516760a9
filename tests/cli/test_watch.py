"""Watching a campaign from outside: what is new is read, what goes on is shown, and nothing is locked or written."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from campaign_folder import CampaignFolder, finished_campaign
from hypothesis import given, settings
from hypothesis import strategies as st

from infrarsi_hpc.cli.live import Live, clock
from infrarsi_hpc.cli.watch import Watcher, follow, limits_of
from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.edges.ledger import Ledger, load_state
from infrarsi_hpc.edges.ledger_tail import LedgerTail
from infrarsi_hpc.edges.lock import held
from infrarsi_hpc.errors import LedgerError
from infrarsi_hpc.stages.run.activity import activity_of, open_jobs
from infrarsi_hpc.stages.run.waiting import WaitingReasons
from infrarsi_hpc.stages.status import nodes_left_out


def infrarsi(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "infrarsi_hpc.cli.app", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, timeout=300)


def picture(campaign: CampaignFolder, now: float | None = None) -> list[str]:
    watcher = Watcher(campaign.folder)
    now = time.time() if now is None else now
    return watcher.picture(*watcher.look(now), now)


# ---- reading on


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return finished_campaign(tmp_path_factory.mktemp("whole")).ledger.read_bytes()


@settings(max_examples=30)
@given(st.lists(st.integers(0, 5000), max_size=6))
def test_a_ledger_read_piece_by_piece_is_the_ledger_read_at_once(whole: bytes, cuts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        tail = LedgerTail(path)
        assert not tail.poll(), "there is none yet"
        for cut in [*sorted(cuts), len(whole)]:
            path.write_bytes(whole[:cut])
            tail.poll()
            assert tail.state.last_seq == whole[:cut].count(b"\n")
        assert tail.state == load_state(path)
        assert not tail.poll()


def test_only_new_bytes_are_read(tmp_path: Path) -> None:
    campaign = CampaignFolder(tmp_path)
    tail = LedgerTail(campaign.ledger)
    assert tail.poll()
    with open(campaign.ledger, "r+b") as file:  # nobody would see this who does not read it again
        file.write(b"?" * 40)
    with open(campaign.ledger, "ab") as file:
        event = {"schema_version": 1, "seq": 2, "time": 1.0, "event": "noted", "text": "new"}
        file.write(json.dumps(event).encode() + b"\n")
    with pytest.raises(LedgerError):
        load_state(campaign.ledger)
    assert tail.poll()
    assert tail.state.notes == ["new"]


def test_a_line_that_a_dead_head_left_half_is_passed_over_once_the_next_head_cut_it_off(tmp_path: Path) -> None:
    campaign = CampaignFolder(tmp_path)
    tail = LedgerTail(campaign.ledger)
    tail.poll()
    for rest in (b'{"schema_version":1,"seq":2,"ti', b"\x00\x00\x00\n"):
        with open(campaign.ledger, "ab") as file:
            file.write(rest)
        tail.poll()
        assert tail.state == load_state(campaign.ledger)
        campaign.say("noted", text="on")
        tail.poll()
        assert tail.state == load_state(campaign.ledger)
    assert tail.state.notes == ["on", "on"]


def test_a_ledger_restored_from_a_backup_is_read_anew(tmp_path: Path) -> None:
    campaign = CampaignFolder(tmp_path)
    backup = campaign.ledger.read_bytes()
    campaign.plan(3)
    tail = LedgerTail(campaign.ledger)
    tail.poll()
    assert len(tail.state.trials) == 3
    campaign.ledger.write_bytes(backup)
    tail.poll()
    assert tail.state == load_state(campaign.ledger)


@pytest.mark.parametrize(
    "line",
    [
        b"garbage\n",
        b"{}\n",
        b'{"schema_version":9,"seq":2,"time":1,"event":"noted","text":"x"}\n',
        b'{"schema_version":1,"seq":7,"time":1,"event":"noted","text":"x"}\n',
        b'{"schema_version":1,"seq":2,"time":1,"event":"noted"}\n',
    ],
)
def test_damage_is_said_every_time_until_it_is_mended(tmp_path: Path, line: bytes) -> None:
    campaign = CampaignFolder(tmp_path)
    good = campaign.ledger.read_bytes()
    tail = LedgerTail(campaign.ledger)
    tail.poll()
    more = b'{"schema_version":1,"seq":3,"time":1,"event":"noted","text":"y"}\n'
    campaign.ledger.write_bytes(good + line + more)
    for _ in range(2):
        with pytest.raises(LedgerError):
            tail.poll()
    campaign.ledger.write_bytes(good)
    tail.poll()
    assert tail.state == load_state(campaign.ledger)


# ---- what goes on


def busy_campaign(root: Path) -> CampaignFolder:
    """Four trials: one finished, one that runs, one whose agent is silent, one that waits."""
    campaign = CampaignFolder(root, at=time.time() - 1000)
    campaign.plan(4)
    campaign.submit(num_tasks=4)
    campaign.finish("t0001", step=0.25)
    campaign.begin(1, "t0002", node="node7", seconds=90)
    campaign.begin(2, "t0003", node="node8", age=3600)
    return campaign


def test_running_silent_and_waiting_tasks_are_told_apart(tmp_path: Path) -> None:
    campaign = busy_campaign(tmp_path)
    activity = activity_of(campaign.folder, load_state(campaign.ledger), time.time())
    assert [(task.trial, task.node, task.is_silent) for task in activity.running] == [
        ("t0002", "node7", False),
        ("t0003", "node8", True),
    ]
    assert [task.trials for task in activity.waiting] == [("t0004",)]
    # naive: only what is in the ledger; what runs now costs 90 s on 4 devices beside it
    assert activity.running_device_seconds == pytest.approx(360, abs=8)


def test_a_later_trial_of_a_task_is_as_old_as_the_end_of_the_one_before(tmp_path: Path) -> None:
    campaign = CampaignFolder(tmp_path, at=time.time() - 100)
    campaign.plan(2, tasks=1)
    campaign.submit(num_tasks=1, num_devices=1)
    campaign.begin(0, "t0002", seconds=95)
    campaign.finish("t0001")
    now = campaign.at + 20
    (task,) = activity_of(campaign.folder, load_state(campaign.ledger), now).running
    assert task.trial == "t0002"
    assert task.seconds == pytest.approx(30), "naive: 95 and more, since the agent began"


@pytest.mark.parametrize(
    "heartbeat",
    ["{", "[]", '{"time": "x"}', json.dumps({"time": 4e9, "trial": ["t0001"], "node": {"x": 1}, "started": "soon"})],
)
def test_a_heartbeat_that_cannot_be_read_is_no_trouble(tmp_path: Path, heartbeat: str) -> None:
    campaign = CampaignFolder(tmp_path)
    campaign.plan(1)
    campaign.submit()
    campaign.begin(0, "t0001")
    campaign.write("rounds/r0001/heartbeat-0.json", heartbeat)
    (task,) = activity_of(campaign.folder, load_state(campaign.ledger), time.time()).running
    assert (task.trial, task.seconds) == ("t0001", 0.0)


SITE = SiteProfile.model_validate(
    {"schema_version": 1, "name": "s", "scheduler": {"kind": "slurm"}, "partition": [{"name": "gpu"}]}
)
SQUEUE = """#!/bin/sh
echo "$@" >> {calls}
cat {answer}
"""


def test_slurms_reason_is_asked_seldom_and_stands_through_an_outage(tmp_path: Path) -> None:
    campaign = busy_campaign(tmp_path)
    calls, answer = tmp_path / "calls", tmp_path / "answer"
    program = tmp_path / "bin" / "squeue"
    program.parent.mkdir()
    program.write_text(SQUEUE.format(calls=calls, answer=answer))
    program.chmod(0o755)
    answer.write_text("4714|4711|3|PENDING|Priority|||N/A|1:00:00|0:00|1||infrarsi-x\n")
    site = SITE.model_copy(update={"scheduler": SITE.scheduler.model_copy(update={"bin": str(program.parent)})})
    now = 0.0
    reasons = WaitingReasons(site, clock=lambda: now)
    jobs = open_jobs(campaign.folder, load_state(campaign.ledger))
    assert reasons.look(jobs) == {(1, 3): "Priority"}
    now = 5.0
    reasons.look(jobs)
    assert len(calls.read_text().splitlines()) == 1
    answer.write_text("slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
    now = 60.0
    assert reasons.look(jobs) == {(1, 3): "Priority"}
    assert len(calls.read_text().splitlines()) == 2
    assert "--jobs=4711" in calls.read_text()


# ---- the picture


def test_the_picture_has_everything_of_interest(tmp_path: Path) -> None:
    campaign = busy_campaign(tmp_path)
    arguments = ["--until", "2999-01-01T07:00", "--budget", "2", "--max-trials", "9"]
    campaign.write("run.json", json.dumps({"schema_version": 1, "arguments": arguments, "saved_at": 1.0}))
    text = "\n".join(picture(campaign))
    for part in (
        "campaign demo: waiting for jobs; no head: infrarsi campaigns resume demo",
        "1/4 trials (1 ok)  best 2.00x  2 running, 1 waiting",
        "1 of 9 search trials, 0.010 of 2 device-hours and 0.1",
        "until 2999-01-01 07:00",
        "  t0002  node7  1:3",
        "  t0003  node8  no word from its agent of late",
        "  t0004  job 4711",
        "  t0001  believed",
    ):
        assert part in text, text
    with Ledger(campaign.ledger):
        assert picture(campaign)[0] == f"campaign demo: running on {os.uname().nodename} pid {os.getpid()}"


def test_limits_are_the_contracts_unless_the_command_says_otherwise(tmp_path: Path) -> None:
    campaign = CampaignFolder(tmp_path, at=1.9e9)
    watcher = Watcher(campaign.folder)
    watcher.look(0.0)
    limits = limits_of(watcher.state, None)
    assert (limits.max_trials, limits.device_hours, limits.deadline) == (8, 4.0, None)


def test_a_campaign_that_has_not_begun_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / ".infrarsi" / "demo"
    folder.mkdir(parents=True)
    watcher = Watcher(folder)
    (line,) = watcher.picture(*watcher.look(0.0), 0.0)
    assert "has not begun" in line
    with held(folder / "head.lock"):
        (line,) = watcher.picture(*watcher.look(0.0), 0.0)
        assert "examines the baseline" in line


def test_escapes_of_an_agent_do_not_reach_the_terminal(tmp_path: Path) -> None:
    campaign = CampaignFolder(tmp_path)
    campaign.plan(1)
    campaign.submit()
    campaign.begin(0, "t0001", node="evil\x1b[2Jnode\n")
    campaign.write("run.json", json.dumps({"schema_version": 1, "arguments": [], "saved_at": 1.0}))
    done = infrarsi("watch", "--campaign", "demo", "--once", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "evilnode" in done.stdout
    assert "\x1b" not in done.stdout


# ---- following


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def steps_of(campaign: CampaignFolder):
    """What a head does between two looks, one step a look."""
    campaign.plan(2, tasks=1)
    campaign.submit(num_tasks=1)
    yield
    campaign.begin(0, "t0001")
    yield
    campaign.finish("t0001", step=0.25)
    yield
    campaign.finish("t0002", "crashed")
    yield
    campaign.close()
    yield


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_campaign_is_followed_to_its_end(tmp_path: Path, is_terminal: bool) -> None:
    campaign = CampaignFolder(tmp_path)
    steps = steps_of(campaign)
    said: list[str] = []
    stream = Terminal() if is_terminal else io.StringIO()
    before = set(campaign.folder.iterdir())
    follow(Watcher(campaign.folder), Live(stream=stream, tell=said.append), lambda: next(steps))
    assert next(steps, "over") == "over", "it looked until the end, and no longer"
    if is_terminal:
        assert said == []
        assert "closed: promoted" in stream.getvalue()
        assert "best 2.00x" in stream.getvalue()
    else:
        assert [line.split(": ", 1)[-1].split("; ")[0] for line in said if line.startswith("campaign")] == [
            "open", "waiting for jobs", "open", "closed: promoted",
        ]  # fmt: skip
        trials = [line for line in said if line.startswith("t0")]
        assert trials[0] == "t0001  runs on node7"
        assert trials[1].startswith("t0001  believed")
        assert trials[2] == "t0002  runs on node7"
        assert trials[3].startswith("t0002  crashed")
        assert len(trials) == 4
    assert set(campaign.folder.iterdir()) - before == {campaign.folder / "trials", campaign.folder / "rounds"}


def test_the_command_ends_when_the_campaign_is_closed_and_needs_no_terminal(tmp_path: Path) -> None:
    campaign = finished_campaign(tmp_path)
    campaign.write("run.json", json.dumps({"schema_version": 1, "arguments": [], "saved_at": 1.0}))
    done = infrarsi("watch", "--campaign", "demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "campaign demo: closed: promoted"
    assert [line.split()[0] for line in lines[1:]] == ["t0001", "t0002", "t0003"]
    missing = infrarsi("watch", "--campaign", "nowhere", cwd=tmp_path)
    assert missing.returncode == 4
    assert "no campaign nowhere" in missing.stderr


def test_durations_as_people_read_them() -> None:
    assert [clock(s) for s in (-1, 0, 61.9, 3599, 3600, 90061)] == [
        "0:00",
        "0:00",
        "1:01",
        "59:59",
        "1:00:00",
        "25:01:01",
    ]


# ---- status


def test_nodes_that_are_left_out_are_named_where_the_site_is_known(tmp_path: Path) -> None:
    campaign = CampaignFolder(tmp_path)
    state = load_state(campaign.ledger)
    campaign.write("nodes.json", json.dumps({"schema_version": 1, "exclude": ["n3"]}))
    assert nodes_left_out(state, campaign.folder, SITE) == ("n3",)
    assert nodes_left_out(state, campaign.folder, None) is None
    campaign.write("nodes.json", "{")
    assert nodes_left_out(state, campaign.folder, SITE) is None


def test_status_says_who_runs_it_and_what_is_open_beside_all_it_said_before(tmp_path: Path) -> None:
    campaign = busy_campaign(tmp_path)
    (tmp_path / "infrarsi.toml").write_text("")
    with Ledger(campaign.ledger):
        done = infrarsi("status", "--campaign", "demo", "--json", cwd=tmp_path)
        text = infrarsi("status", "--campaign", "demo", cwd=tmp_path).stdout
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)
    assert {
        "campaign", "is_closed", "closed_because", "num_search_trials", "num_promotion_runs", "num_unfinished",
        "outcomes", "refused", "baseline_step_seconds", "best_trial", "best_step_seconds", "device_hours", "promoted",
        "finalists",
    } < status.keys()  # fmt: skip
    assert status["head"] == {"host": os.uname().nodename, "pid": os.getpid()}
    (job,) = status["open_jobs"]
    assert (job["round"], job["id"], job["num_tasks"], job["num_running"], job["num_waiting"]) == (1, "4711", 3, 2, 1)
    assert status["device_hours_with_running"] == pytest.approx(0.01 + 0.1, rel=0.1)
    assert 800 < status["last_event_age_seconds"] < 1100
    assert f"head: process {os.getpid()} on" in text
    assert "round 1: slurm job 4711, 3 tasks open (2 running, 1 waiting)" in text
