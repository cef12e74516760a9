"""`infrarsi explain --kind slurm`: every text of Slurm's, told by its content, with what a campaign makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.edges.sites import read_profile
from infrarsi_hpc.edges.slurm.commands import Answer, SlurmCommands
from infrarsi_hpc.edges.slurm.sacct_text import FORMAT as SACCT_FORMAT
from infrarsi_hpc.errors import InputRefused
from infrarsi_hpc.stages.explain.files import explain_file
from infrarsi_hpc.stages.explain.job import explain_job
from infrarsi_hpc.stages.explain.slurm import explain_slurm, explain_slurm_file

SUBMIT = "sbatch: error: Batch job submission failed: "
KEYS = {"outcome", "detail", "bound_gib", "rank", "evidence", "action", "findings"}

#: text; outcome/detail, words of the action or the evidence
TEXTS: dict[str, tuple[str, str, str]] = {
    "sacct, one task out of memory": (
        "JobID|State|ExitCode\n9_1|OUT_OF_MEMORY|0:125\n",
        "host_oom/cgroup",
        "host memory",
    ),
    "sacct, one task done": ("JobID|State\n9_1|COMPLETED\n", "unknown", "end mark"),
    "sacct, one task late": ("JobID|State\n9_1|TIMEOUT\n", "timeout/limit", "TIMEOUT"),
    "sacct, one node lost": ("JobID|State\n9_1|NODE_FAIL\n", "infra", "retried"),
    "sacct, cancelled": ("JobID|State\n9_1|CANCELLED by 5\n", "cancelled", "cancelled by 5"),
    "sacct, all the same": ("JobID|State\n9_1|PREEMPTED\n9_2|PREEMPTED\n", "infra", "2 tasks"),
    "sacct, some of each": ("JobID|State\n9_1|PREEMPTED\n9_2|TIMEOUT\n", "unknown", "1 infra, 1 timeout/limit"),
    "sacct, header only": ("JobID|State|NodeList\n", "unknown/no_rows", "neither finished nor failed"),
    "sacct, rows that name no job": ("JobID|State\nquota 91%\n", "unknown/no_rows", "none that names a job"),
    "sacct, requeued": ("JobID|State\n9|NODE_FAIL\n9|RUNNING\n", "unknown", "not over"),
    "sacct, disabled": ("Slurm accounting storage is disabled\n", "unknown/no_accounting", "squeue"),
    "sacct, database away": ("sacct: error: Problem talking to the database: refused\n", "unknown/outage", "meanwhile"),
    "sacct, as JSON": (
        json.dumps({"jobs": [{"job_id": 9, "state": {"current": "TIMEOUT"}}]}),
        "timeout/limit",
        "9 TIMEOUT",
    ),
    "JSON without jobs": (json.dumps({"jobs": [], "errors": []}), "unknown/no_rows", "stand"),
    "JSON of an outage": (
        json.dumps({"jobs": [], "errors": [{"error": "Unable to contact"}]}),
        "unknown/outage",
        "Unable",
    ),
    "squeue, a table": (
        "  JOBID PARTITION NAME USER ST TIME NODES NODELIST(REASON)\n  9_1 gpu trial jo R 1:02 1 n1\n",
        "unknown",
        "not over",
    ),
    "squeue, an outage": (
        "slurm_load_jobs error: Socket timed out on send/recv operation\n",
        "unknown/outage",
        "states stand",
    ),
    "squeue, its other stream": ("CLUSTER: elm\n", "unknown/no_rows", "not 'all jobs finished'"),
    "squeue, a purged id": ("slurm_load_jobs error: Invalid job id specified\n", "unknown/purged", "sacct"),
    "sbatch, taken": ("Welcome, 12 nodes free\nSubmitted batch job 88123 on cluster elm\n", "ok/submitted", "-M elm"),
    "sbatch, taken with a warning": (
        "sbatch: error: quota soon full\nSubmitted batch job 88\n",
        "ok/submitted",
        "job 88",
    ),
    "sbatch, taken after chatter": ("sbatch: checking project p7\n88123\n", "ok/submitted", "job 88123"),
    "sbatch, a bare number": ("88123\n", "ok/submitted", "job 88123"),
    "sbatch, wrong account": (
        f"{SUBMIT}Invalid account or account/partition combination specified\n",
        "refused/permanent",
        "user.account",
    ),
    "sbatch, too many": (
        f"sbatch: error: AssocMaxSubmitJobLimit\n{SUBMIT}Job violates accounting/QOS policy\n",
        "refused/wait",
        "limits.submit_jobs",
    ),
    "sbatch, disk": (f"{SUBMIT}I/O error writing script/environment to file\n", "refused/transient", "administrators"),
    "sbatch, reply lost": (f"{SUBMIT}Socket timed out on send/recv operation\n", "unknown/ambiguous", "adopt"),
    "sbatch, unheard of": (f"{SUBMIT}Something new\n", "refused/unknown", "a few times"),
    "sbatch, a wrapper's words": (
        "--> Checking queue...FAILED\nError: invalid partition gpux\n",
        "refused/permanent",
        "partition.name",
    ),
    "scontrol show config": (
        "ClusterName = elm\nMaxArraySize = 1001\nAccountingStorageType = (null)\n",
        "ok/config",
        "highest array index 1000",
    ),
    "scontrol show partition": (
        "PartitionName=gpu Default=YES MaxTime=1-00:00:00 TotalNodes=2\n",
        "ok/partitions",
        "gpu",
    ),
    "sinfo": (
        "PARTITION AVAIL TIMELIMIT NODES STATE NODELIST\ngpu* up 1-00:00:00 2 idle g[1-2]\n",
        "ok/partitions",
        "gpu",
    ),
    "nothing": (" \n", "unknown/empty", "no answer"),
    "something else": ("To be, or not to be\n", "unknown", "none of the texts"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_known_by_its_content(name: str) -> None:
    text, label, words = TEXTS[name]
    found = explain_slurm(text)
    assert set(found) == KEYS
    assert "/".join(part for part in (found["outcome"], found["detail"]) if part) == label
    assert words in f"{found['evidence']}\n{found['action']}"
    json.dumps(found)


def test_a_task_is_a_finding_with_its_own_outcome() -> None:
    text = (
        "JobID|State|ExitCode|Elapsed|Timelimit|ReqMem|NodeList|Cluster\n"
        "9_1|NODE_FAIL|0:0|00:01:00|01:00:00|4Gc|n[1-2]|elm\n"
        "9_1|COMPLETED|0:0|00:02:00|01:00:00|4Gc|n3|elm\n"
        "9_[2-3]|PENDING|0:0|00:00:00|01:00:00|4Gc|None assigned|elm\n"
    )
    first, second, third = explain_slurm(text)["findings"]
    assert (first["job_id"], first["cluster"], first["state"], first["is_final"]) == ("9_1", "elm", "COMPLETED", True)
    assert (first["outcome"], first["restarts"], first["nodes"]) == ("unknown", 1, ["n3"])
    assert "end mark" in first["note"]
    assert [(a["state"], a["is_final"]) for a in first["earlier_attempts"]] == [("NODE_FAIL", False)]
    assert (first["elapsed_seconds"], first["time_limit_seconds"], first["requested_memory_gib"]) == (120, 3600, 4.0)
    assert first["requested_memory_per"] == "cpu"
    assert [(row["job_id"], row["is_final"]) for row in (second, third)] == [("9_2", False), ("9_3", False)]


def test_an_empty_queue_is_an_answer_only_with_its_other_stream() -> None:
    assert explain_slurm("CLUSTER: elm\n", None)["detail"] == "no_rows"
    assert "states stand" in explain_slurm("CLUSTER: elm\n", None)["action"]
    assert "result file" in explain_slurm("CLUSTER: elm\n", "")["action"]
    error = "slurm_load_jobs error: Socket timed out on send/recv operation"
    assert explain_slurm("CLUSTER: elm\n", error)["detail"] == "outage"


def test_a_file_is_explained_through_the_command_and_one_that_is_missing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "said.txt"
    path.write_bytes(b"\xff\xfe Submitted batch job 88123\r\n")
    found = explain_file(path, "slurm")
    assert (found["kind"], found["outcome"], found["findings"][0]["number"]) == ("slurm", "ok", 88123)
    with pytest.raises(InputRefused, match="cannot be read"):
        explain_slurm_file(tmp_path / "none.txt")


@given(st.text(), st.none() | st.text())
def test_any_text_has_an_outcome(text: str, stderr: str | None) -> None:
    assert explain_slurm(text, stderr)["outcome"] in [outcome.value for outcome in Outcome]


def test_a_number_that_names_a_task_of_an_older_array_too_is_the_jobs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen with sacct 22.05 after a controller had begun to count anew: `--jobs=2` gives both."""
    table = dict.fromkeys(SACCT_FORMAT.split(","), "")

    def row(job: str, state: str, submit: str) -> str:
        return "|".join({**table, "JobID": job, "State": state, "Submit": submit, "ExitCode": "0:0"}.values())

    rows = [row("1_0", "COMPLETED", "2031-01-01T12:54:54"), row("2", "CANCELLED by 0", "2031-01-01T12:55:12")]
    said = Answer(0, "\n".join(["|".join(table), *rows]) + "\n", "")
    monkeypatch.setattr(SlurmCommands, "run", lambda self, *words, **options: said)
    site = read_profile("testbed", {}, tmp_path)
    found = explain_job("2", site, tmp_path)
    assert (found["outcome"], found["findings"][0]["state"]) == ("cancelled", "CANCELLED"), "naive: the first row"
    assert explain_job("7", site, tmp_path)["findings"], "the raw number of an array's task has no job of its own"
