"""Detect and check on a real cluster: what it says becomes a profile, and a wrong profile is told by its field."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import Cluster

from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.edges.sites import parse, read_profile
from infrarsi_hpc.stages.site.check import CheckReport, check
from infrarsi_hpc.stages.site.detect import detect, draft_toml, write_draft

pytestmark = pytest.mark.slurm


def profile_with(home: Path, **tables: Any) -> SiteProfile:
    value = read_profile("testbed", {}, home).model_dump()
    for name, table in tables.items():
        value[name] = {**value[name], **table} if isinstance(table, dict) else table
    return SiteProfile.model_validate(value)


def probe(site: SiteProfile, home: Path, **more: Any) -> CheckReport:
    return check(site, os.environ, home, deadline_seconds=300, **more)


def wrong(report: CheckReport) -> list[str]:
    return [finding.field for finding in report.findings if finding.level == "wrong"]


def test_the_cluster_is_detected_as_its_shipped_profile_says(slurm: Cluster, tmp_path: Path) -> None:
    draft = detect("found", os.environ)
    found, shipped = draft.profile, read_profile("testbed", {}, tmp_path)
    assert found.scheduler.cluster == "testbed"
    assert found.scheduler.has_accounting is True
    names = {p.name for p in found.partition}
    assert {p.name for p in shipped.partition} <= names
    assert "vip" not in names, "it is not for this account"
    for partition in shipped.partition:
        other = found.chosen_partition(partition.name)
        assert other is not None
        same = ("is_default", "gpus_per_node", "cpus_per_node", "max_seconds", "num_nodes", "shares_host")
        assert [getattr(other, name) for name in same] == [getattr(partition, name) for name in same]
    assert (found.request.gpu, found.request.memory, found.request.exclusive) == ("typed-gres", "mem", False)
    assert found.limits.array_size == 1001
    assert found.user.account == "lab"
    assert parse(draft_toml(draft)) == found.model_copy(update={"user": type(found.user)()})


def test_a_detected_profile_passes_its_own_check(slurm: Cluster, tmp_path: Path) -> None:
    write_draft(detect("found", os.environ), {}, tmp_path)
    report = probe(read_profile("found", {}, tmp_path), tmp_path)
    assert wrong(report) == []
    assert report.facts["node"].startswith("h100-")


def test_the_shipped_profile_passes_and_its_answers_are_the_nodes(slurm: Cluster, tmp_path: Path) -> None:
    report = probe(profile_with(tmp_path), tmp_path, partition="a100")
    assert wrong(report) == []
    assert report.facts["node"].startswith("a100-")
    assert report.facts["visible_devices"] == "0,1"
    said = " ".join(finding.what for finding in report.findings if finding.level == "good")
    assert "2 GPUs are visible" in said
    assert "sacct answers" in said
    assert "a result is seen" in said


PARTITION = {"name": "h100", "gpu_type": "h100", "gpus_per_node": 2}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an account that does not exist": ({"user": {"account": "nobodys"}}, "user.account"),
    "a QOS that does not exist": ({"user": {"qos": "nobodys"}}, "user.qos"),
    "a partition that does not exist": ({"partition": [{**PARTITION, "name": "h200"}]}, "partition.name"),
    "a GPU type that does not exist": ({"partition": [{**PARTITION, "gpu_type": "h200"}]}, "partition.gpu_type"),
    "a time limit above the partition's": ({"partition": [{**PARTITION, "max_time": "2:00:00"}]}, "partition.max_time"),
    "an array above MaxArraySize": ({"limits": {"array_size": 1002}}, "limits.array_size"),
    "more GPUs than a node has": ({"partition": [{**PARTITION, "gpus_per_node": 3}]}, "partition.gpus_per_node"),
    "a scratch that cannot be written": ({"storage": {"scratch": "/proc/x"}}, "storage.scratch"),
    "a Python that is not there": ({"launch": {"python": "/no/python"}}, "launch.python"),
    "a setup line that fails": ({"environment": {"setup": ["no-such-module-command load x"]}}, "environment.setup"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_profile_is_told_by_its_field(slurm: Cluster, tmp_path: Path, fault: str) -> None:
    tables, field = WRONG[fault]
    report = probe(profile_with(tmp_path, **tables), tmp_path)
    assert wrong(report) == [field], report.findings
    assert next(f.fix for f in report.findings if f.level == "wrong")


def test_a_variable_of_the_login_shell_that_reaches_the_job_is_named(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    report = probe(profile_with(tmp_path), tmp_path)
    (leak,) = [finding for finding in report.findings if finding.field == "environment.scrub"]
    assert "NCCL_ALGO" in leak.what
    assert "SLURM_JOB_ID" not in leak.what


def test_a_probe_that_never_starts_is_cancelled_at_its_deadline(slurm: Cluster, tmp_path: Path) -> None:
    slurm.run("scontrol", "update", "partitionname=a100", "state=down")
    report = check(profile_with(tmp_path), os.environ, tmp_path, partition="a100", deadline_seconds=3)
    assert not report.is_good
    assert slurm.squeue() == []
