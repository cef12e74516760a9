"""squeue's answers, and what only looks like one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi_hpc.domain.job import JobId, JobState
from infrarsi_hpc.edges.slurm.squeue_text import FIELDS, FORMAT, parse_squeue


def row(**cells: str) -> str:
    """One row of our own form."""
    return "|".join(cells.get(name, "N/A") for name in FIELDS.values())


RUNNING = row(
    jobidraw="913", array_job_id="912", array_task_id="1", state="RUNNING", reason="None", nodelist="n[01-02]",
    submit_time="2031-05-01T10:00:00", start_time="2031-05-01T10:00:09", time_limit="1-00:00:00", time="5:07",
    nodes="2", comment="irsi:c1:r2", name="a|b",
)  # fmt: skip
PENDING = row(
    jobidraw="912", array_job_id="912", array_task_id="4-6%2", state="PENDING", reason="Priority", nodelist="",
    start_time="N/A", time="0:00",
)  # fmt: skip
SINGLE = row(
    jobidraw="950", array_job_id="950", array_task_id="N/A", state="COMPLETING", nodelist="n07", time="INVALID"
)


def test_the_format_asks_for_every_field_once() -> None:
    assert FORMAT.split("|") == list(FIELDS)
    assert len(set(FIELDS.values())) == len(FIELDS)


def test_our_own_rows_are_read_and_pending_tasks_are_listed_one_by_one() -> None:
    answer = parse_squeue(f"{RUNNING}\n{PENDING}\n{SINGLE}\n")
    assert answer.is_answer
    records = {str(record.job): record for record in answer.records}
    assert list(records) == ["912_1", "912_4", "912_5", "912_6", "950"]
    first = records["912_1"]
    assert (first.state, first.nodes, first.elapsed_seconds, first.time_limit_seconds, first.num_nodes) == (
        JobState.RUNNING,
        ("n01", "n02"),
        307,
        86400,
        2,
    )
    assert (first.comment, first.name, first.reason) == ("irsi:c1:r2", "a|b", "")
    assert first.started_at is not None
    assert first.submitted_at == first.started_at - 9
    assert records["912_5"].reason == "Priority"
    assert records["950"].elapsed_seconds is None


def test_rows_below_a_cluster_line_are_that_clusters() -> None:
    answer = parse_squeue(f"CLUSTER: willow\n{SINGLE}\nCLUSTER: alder\n{SINGLE}\n")
    assert [record.job for record in answer.records] == [JobId(950, cluster="willow"), JobId(950, cluster="alder")]
    assert answer.clusters == ("willow", "alder")


#: stdout, stderr, exit code; is it an answer, is the id purged
ANSWERS: dict[str, tuple[str, str | None, int, bool, bool]] = {
    "nothing queued": ("", "", 0, True, False),
    "an outage with rc 0": (
        "CLUSTER: willow\n",
        "slurm_load_jobs error: Socket timed out on send/recv operation\n",
        0,
        False,
        False,
    ),
    "an empty table whose stderr was not kept": ("CLUSTER: willow\n", None, 0, False, False),
    "an outage": ("", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", 1, False, False),
    "an outage on stdout": ("slurm_load_jobs error: Unexpected message received", None, 0, False, False),
    "a purged id": ("", "slurm_load_jobs error: Invalid job id specified", 1, True, True),
    "an outage beside a purged id": (
        "",
        "slurm_load_jobs error: Invalid job id specified\nslurm_load_jobs error: Unexpected message received",
        1,
        False,
        False,
    ),
    "one cluster of two": (f"{SINGLE}\n", "slurm_load_jobs error: Unable to contact slurm controller", 0, False, False),
    "a bare failure": ("", "", 1, False, False),
    "rows nobody can read": ("a|b|c\n", "", 0, False, False),
    "rows": (f"{SINGLE}\n", "", 0, True, False),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_no_answer_is_not_an_empty_queue(name: str) -> None:
    stdout, stderr, returncode, is_answer, is_purged = ANSWERS[name]
    answer = parse_squeue(stdout, stderr, returncode)
    assert (answer.is_answer, answer.is_purged) == (is_answer, is_purged)
    assert bool(answer.evidence) == (not is_answer or is_purged)


TABLES = {
    "default": """             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)
     6_[4-6%4]     debug  my job   jane PD       0:00      1 (Resources)
           6_1     debug  my job   jane  R    1:02:03      2 n[1-2]
""",
    "long": """Thu May 01 10:00:00 2031
             JOBID PARTITION     NAME     USER    STATE       TIME TIME_LIMI  NODES NODELIST(REASON)
     6_[4-6%4]     debug  my job   jane  PENDING       0:00   1:00:00      1 (Resources)
           6_1     debug  my job   jane  RUNNING    1:02:03 UNLIMITED      2 n[1-2]
""",
    "piped": "JOBID|ST|TIME|NODES|NODELIST|REASON\n6_[4-6%4]|PD|0:00|1||Resources\n6_1|R|1:02:03|2|n[1-2]|None\n",
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_with_a_header_are_read_as_well(name: str) -> None:
    answer = parse_squeue(TABLES[name], None)
    assert answer.is_answer
    assert [(str(r.job), r.state) for r in answer.records] == [
        ("6_4", JobState.PENDING),
        ("6_5", JobState.PENDING),
        ("6_6", JobState.PENDING),
        ("6_1", JobState.RUNNING),
    ]
    assert answer.records[0].reason == "Resources"
    assert (answer.records[3].nodes, answer.records[3].elapsed_seconds) == (("n1", "n2"), 3723)


WIDE = """\
             JOBID            PARTITION                 NAME     USER    STATE     TIME TIME_LIMI  NODES   PRIORITY           START_TIME                                   NODELIST(REASON)
           8724936                  gpu             infrarsi    me PENDING     0:00      5:00      1     689130  2032-02-01T18:32:40          (ReqNodeNotAvail, UnavailableNodes:r34n5)
           8724937                  gpu        a name (blanks)    me PENDING     0:00      5:00      1     689129  2032-02-01T18:32:40   (ReqNodeNotAvail, May be reserved for other job)
           8724938                  gpu             infrarsi    me PENDING     0:00      5:00      1     689129                  N/A   (Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions)
           8724939                  gpu             infrarsi    me PENDING     0:00      5:00      1     689129                  N/A   (PartitionDown)
           8724935                  gpu             infrarsi    me RUNNING     1:22      5:00      1     689100  2032-02-01T18:27:40                                              r34n5
"""  # noqa: E501


def test_reasons_with_blanks_and_commas_are_kept_whole_whatever_columns_a_site_shows() -> None:
    answer = parse_squeue(WIDE, None)
    assert answer.unreadable == ()
    assert [(r.job.number, r.reason, r.nodes, r.name) for r in answer.records] == [
        (8724936, "ReqNodeNotAvail, UnavailableNodes:r34n5", (), "infrarsi"),
        (8724937, "ReqNodeNotAvail, May be reserved for other job", (), "a name (blanks)"),
        (
            8724938,
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            (),
            "infrarsi",
        ),
        (8724939, "PartitionDown", (), "infrarsi"),
        (8724935, "", ("r34n5",), "infrarsi"),
    ], "naive: what stands behind an unknown column is lost"
    assert answer.records[4].elapsed_seconds == 82


@given(st.text(), st.none() | st.text(), st.integers(-9, 255))
def test_any_text_is_taken(stdout: str, stderr: str | None, returncode: int) -> None:
    parse_squeue(stdout, stderr, returncode)
