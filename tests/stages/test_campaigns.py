"""A project's campaigns: told apart in a list, gone on with as they were begun, made small without losing anything."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from datetime import datetime
from pathlib import Path

import pytest
from campaign_folder import CampaignFolder, finished_campaign
from hypothesis import given, settings
from hypothesis import strategies as st

from infrarsi_hpc.cli.saved_arguments import parse_saved
from infrarsi_hpc.cli.stages import RunFlags
from infrarsi_hpc.edges import archive
from infrarsi_hpc.edges.ledger import Ledger, load_state
from infrarsi_hpc.edges.lock import held
from infrarsi_hpc.edges.saved_run import SavedRun, read_saved_run
from infrarsi_hpc.errors import InfrarsiError, InputRefused, LedgerError, SiteError, UsageError
from infrarsi_hpc.stages import campaigns, cleaning
from infrarsi_hpc.stages.cleaning import clean, plan_cleaning, restore
from infrarsi_hpc.stages.finished import log_reader

LONG_AGO = 1.6e9


def infrarsi(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "infrarsi_hpc.cli.app", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, timeout=300)


def files_below(folder: Path) -> dict[str, str]:
    """Every file, folder and link of the parts that are packed, with what is in it."""
    found = {}
    for part in archive.PARTS:
        for path in [folder / part, *(folder / part).rglob("*")]:
            name = path.relative_to(folder).as_posix()
            if path.is_symlink():
                found[name] = f"-> {os.readlink(path)}"  # noqa: PTH115 (a Path would tidy it up)
            elif path.is_dir():
                found[name] = "folder"
            elif path.exists():
                found[name] = path.read_bytes().hex()
    return found


# ---- list


def test_every_state_of_a_campaign_is_told_from_the_others(tmp_path: Path) -> None:
    finished_campaign(tmp_path, "done", at=1.1e9)
    CampaignFolder(tmp_path, "fresh", at=1.2e9).plan(2)
    waiting = CampaignFolder(tmp_path, "queued", at=1.3e9)
    waiting.plan(2)
    waiting.submit()
    damaged = CampaignFolder(tmp_path, "damaged", at=1.4e9)
    damaged.ledger.write_bytes(b"garbage\n" + damaged.ledger.read_bytes())
    running = CampaignFolder(tmp_path, "running", at=1.5e9)
    with Ledger(running.ledger):
        rows = {row.name: row for row in campaigns.list_campaigns(tmp_path)}
    assert [row.state for row in rows.values()] == [
        "damaged: its ledger, line 1 is not a ledger event",
        "closed: promoted",
        "open",
        "waiting for jobs",
        f"running on {socket.gethostname()} pid {os.getpid()}",
    ]
    done = rows["done"]
    assert (done.num_search_trials, done.promoted_speedup, done.device_hours) == (3, 1.25, pytest.approx(0.03))
    assert (done.started_at, done.last_event_at) == (
        1.1e9 + 10,
        load_state(tmp_path / ".infrarsi/done/ledger.jsonl").last_time,
    )
    assert done.usage.num_inodes > 10


def test_a_head_that_was_killed_is_not_shown_as_running(tmp_path: Path) -> None:
    campaign = CampaignFolder(tmp_path)
    code = (
        f"import os\nfrom pathlib import Path\nfrom infrarsi_hpc.edges.ledger import Ledger\n"
        f"ledger = Ledger(Path({str(campaign.ledger)!r}))\nos.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert (campaign.folder / "head.lock").exists()
    assert campaigns.list_campaigns(tmp_path)[0].state == "open"


@pytest.mark.parametrize(("age", "state"), [(5.0, "running on login9 pid 12"), (5000.0, "open")])
def test_a_head_on_another_host_lives_as_long_as_it_renews_its_lock(tmp_path: Path, age: float, state: str) -> None:
    campaign = CampaignFolder(tmp_path)
    lock = campaign.write("head.lock", json.dumps({"host": "login9", "pid": 12, "started": "x:1"}))
    os.utime(lock, (time.time() - age, time.time() - age))
    assert campaigns.list_campaigns(tmp_path)[0].state == state


JOBS = {
    "handed out, and nothing came back": (lambda c: None, "waiting for jobs"),
    "one of two came back": (lambda c: c.finish("t0001"), "waiting for jobs"),
    "both came back": (lambda c: [c.finish("t0001"), c.finish("t0002")], "open"),
    "both were lost, and nothing was submitted since": (
        lambda c: [c.finish("t0001", "infra"), c.finish("t0002", "infra")],
        "open",
    ),
    "one was lost and is out again": (
        lambda c: [
            c.finish("t0001", "infra"),
            c.finish("t0002"),
            c.hand_out([["t0001"]], attempt=2),
            c.submit(attempt=2),
        ],
        "waiting for jobs",
    ),
    "it was told to stop": (lambda c: c.write("rounds/r0001/cancel", ""), "open"),
    "its submission got no answer": (lambda c: c.say("submitting", round=1, attempt=1), "waiting for jobs"),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_job_is_open_until_every_attempt_that_was_handed_out_has_come_back(tmp_path: Path, name: str) -> None:
    then, state = JOBS[name]
    campaign = CampaignFolder(tmp_path)
    campaign.plan(2)
    campaign.submit()
    then(campaign)
    assert campaigns.list_campaigns(tmp_path)[0].state == state


def test_the_list_is_a_table_or_json(tmp_path: Path) -> None:
    assert "no campaigns yet" in infrarsi("campaigns", "list", cwd=tmp_path).stdout
    finished_campaign(tmp_path)
    listed = json.loads(infrarsi("campaigns", "list", "--json", cwd=tmp_path).stdout)
    assert {"name": "demo", "state": "closed: promoted", "promoted_speedup": 1.25}.items() <= listed[0].items()
    assert "closed: promoted" in infrarsi("campaigns", "list", cwd=tmp_path).stdout


# ---- clean


def test_packing_keeps_every_byte_the_ledger_and_the_report_and_takes_few_inodes(tmp_path: Path) -> None:
    campaign = finished_campaign(tmp_path, num=20)
    before = files_below(campaign.folder)
    ledger = campaign.ledger.read_bytes()
    (cleaned,) = [clean(plan) for plan in plan_cleaning(tmp_path)]
    assert cleaned.problem == ""
    assert cleaned.plan.before.num_inodes > 60
    assert cleaned.after.num_inodes == 4  # the folder, the ledger, the report and the archive
    assert cleaned.after.num_bytes < cleaned.plan.before.num_bytes
    assert campaign.ledger.read_bytes() == ledger
    assert (campaign.folder / "report.html").exists()
    assert plan_cleaning(tmp_path) == [], "once is enough"
    assert campaigns.list_campaigns(tmp_path)[0].is_packed
    assert restore(campaign.folder) > 60
    assert files_below(campaign.folder) == before
    assert sorted(p.name for p in campaign.folder.iterdir()) == [
        "ledger.jsonl", "report.html", "rounds", "starter", "trials",
    ]  # fmt: skip


def test_a_report_still_has_its_logs(tmp_path: Path) -> None:
    campaign = finished_campaign(tmp_path)
    long = "".join(f"line {n}\n" for n in range(3000))
    campaign.write("trials/t0002/log.txt", long)
    names = ["t0001", "t0002", "t0099"]
    from_folders = [log_reader(campaign.folder)(name) for name in names]
    clean(plan_cleaning(tmp_path)[0])
    assert [log_reader(campaign.folder)(name) for name in names] == from_folders
    assert from_folders == ["log of t0001\n", long[-4000:], ""]


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: b"<html>503</html>", lambda _: b""]
)
def test_a_damaged_archive_gives_empty_excerpts_and_is_never_unpacked_or_replaced(tmp_path: Path, damage) -> None:
    campaign = finished_campaign(tmp_path)
    campaign.write("trials/t0002/log.txt", os.urandom(100_000).hex())  # so that half of it ends inside a file
    clean(plan_cleaning(tmp_path)[0])
    path = campaign.folder / archive.ARCHIVE
    path.write_bytes(damage(path.read_bytes()))
    damaged = path.read_bytes()
    assert log_reader(campaign.folder)("t0003") == ""
    with pytest.raises(SiteError, match="is damaged"):
        archive.unpack(campaign.folder)
    campaign.write("trials/t0001/more.txt", "more")
    with pytest.raises(SiteError, match="is damaged"):
        archive.pack(campaign.folder)
    assert path.read_bytes() == damaged
    assert (campaign.folder / "trials/t0001/more.txt").exists()


def test_links_are_kept_and_never_followed(tmp_path: Path) -> None:
    campaign = finished_campaign(tmp_path)
    outside = tmp_path / "precious"
    outside.mkdir()
    (outside / "weights").write_text("keep me")
    (campaign.folder / "trials/t0001/shared").symlink_to(outside)
    (campaign.folder / "trials/t0001/weights").symlink_to("../../../..//precious/weights")
    os.link(campaign.folder / "trials/t0001/log.txt", campaign.folder / "trials/t0001/twice.txt")
    os.mkfifo(campaign.folder / "trials/t0001/pipe")
    before = files_below_without_pipes(campaign.folder)
    assert clean(plan_cleaning(tmp_path)[0]).problem == ""
    assert not (campaign.folder / "trials").exists()
    assert (outside / "weights").read_text() == "keep me"
    restore(campaign.folder)
    assert files_below(campaign.folder) == before


def files_below_without_pipes(folder: Path) -> dict[str, str]:
    pipes = [path for path in (folder / "trials").rglob("*") if path.is_fifo()]
    for pipe in pipes:
        pipe.unlink()
    found = files_below(folder)
    for pipe in pipes:
        os.mkfifo(pipe)
    return found


def test_a_folder_that_lies_elsewhere_stays(tmp_path: Path) -> None:
    campaign = finished_campaign(tmp_path)
    (campaign.folder / "rounds").rename(tmp_path / "elsewhere")
    (campaign.folder / "rounds").symlink_to(tmp_path / "elsewhere")
    clean(plan_cleaning(tmp_path)[0])
    assert (tmp_path / "elsewhere" / "r0001" / "batch.json").exists()
    assert not (campaign.folder / "trials").exists()


class Killed(BaseException):
    """Stands for the end of the process at this very point."""


class KilledAt:
    """Ends whoever calls it for the n-th time."""

    def __init__(self, point: int) -> None:
        self.left = point

    def __call__(self) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1

    def before(self, method):
        """The same method, with the end in front of it."""

        def called(*arguments, **named):
            self()
            return method(*arguments, **named)

        return called


@pytest.mark.parametrize("where", ["read or written", "removed"])
def test_killed_anywhere_and_run_again_nothing_is_lost(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for point in range(1000):
        campaign = finished_campaign(tmp_path / str(point), num=2).folder
        before = files_below(campaign)
        killed = KilledAt(point)
        is_through = True
        with monkeypatch.context() as patch:
            if where == "removed":
                for name in ("unlink", "rmdir"):
                    patch.setattr(Path, name, killed.before(getattr(Path, name)))
            try:
                archive.pack(campaign, on_file=killed if where == "read or written" else lambda: None)
            except Killed:
                is_through = False
        assert (campaign / archive.ARCHIVE).exists() or files_below(campaign) == before
        archive.pack(campaign)
        assert not any((campaign / part).exists() for part in archive.PARTS)
        archive.unpack(campaign)
        assert files_below(campaign) == before, f"killed at point {point}"
        if is_through:
            break
    assert point > 10


def test_a_process_killed_while_it_removes_is_finished_by_the_next(tmp_path: Path) -> None:
    campaign = finished_campaign(tmp_path)
    before = files_below(campaign.folder)
    code = f"""
import os
from pathlib import Path
from infrarsi_hpc.stages.cleaning import clean, plan_cleaning
plans = plan_cleaning(Path({str(tmp_path)!r}))
Path.rmdir = lambda path: os.kill(os.getpid(), 9)
clean(plans[0])
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert (campaign.folder / archive.ARCHIVE).exists()
    assert (campaign.folder / "trials").exists()
    assert [clean(plan).problem for plan in plan_cleaning(tmp_path)] == [""]
    assert not (campaign.folder / "trials").exists()
    restore(campaign.folder)
    assert files_below(campaign.folder) == before


def test_what_a_killed_one_wrote_aside_is_not_kept(tmp_path: Path) -> None:
    campaign = finished_campaign(tmp_path)
    aside = campaign.write(f".{archive.ARCHIVE}.77.tmp", "half an archive")
    clean(plan_cleaning(tmp_path)[0])
    assert not aside.exists()


def test_an_archive_that_does_not_read_back_removes_nothing(tmp_path: Path) -> None:
    campaign = finished_campaign(tmp_path)
    num = 0

    def somebody_writes() -> None:
        nonlocal num
        num += 1
        campaign.write("trials/t0003/log.txt", f"line {num}\n")

    with pytest.raises(SiteError, match="does not read back"):
        archive.pack(campaign.folder, on_file=somebody_writes)
    assert (campaign.folder / "trials/t0001/log.txt").exists()
    assert not (campaign.folder / archive.ARCHIVE).exists()
    assert list(campaign.folder.glob(".*.tmp")) == []


def test_a_file_that_comes_while_others_are_removed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = finished_campaign(tmp_path)
    verified = archive._in_archive

    def then_somebody_writes(*arguments):
        facts = verified(*arguments)
        campaign.write("trials/t0001/late.txt", "late")
        return facts

    monkeypatch.setattr(archive, "_in_archive", then_somebody_writes)
    archive.pack(campaign.folder)
    assert [p.name for p in (campaign.folder / "trials").rglob("*")] == ["t0001", "late.txt"]
    monkeypatch.undo()
    archive.pack(campaign.folder)
    archive.unpack(campaign.folder)
    assert (campaign.folder / "trials/t0001/late.txt").read_text() == "late"
    assert (campaign.folder / "trials/t0001/log.txt").read_text() == "log of t0001\n"


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\x00"), min_size=1, max_size=8).filter(
    lambda name: name not in (".", "..")
)
TREES = st.recursive(st.binary(max_size=50), lambda inner: st.dictionaries(NAMES, inner, max_size=4), max_leaves=8)


@settings(max_examples=20)
@given(st.dictionaries(st.sampled_from(archive.PARTS), st.dictionaries(NAMES, TREES, max_size=4), min_size=1))
def test_unpacking_is_the_inverse_of_packing(tmp_path_factory: pytest.TempPathFactory, tree: dict) -> None:
    campaign = tmp_path_factory.mktemp("tree")

    def write(folder: Path, entries: dict) -> None:
        folder.mkdir()
        for name, entry in entries.items():
            if isinstance(entry, dict):
                write(folder / name, entry)
            else:
                (folder / name).write_bytes(entry)

    for part, entries in tree.items():
        write(campaign / part, entries)
    before = files_below(campaign)
    assert archive.pack(campaign)
    assert [p.name for p in campaign.iterdir()] == [archive.ARCHIVE]
    archive.unpack(campaign)
    assert files_below(campaign) == before
    assert not (campaign / archive.ARCHIVE).exists()


EVIL = {
    "a path above": ("../evil", tarfile.REGTYPE),
    "a path above, further in": ("trials/../../evil", tarfile.REGTYPE),
    "an absolute path": ("/tmp/evil-of-a-test", tarfile.REGTYPE),
    "another file of the campaign": ("ledger.jsonl", tarfile.REGTYPE),
    "through a folder that is a link on the disk": ("trials/out/evil", tarfile.REGTYPE),
    "a link in place of a whole folder": ("rounds", tarfile.SYMTYPE),
}


@pytest.mark.parametrize("name", EVIL)
def test_an_archive_that_reaches_out_of_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    campaign = CampaignFolder(tmp_path).folder
    ledger = (campaign / "ledger.jsonl").read_bytes()
    outside = tmp_path / "outside"
    outside.mkdir()
    (campaign / "trials").mkdir()
    (campaign / "trials" / "out").symlink_to(outside)
    with tarfile.open(campaign / archive.ARCHIVE, "w:gz") as tar:
        info = tarfile.TarInfo(EVIL[name][0])
        info.type, info.linkname = EVIL[name][1], str(outside)
        tar.addfile(info)
    with pytest.raises(SiteError, match="which no campaign has"):
        archive.unpack(campaign)
    assert list(outside.iterdir()) == []
    assert not (campaign / "rounds").exists()
    assert (campaign / "ledger.jsonl").read_bytes() == ledger


def test_nothing_is_written_through_a_link_of_the_archive_itself(tmp_path: Path) -> None:
    campaign = CampaignFolder(tmp_path).folder
    outside = tmp_path / "outside"
    outside.mkdir()
    with tarfile.open(campaign / archive.ARCHIVE, "w:gz") as tar:
        link = tarfile.TarInfo("trials/out")
        link.type, link.linkname = tarfile.SYMTYPE, str(outside)
        tar.addfile(link)
        info = tarfile.TarInfo("trials/out/evil")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    archive.unpack(campaign)
    assert list(outside.iterdir()) == []
    assert (campaign / "trials/out/evil").read_bytes() == b"x"


def test_a_restored_claim_is_as_old_as_it_was(tmp_path: Path) -> None:
    campaign = finished_campaign(tmp_path)
    claim = campaign.write("rounds/r0001/claim-1-0", json.dumps({"node": "node7", "pid": 1, "by": "agent"}))
    os.utime(claim, (LONG_AGO, LONG_AGO))
    clean(plan_cleaning(tmp_path)[0])
    restore(campaign.folder)
    assert claim.stat().st_mtime == LONG_AGO
    assert plan_cleaning(tmp_path, ["demo"]), "nobody takes it for a living agent's"


def test_only_closed_campaigns_are_cleaned_unless_named(tmp_path: Path) -> None:
    finished_campaign(tmp_path, "done")
    CampaignFolder(tmp_path, "open").plan(1)
    damaged = finished_campaign(tmp_path, "damaged")
    damaged.ledger.write_bytes(b"garbage\n" + damaged.ledger.read_bytes())
    assert [plan.name for plan in plan_cleaning(tmp_path)] == ["done"]
    assert [plan.is_closed for plan in plan_cleaning(tmp_path, ["open"])] == [False]
    with pytest.raises(LedgerError, match="not a ledger event"):
        plan_cleaning(tmp_path, ["damaged"])
    with pytest.raises(UsageError, match="no campaign nowhere"):
        plan_cleaning(tmp_path, ["nowhere"])


def test_what_a_living_head_holds_is_never_touched(tmp_path: Path) -> None:
    campaign = finished_campaign(tmp_path)
    plans = plan_cleaning(tmp_path)
    with Ledger(campaign.ledger):
        assert plan_cleaning(tmp_path) == []
        with pytest.raises(SiteError, match="is running"):
            plan_cleaning(tmp_path, ["demo"])
        assert "another infrarsi runs this campaign" in clean(plans[0]).problem, "asked again under the lock"
    assert (campaign.folder / "trials").exists()


@pytest.mark.parametrize("delete", [False, True])
def test_a_campaign_with_open_jobs_is_never_touched(tmp_path: Path, delete: bool) -> None:
    campaign = CampaignFolder(tmp_path)
    campaign.plan(2)
    plans = plan_cleaning(tmp_path, ["demo"], delete=delete)
    campaign.submit()
    with pytest.raises(SiteError, match="may still run") as refused:
        plan_cleaning(tmp_path, ["demo"], delete=delete)
    assert refused.value.why == "open: slurm 4711"
    assert "may still run" in clean(plans[0]).problem
    assert (campaign.folder / "trials").exists()


def test_an_agent_that_lives_is_not_robbed_whatever_the_ledger_says(tmp_path: Path) -> None:
    campaign = finished_campaign(tmp_path)
    campaign.begin(0, "t0001")
    assert "may still run" in clean(plan_cleaning(tmp_path)[0]).problem
    campaign.begin(0, "t0001", age=3600)
    os.utime(campaign.folder / "rounds/r0001/claim-1-0", (LONG_AGO, LONG_AGO))
    assert clean(plan_cleaning(tmp_path)[0]).problem == ""


def test_deleting_keeps_ledger_and_report_and_an_open_campaign_is_closed_first(tmp_path: Path) -> None:
    done, half = finished_campaign(tmp_path, "done"), CampaignFolder(tmp_path, "half")
    half.plan(1)
    clean(plan_cleaning(tmp_path)[0])
    for plan in plan_cleaning(tmp_path, ["done", "half"], delete=True):
        assert clean(plan).problem == ""
    assert sorted(p.name for p in done.folder.iterdir()) == ["ledger.jsonl", "report.html"]
    assert sorted(p.name for p in half.folder.iterdir()) == ["ledger.jsonl"]
    assert [row.state for row in campaigns.list_campaigns(tmp_path)] == [
        "closed: promoted",
        f"closed: {cleaning.CLEANED_AWAY}",
    ]


def test_only_what_is_old_enough_is_cleaned(tmp_path: Path) -> None:
    finished_campaign(tmp_path, "old", at=LONG_AGO)
    finished_campaign(tmp_path, "new", at=time.time() - 1000)
    assert [plan.name for plan in plan_cleaning(tmp_path, older_than_days=30)] == ["old"]
    assert [plan.name for plan in plan_cleaning(tmp_path)] == ["new", "old"]


def test_leftovers_of_single_commands_go_when_nobody_uses_them(tmp_path: Path) -> None:
    here = tmp_path / ".infrarsi"
    for name in ("doctor", "try", "doctor-jobs", "something-else"):
        (here / name / "rounds" / "r0001").mkdir(parents=True)
    (here / "doctor-abc.json").write_text("the doctor's report")
    assert plan_cleaning(tmp_path) == [], "they are of today"
    for path in [*here.iterdir(), *here.rglob("*")]:
        os.utime(path, (LONG_AGO, LONG_AGO))
    plans = plan_cleaning(tmp_path)
    assert [plan.name for plan in plans] == ["doctor", "doctor-jobs", "try"]
    with held(here / "try.lock"):
        problems = [clean(plan).problem for plan in plans]
    assert problems[:2] == ["", ""]
    assert "is in use by" in problems[2]
    assert sorted(p.name for p in here.iterdir()) == ["doctor-abc.json", "something-else", "try"]


def test_an_unreadable_file_is_named_and_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = finished_campaign(tmp_path)
    before = files_below(campaign.folder)
    real = os.open

    def denied(path, *arguments, **named):
        if str(path).endswith("t0002/log.txt"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, "open", denied)
    problem = clean(plan_cleaning(tmp_path)[0]).problem
    monkeypatch.undo()
    assert problem.endswith("t0002/log.txt cannot be packed, unpacked or removed: Permission denied")
    assert files_below(campaign.folder) == before


def test_the_command_asks_shows_and_says_what_it_did(tmp_path: Path) -> None:
    campaign = finished_campaign(tmp_path)
    shown = json.loads(infrarsi("campaigns", "clean", "--dry-run", "--json", cwd=tmp_path).stdout)
    assert [(plan["name"], plan["action"]) for plan in shown] == [("demo", "pack")]
    asked = infrarsi("campaigns", "clean", cwd=tmp_path)
    assert (asked.returncode, (campaign.folder / "trials").exists()) == (2, True)
    assert "add --yes" in asked.stderr
    (done,) = json.loads(infrarsi("campaigns", "clean", "--yes", "--json", cwd=tmp_path).stdout)
    assert done["after_inodes"] < done["before_inodes"]
    assert "nothing to clean" in infrarsi("campaigns", "clean", "--yes", cwd=tmp_path).stdout
    running = CampaignFolder(tmp_path, "running")
    with Ledger(running.ledger):
        refused = infrarsi("campaigns", "clean", "running", "--yes", cwd=tmp_path)
    assert refused.returncode == 4
    assert "is running" in refused.stderr


# ---- resume


def saved(campaign: CampaignFolder, *arguments: object, saved_at: float = 1.7e9, **changes: object) -> None:
    whole = {"schema_version": 1, "arguments": list(arguments), "saved_at": saved_at, **changes}
    campaign.write("run.json", json.dumps(whole))


BAD_SAVED_RUNS = {
    "nothing": None,
    "not JSON": "{",
    "no arguments": json.dumps({"schema_version": 1, "saved_at": 1.0}),
    "of a later schema": json.dumps({"schema_version": 2, "arguments": [], "saved_at": 1.0}),
    "an unknown key": json.dumps({"schema_version": 1, "arguments": [], "saved_at": 1.0, "command": "rm"}),
    "a number for a text": json.dumps({"schema_version": 1, "arguments": [4], "saved_at": 1.0}),
    "two lines in one": json.dumps({"schema_version": 1, "arguments": ["--fix", "a\nb"], "saved_at": 1.0}),
    "a time that is none": json.dumps({"schema_version": 1, "arguments": [], "saved_at": "now"}),
    "too many": json.dumps({"schema_version": 1, "arguments": ["--once"] * 2000, "saved_at": 1.0}),
}


@pytest.mark.parametrize("name", BAD_SAVED_RUNS)
def test_a_saved_run_that_infrarsi_did_not_write_is_refused(tmp_path: Path, name: str) -> None:
    campaign = CampaignFolder(tmp_path)
    if (text := BAD_SAVED_RUNS[name]) is not None:
        campaign.write("run.json", text)
    done = infrarsi("campaigns", "resume", "demo", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "fix: start it with its arguments instead" in done.stderr or "pip install -U" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--launch-missiles"], "'--launch-missiles', which is no option"),
        (["--launch-missiles=now"], "'--launch-missiles', which is no option"),
        (["demo"], "'demo', which is no option"),
        (["--"], "'--', which is no option"),
        (["-yC"], "'-yC', which is no option"),
        (["--help"], "'--help', which is no option"),
        (["--dry-run"], "'--dry-run', which is no option"),
        (["--print-job"], "'--print-job', which is no option"),
        (["--seed"], "--seed has no value"),
        (["--once=yes"], "--once takes no value"),
        (["--campaign", "another"], "it is of campaign 'another'"),
        (["--until", "soon"], "'soon' is not a time"),
    ],
)
def test_arguments_that_run_does_not_know_are_refused(tmp_path: Path, arguments: list[str], words: str) -> None:
    campaign = CampaignFolder(tmp_path)
    saved(campaign, *arguments)
    with pytest.raises(InputRefused) as refused:
        parse_saved(read_saved_run(campaign.folder), campaign.folder)
    assert words in refused.value.why
    assert "infrarsi run --campaign demo" in refused.value.fix


AT = datetime(2030, 1, 31, 22, 0)


def resumed(*arguments: str, modes: tuple[str, ...] = (), later_hours: float = 0.0) -> list[str]:
    kept = SavedRun(schema_version=1, arguments=arguments, saved_at=AT.timestamp())
    now = datetime.fromtimestamp(AT.timestamp() + 3600 * later_hours)
    whole = parse_saved(kept, Path("/p/.infrarsi/demo")).resumed(Path("/p"), "demo", modes, now)
    assert whole[:4] == ["--project", "/p", "--campaign", "demo"]
    return whole[4:]


def test_a_resumed_run_is_called_as_it_was() -> None:
    arguments = ["--contract", "x.toml", "--seed", "3", "--fix", "a=1", "--fix", "b=-2", "--no-experience", "--site=s"]
    assert resumed(*arguments) == [*arguments[:-1], "--site", "s"]
    assert resumed("-C", "/elsewhere", "--campaign", "demo", "--batch", "4") == ["--batch", "4"]


def test_a_mode_that_is_given_replaces_the_saved_one() -> None:
    assert resumed("--detach", "--seed", "3") == ["--detach", "--seed", "3"]
    assert resumed("--detach", "--seed", "3", modes=("--once",)) == ["--seed", "3", "--once"]


def iso(*when: int) -> str:
    return datetime(*when).astimezone().isoformat()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "later_hours", "meant"),
    [
        # said at 22:00 for 07:00: at 01:00 still this morning, at 08:00 not the next one
        (["--until", "07:00"], 3, ["--until", iso(2030, 2, 1, 7, 0)]),
        (["--until", "07:00"], 10, ["--until", "+0m"]),
        (["--until", "+90m"], 1, ["--until", iso(2030, 1, 31, 23, 30)]),
        (["--until", "+90m"], 2, ["--until", "+0m"]),
        (["--start-at", "23:00"], 0.5, ["--start-at", iso(2030, 1, 31, 23, 0)]),
        (["--start-at", "23:00"], 2, []),
        (["--until", iso(2030, 2, 3, 4, 5)], 2, ["--until", iso(2030, 2, 3, 4, 5)]),
    ],
)
def test_times_are_those_that_were_meant_when_they_were_said(
    arguments: list[str], later_hours: float, meant: list[str]
) -> None:
    assert resumed(*arguments, later_hours=later_hours) == meant


def test_what_run_saves_of_itself_is_what_resume_reads() -> None:
    flags = RunFlags(1.5, 24, None, AT.timestamp() + 3600, 8, 3, ("delay=0", "chunks=4"), False, "cluster")
    arguments = ["--contract", "infrarsi.toml", "--campaign", "demo", *flags.arguments()]
    again = resumed(*arguments)
    assert sorted(again) == sorted(a for a in arguments if a not in ("--campaign", "demo"))


def test_resume_becomes_run_and_unpacks_a_packed_campaign_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from infrarsi_hpc.cli.app import app

    campaign = CampaignFolder(tmp_path, "nightly")
    campaign.plan(1)
    saved(campaign, "--seed", "3", "--detach")
    clean(plan_cleaning(tmp_path, ["nightly"])[0])
    called: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _program, argv: called.append(argv))
    app(["campaigns", "resume", "nightly", "-C", str(tmp_path), "--once"], standalone_mode=False)
    where = ["--project", str(tmp_path), "--campaign", "nightly"]
    assert called == [[sys.executable, "-P", "-m", "infrarsi_hpc.cli.app", "run", *where, "--seed", "3", "--once"]]
    assert (campaign.folder / "rounds/r0001/batch.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["nowhere"], "no campaign nowhere"), (["../.."], "no campaign"), (["demo", "--once", "--detach"], "different")],
)
def test_wrong_use_of_resume_is_said(tmp_path: Path, arguments: list[str], words: str) -> None:
    CampaignFolder(tmp_path)
    done = infrarsi("campaigns", "resume", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr


def test_resume_reaches_run(tmp_path: Path) -> None:
    campaign = CampaignFolder(tmp_path)
    saved(campaign, "--contract", "none.toml")
    done = infrarsi("campaigns", "resume", "demo", cwd=tmp_path)
    assert done.returncode == 3
    assert "none.toml does not exist" in done.stderr


def test_an_archive_is_an_ordinary_one(tmp_path: Path) -> None:
    campaign = finished_campaign(tmp_path)
    clean(plan_cleaning(tmp_path)[0])
    with gzip.open(campaign.folder / archive.ARCHIVE) as raw, tarfile.open(fileobj=raw) as tar:
        members = tar.getmembers()
    assert "trials/t0001/log.txt" in [member.name for member in members]
    assert {(member.uid, member.uname) for member in members} == {(0, "")}, "it names nobody"


def test_every_error_of_this_room_says_what_to_do(tmp_path: Path) -> None:
    campaign = CampaignFolder(tmp_path)
    campaign.plan(1)
    campaign.submit()
    with pytest.raises(InfrarsiError) as refused:
        plan_cleaning(tmp_path, ["demo"])
    assert refused.value.fix.startswith("take them in with `infrarsi campaigns resume demo --once`")
