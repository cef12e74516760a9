"""The probe's way through Slurm's commands, with stand-ins for answers that a real cluster does not give at will."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.edges.shipped import shipped
from infrarsi_hpc.edges.sites import read_file, read_profile
from infrarsi_hpc.stages.site.check import CheckReport, _script, check

TAKES = 'echo "Submitted batch job 7"; CUDA_VISIBLE_DEVICES=0,1 bash "$1"'


def checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, grace: float = 1, wait: float = 20, **programs: str
) -> CheckReport:
    folder = tmp_path / "bin"
    folder.mkdir()
    standard = {
        "squeue": "exit 0",
        "sacct": "echo COMPLETED",
        "scontrol": "exit 1",
        "scancel": f"touch {tmp_path}/cancelled",
    }
    for name, line in (standard | programs).items():
        (folder / name).write_text(f"#!/bin/bash\n{line}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
    value = read_profile("testbed", {}, tmp_path).model_dump()
    value["storage"] = {"result_grace_seconds": grace}
    return check(SiteProfile.model_validate(value), {}, tmp_path, deadline_seconds=wait)


def wrong(report: CheckReport) -> list[str]:
    return [finding.field for finding in report.findings if finding.level == "wrong"]


def test_a_probe_that_is_taken_and_answers_is_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = checked(tmp_path, monkeypatch, sbatch=TAKES)
    assert wrong(report) == []
    assert report.facts["visible_devices"] == "0,1"


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ("Invalid account or account/partition combination specified", "user.account"),
        ("Invalid qos specification", "user.qos"),
        ("Invalid partition name specified", "partition.name"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "partition.max_time"),
    ],
)
def test_a_refusal_names_the_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, field: str) -> None:
    sbatch = f"echo 'sbatch: error: Batch job submission failed: {words}' >&2; exit 1"
    report = checked(tmp_path, monkeypatch, sbatch=sbatch)
    assert wrong(report) == [field]


def test_a_job_that_ends_without_a_trace_speaks_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = checked(tmp_path, monkeypatch, sbatch="echo Submitted batch job 7")
    assert wrong(report) == ["storage.result_grace_seconds"]
    assert "do not see this folder" in next(f.fix for f in report.findings if f.level == "wrong")


@pytest.mark.parametrize(
    ("state", "field"),
    [
        ("PENDING PartitionTimeLimit", "partition.max_time"),
        ("PENDING QOSMaxJobsPerUserLimit", "user.qos"),
        ("PENDING Priority", ""),
    ],
)
def test_a_job_that_waits_is_cancelled_and_its_reason_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, field: str
) -> None:
    report = checked(tmp_path, monkeypatch, wait=0.5, sbatch="echo Submitted batch job 7", squeue=f"echo {state}")
    assert wrong(report) == [field]
    assert (tmp_path / "cancelled").exists()


def test_a_queue_that_does_not_answer_is_no_end_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = checked(
        tmp_path, monkeypatch, grace=0, wait=1.5, sbatch="echo Submitted batch job 7", squeue="echo outage >&2; exit 1"
    )
    assert (tmp_path / "cancelled").exists(), "naive: it has left the queue"
    assert "never seen in the queue" in report.findings[0].what


def test_a_site_without_accounting_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sacct = "echo Slurm accounting storage is disabled >&2; exit 1"
    report = checked(tmp_path, monkeypatch, sbatch=TAKES, sacct=sacct)
    (finding,) = [f for f in report.findings if f.field == "scheduler.has_accounting"]
    assert (finding.level, finding.fix) == ("note", "set it to false")


@pytest.mark.parametrize("path", sorted(shipped("site_profiles").glob("*.toml")), ids=lambda p: p.stem)
def test_the_probe_of_every_shipped_profile_is_a_script_that_a_shell_reads(tmp_path: Path, path: Path) -> None:
    site = read_file(path)
    for partition in site.partition:
        script = _script(site, partition, tmp_path)
        subprocess.run(["bash", "-n"], input=script.encode(), check=True)
        asks_for_some = site.request.memory != "none" and site.request.memory_gib is not None
        asks_for_all = site.request.memory == "mem" and site.request.memory_gib is None and "--exclusive" in script
        assert ("--mem" in script) == (asks_for_some or asks_for_all)
