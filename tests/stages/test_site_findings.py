"""What a probe's answers say about a profile: every finding names its field and what to do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from infrarsi_hpc.domain.site import Partition, SiteProfile
from infrarsi_hpc.stages.site.check import check
from infrarsi_hpc.stages.site.claims import claim_findings, private_file_findings
from infrarsi_hpc.stages.site.findings import probe_findings

GOOD = {
    "variables": "PATH HOME SLURM_JOB_ID",
    "visible_devices": "0,1",
    "python": "3.11.7",
    "scratch": "/tmp",
    "scratch_free_mib": "50000",
    "cpus": "4",
    "gpus": "NVIDIA A100-SXM4-40GB, 40960;NVIDIA A100-SXM4-40GB, 40960;",
    "written": "1",
}
SITE = {
    "schema_version": 1,
    "name": "x",
    "scheduler": {"kind": "slurm"},
    "partition": [
        {
            "name": "gpu",
            "gpus_per_node": 2,
            "cpus_per_node": 4,
            "gpu_names": ["NVIDIA A100-SXM4-40GB"],
            "intranode": "NVLink",
        }
    ],
}
LOGIN = {"PATH": "/bin", "HOME": "/h"}


def found(facts: dict[str, str], login: dict[str, str] = LOGIN, **tables: Any) -> list[tuple[str, str, str]]:
    site = SiteProfile.model_validate(SITE | tables)
    return [
        (f.level, f.field, f.what)
        for f in probe_findings(site, site.partition[0], facts, login)
        if f.level != "good" and (f.fix or f.level == "note")
    ]


def test_a_site_that_is_as_its_profile_says_has_nothing_wrong() -> None:
    assert found(GOOD) == []


FAULTS = [
    ({"visible_devices": "0"}, "wrong", "partition.gpus_per_node", "2 GPUs were asked for and 1 are visible"),
    ({"visible_devices": ""}, "wrong", "request.gpu", "0 are visible"),
    ({"visible_devices": "none", "gpus": ""}, "wrong", "request.gpu", "0 are visible"),
    ({"gpus": "NVIDIA H200, 143771;NVIDIA H200, 143771"}, "note", "partition.gpu_names", "NVIDIA H200"),
    ({"python": "bash: python3: command not found"}, "wrong", "launch.python", "no Python on the node"),
    ({"python": ""}, "wrong", "launch.python", "no Python on the node"),
    ({"python": "3.6.8"}, "wrong", "launch.python", "3.6.8"),
    ({"scratch_refused": "Read-only file system"}, "wrong", "storage.scratch", "Read-only"),
    ({"scratch_free_mib": "12"}, "wrong", "storage.scratch", "12 MiB"),
    ({"cpus": "64"}, "note", "partition.cpus_per_node", "64 cores"),
    ({"setup": "ml: command not found", "setup_failed": "ml x"}, "wrong", "environment.setup", "ml x"),
]


@pytest.mark.parametrize(("change", "level", "field", "words"), FAULTS)
def test_what_does_not_fit_names_its_field(change: dict[str, str], level: str, field: str, words: str) -> None:
    ((found_level, found_field, what),) = found(GOOD | change)
    assert (found_level, found_field) == (level, field)
    assert words in what


def test_variables_that_leak_from_the_login_shell_are_named_and_those_of_slurm_are_not() -> None:
    login = LOGIN | {"PYTHONPATH": "/x", "CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_ID": "1", "LESS": "R"}
    facts = GOOD | {"variables": "PATH HOME PYTHONPATH CUDA_VISIBLE_DEVICES SLURM_JOB_ID LESS"}
    ((level, field, what),) = found(facts, login)
    assert (level, field) == ("note", "environment.scrub")
    assert what.endswith(": PYTHONPATH")


def test_a_product_that_is_no_device_is_asked_about() -> None:
    partition = Partition(name="gpu", gpu_names=("a100",), gpus_per_node=2)
    site = SiteProfile.model_validate(SITE)
    said = [f.what for f in probe_findings(site, partition, GOOD, LOGIN) if f.field == "partition.gpu_names"]
    assert any("does not say its memory" in what for what in said)


def test_this_machine_can_be_checked_without_slurm(tmp_path: Path) -> None:
    site = SiteProfile.model_validate({"schema_version": 1, "name": "here", "storage": {"scratch": str(tmp_path)}})
    report = check(site, {"PATH": "/bin:/usr/bin"}, tmp_path)
    assert report.is_good, report.findings
    assert report.facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert report.facts["scratch"] == str(tmp_path)


@pytest.mark.parametrize(
    ("tables", "field"),
    [
        ({"environment": {"setup": ["true", "no-such-command-here"]}}, "environment.setup"),
        ({"environment": {"setup": ['echo "$NOT_SET_ANYWHERE"']}}, "environment.setup"),
        ({"launch": {"python": "/no/such/python"}}, "launch.python"),
        ({"storage": {"scratch": "/proc/x"}}, "storage.scratch"),
    ],
)
def test_a_real_probe_finds_what_is_broken(tmp_path: Path, tables: dict[str, Any], field: str) -> None:
    site = SiteProfile.model_validate({"schema_version": 1, "name": "here", **tables})
    report = check(site, {"PATH": "/bin:/usr/bin"}, tmp_path)
    assert [f.field for f in report.findings if f.level == "wrong"] == [field], report.facts


@pytest.mark.parametrize(
    ("max_time", "array_size", "fields"),
    [
        ("12:00:00", 1001, []),
        ("1-00:00:00", 1001, ["partition.max_time"]),
        ("UNLIMITED", 1001, ["partition.max_time"]),
        ("1:00:00", 1002, ["limits.array_size"]),
    ],
)
def test_limits_above_the_clusters_are_told(max_time: str, array_size: int, fields: list[str]) -> None:
    site = SiteProfile.model_validate(SITE | {"limits": {"array_size": array_size}})
    partition = Partition(name="gpu", max_time=max_time)
    found = claim_findings(site, partition, "MaxArraySize = 1001\n", "PartitionName=gpu MaxTime=12:00:00 State=UP\n")
    assert [f.field for f in found] == fields
    assert claim_findings(site, partition, "", "scontrol: error") == []


def test_a_private_file_that_others_can_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.user.toml"
    assert private_file_findings(path) == []
    path.touch(mode=0o600)
    assert private_file_findings(path) == []
    path.chmod(0o644)
    assert [f.field for f in private_file_findings(path)] == ["user"]
