"""A first profile from what a cluster says: what was said stands there, what was not is a marked guess."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from infrarsi_hpc.edges.sites import parse, read_profile
from infrarsi_hpc.errors import UsageError
from infrarsi_hpc.stages.site.detect import detect, draft_toml, write_draft
from infrarsi_hpc.stages.site.draft import SiteTexts, profile_from_texts

HEADER = "PARTITION|AVAIL|TIMELIMIT|NODES|CPUS|MEMORY|GRES|AVAIL_FEATURES|OVERSUBSCRIBE|NODELIST\n"
TWO_KINDS = SiteTexts(
    sinfo=HEADER
    + "fast*|up|1-00:00:00|8|96|2000000|gpu:h100:8(S:0-1)|hbm3|EXCLUSIVE|f[1-8]\n"
    + "slow|up|infinite|4|64|500000|gpu:a100:4|sxm|NO|s[1-4]\n"
    + "slow|up|infinite|2|32|250000|gpu:a100_80:2|pcie|NO|s[5-6]\n"
    + "theirs|up|1:00:00|1|64|500000|gpu:a100:4||NO|t1\n"
    + "old|down|1:00:00|1|64|500000|(null)||NO|o1\n",
    config="ClusterName = elm\nMaxArraySize = 2001\nAccountingStorageType = accounting_storage/slurmdbd\n"
    "JobRequeue = 0\nSelectTypeParameters = CR_CORE\n",
    partitions="PartitionName=fast AllowQos=day,night Default=YES MaxTime=12:00:00 State=UP "
    "TotalCPUs=768 TotalNodes=8\n"
    "PartitionName=theirs AllowAccounts=others MaxTime=01:00:00 State=UP TotalCPUs=64 TotalNodes=1\n",
    associations="Cluster|Account|Partition|QOS|Def QOS|MaxSubmit\n"
    "elm|lab||day|day|40\noak|x||day|day|2\nelm|lab2||day||\n",
    nvidia_smi="NVIDIA H100 80GB HBM3, 81559\n",
    srun_help="      --container-image=...",
    addresses="f1|10.0.0.1\nf2|10.0.0.2\n",
    unanswered=("nvidia-smi cannot be started",),
)


def test_what_the_cluster_says_stands_in_the_profile() -> None:
    draft = profile_from_texts("elm", TWO_KINDS)
    site = draft.profile
    fast, slow = site.partition
    assert (fast.name, fast.is_default, fast.gpus_per_node, fast.gpu_type, fast.num_nodes) == (
        "fast",
        True,
        8,
        "h100",
        8,
    )
    assert (fast.max_seconds, fast.qos) == (12 * 3600, ("day", "night"))
    assert (slow.gpu_type, slow.max_seconds, slow.cpus_per_node) == ("a100", None, 32)
    assert fast.gpu_names == ("NVIDIA H100 80GB HBM3",)
    assert (site.scheduler.cluster, site.scheduler.has_accounting, site.scheduler.requeue) == ("elm", True, False)
    assert (site.request.gpu, site.request.memory, site.request.exclusive) == ("typed-gres", "none", True)
    assert (site.limits.array_size, site.limits.submit_jobs) == (2001, 40)
    assert site.user.account == "lab"
    assert not fast.shares_host


def test_what_it_does_not_say_is_a_guess_with_its_reason() -> None:
    draft = profile_from_texts("elm", TWO_KINDS)
    assert "also has a100_80" in draft.guesses["partition.1.gpu_type"]
    assert "no limit" in draft.guesses["partition.1.max_time"]
    assert {"request.gpu", "request.memory", "request.exclusive", "partition.0.gpu_names"} <= set(draft.guesses)
    remarks = " ".join(draft.remarks)
    for word in ("theirs is left out", "old is left out", "nvidia-smi cannot be started", "--container-image"):
        assert word in remarks
    text = draft_toml(draft)
    assert text.count("# guess: ") == len([f for f in draft.guesses if not f.startswith("user.")])
    assert parse(text) == draft.profile.model_copy(update={"user": type(draft.profile.user)()})
    assert "lab" not in text, "the account is the user's own"


def test_nodes_that_are_one_machine_are_noticed() -> None:
    texts = SiteTexts(sinfo=TWO_KINDS.sinfo, addresses="f1|127.0.1.1\nf2|127.0.1.2\n")
    site = profile_from_texts("elm", texts).profile
    assert all(partition.shares_host for partition in site.partition)
    assert site.request.exclusive is False


@pytest.mark.parametrize(
    "text", ["", "garbage", "\x00\x1b[31m", "PARTITION|GRES\n|||||\n" * 50, "ClusterName = $(id)\n"]
)
def test_answers_that_cannot_be_read_count_as_none(text: str) -> None:
    texts = SiteTexts(text, text, text, text, text, text, text)
    draft = profile_from_texts("elm", texts)
    assert draft.profile.scheduler.kind == "local"
    assert parse(draft_toml(draft)) == draft.profile


def test_hostile_words_of_a_scheduler_stay_out_of_the_file() -> None:
    sinfo = HEADER + "a;rm|up|1:00:00|1|1|1|gpu:x$(id):1||NO|n1\nok|up|1:00:00|1|1|1|gpu:1||NO|n1\n"
    draft = profile_from_texts("elm", SiteTexts(sinfo=sinfo, unanswered=("a\nb = 1",)))
    assert [p.name for p in draft.profile.partition] == ["ok"]
    assert parse(draft_toml(draft)) == draft.profile


def test_without_any_command_there_is_a_profile_for_this_machine_and_the_missing_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    draft = detect("here", os.environ)
    assert draft.profile.scheduler.kind == "local"
    said = " ".join(draft.remarks)
    assert all(program in said for program in ("sinfo", "scontrol", "sacctmgr", "srun", "nvidia-smi"))


def test_a_command_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from infrarsi_hpc.domain.site import SiteProfile
    from infrarsi_hpc.edges.site_questions import ask_all

    (tmp_path / "sinfo").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    site = SiteProfile.model_validate({"schema_version": 1, "name": "x", "limits": {"command_seconds": 1}})
    assert any("no answer in 1 s" in said for said in ask_all(site).unanswered)


def test_a_draft_is_written_with_the_users_own_part_apart_and_replaces_nothing(tmp_path: Path) -> None:
    written = write_draft(profile_from_texts("elm", TWO_KINDS), {}, tmp_path)
    assert written.user is not None
    assert stat.S_IMODE(written.user.stat().st_mode) == 0o600
    assert read_profile("elm", {}, tmp_path).user.account == "lab"
    with pytest.raises(UsageError, match="exists"):
        write_draft(profile_from_texts("elm", TWO_KINDS), {}, tmp_path)
