"""sacct's rows: which attempt counts, what steps may say, and what is no answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi_hpc.domain.job import JobId, JobState
from infrarsi_hpc.edges.slurm.sacct_text import parse_sacct, read_sacct, sacct_problem

PARSABLE = """JobID|JobIDRaw|State|ExitCode|Elapsed|Timelimit|ReqMem|MaxRSS|NNodes|NodeList
812_0|813|COMPLETED|0:0|00:09:30|01:00:00|8000M||1|n001
812_0.batch|813.batch|COMPLETED|0:0|00:09:30||||1|n001
812_0.0|813.0|FAILED|5:0|00:09:20|||31457280K|1|n001
812_1|814|FAILED|1:0|00:02:11|01:00:00|32Gn||1|n002
812_1.0|814.0|OUT_OF_MEMORY|0:125|00:02:11|||33000M|1|n002
812_2|815|CANCELLED by 4242|0:0|00:00:00|Partition_Limit|0||1|None assigned
812_3|816|TIMEOUT|0:0|1-02:00:17|1-02:00:00|2Gc||2|n[008-009]
812_3.batch|816.batch|CANCELLED|0:15|1-02:00:18||||1|n008
812_[4-6%2]|812|PENDING|0:0|00:00:00|UNLIMITED|250G||1|None assigned
"""


def test_every_task_is_one_record_with_its_steps_folded_in() -> None:
    records = {str(record.job): record for record in parse_sacct(PARSABLE)}
    assert list(records) == ["812_0", "812_1", "812_2", "812_3", "812_4", "812_5", "812_6"]
    done = records["812_0"]
    assert (done.state, done.elapsed_seconds, done.time_limit_seconds, done.nodes) == (
        JobState.COMPLETED,
        570,
        3600,
        ("n001",),
    )
    assert done.step_states == (JobState.COMPLETED, JobState.FAILED)
    assert done.max_rss_gib == pytest.approx(30.0)
    assert done.requested_memory_gib == pytest.approx(7.8125)
    assert records["812_1"].state is JobState.FAILED  # naive: the last row's OUT_OF_MEMORY
    assert records["812_1"].step_states == (JobState.OUT_OF_MEMORY,)
    assert records["812_2"].reason == "cancelled by 4242"
    assert records["812_2"].time_limit_seconds is None
    assert records["812_3"].state is JobState.TIMEOUT  # naive: its batch step's CANCELLED
    assert records["812_3"].elapsed_seconds == 93617
    assert records["812_3"].nodes == ("n008", "n009")
    assert {records[f"812_{task}"].state for task in (4, 5, 6)} == {JobState.PENDING}


def test_columns_are_found_by_name_in_any_order_with_some_missing_and_others_unknown() -> None:
    text = "Flavour|State|NodeList|jobid|\nmint|RUNNING|n3|77|\n"
    (record,) = parse_sacct(text)
    assert (record.job, record.state, record.nodes, record.exit_code) == (JobId(77), JobState.RUNNING, ("n3",), None)


@pytest.mark.parametrize(
    ("row", "name"),
    [("9|a|b|COMPLETED", "a|b"), ("9|plain|COMPLETED", "plain"), ("9|a|b|c|COMPLETED", "a|b|c")],
)
def test_a_job_name_may_hold_the_separator(row: str, name: str) -> None:
    (record,) = parse_sacct(f"JobID|JobName|State\n{row}\n")
    assert (record.state, record.name) == (JobState.COMPLETED, name)


def test_a_banner_stands_before_the_header_and_noise_below_it_names_no_job() -> None:
    text = "Welcome to Alder, 12 nodes free\n\nJobID|State\n90|RUNNING\nwarning: quota 91%\n"
    answer = read_sacct(text)
    assert [task.record.job.number for task in answer.tasks] == [90]
    assert answer.unreadable == ("warning: quota 91%",)


def test_a_header_alone_is_no_rows_and_no_header_is_a_value_error() -> None:
    assert parse_sacct("JobID|State|NodeList\n") == []
    for text in ("", "\n \n", "nothing of the kind", "410026"):
        with pytest.raises(ValueError, match="no header"):
            parse_sacct(text)


def test_the_default_table_is_read_by_its_dashes() -> None:
    text = """JobID           JobName  Partition    Account  AllocCPUS      State ExitCode
------------ ---------- ---------- ---------- ---------- ---------- --------
731_1           run one        gpu      phys4         16 OUT_OF_ME+    0:125
731_1.batch       batch                 phys4         16 OUT_OF_ME+    0:125
731_1.ext+       extern                 phys4         16  COMPLETED      0:0
731_2           run two        gpu      phys4         16 CANCELLED+      0:0
731_3           run thr        gpu      phys4         16 COMPLETI+       0:0
731_4                          gpu      phys4         16    RUNNING      0:0
"""
    answer = read_sacct(text)
    assert answer.is_fixed_width
    assert [(str(t.record.job), t.record.state) for t in answer.tasks] == [
        ("731_1", JobState.OUT_OF_MEMORY),
        ("731_2", JobState.CANCELLED),
        ("731_3", JobState.COMPLETING),
        ("731_4", JobState.RUNNING),
    ]
    assert answer.tasks[0].record.step_states == (JobState.OUT_OF_MEMORY, JobState.COMPLETED)
    assert answer.tasks[0].record.signal == 125


#: rows of one job (state, submit, start, end), and the state that counts
ATTEMPTS: dict[str, tuple[list[tuple[str, str, str, str]], JobState]] = {
    "in order": (
        [("NODE_FAIL", "T09:00", "T09:10", "T09:40"), ("FAILED", "T09:40", "T09:50", "T10:00")],
        JobState.FAILED,
    ),
    "newest first": (
        [("FAILED", "T09:40", "T09:50", "T10:00"), ("NODE_FAIL", "T09:00", "T09:10", "T09:40")],
        JobState.FAILED,
    ),
    "the last one still waits": (
        [("PREEMPTED", "T09:00", "T09:10", "T09:40"), ("PENDING", "T09:40", "Unknown", "Unknown")],
        JobState.PENDING,
    ),
    "the last one runs, listed first": (
        [("RUNNING", "T09:40", "T12:10", "Unknown"), ("PREEMPTED", "T09:00", "T09:10", "T09:40")],
        JobState.RUNNING,
    ),
    "equal times go by row": (
        [("PREEMPTED", "T09:00", "T09:10", "T09:40"), ("COMPLETED", "T09:00", "T09:10", "T09:40")],
        JobState.COMPLETED,
    ),
    "no times at all": ([("NODE_FAIL", "", "", ""), ("COMPLETED", "", "", "")], JobState.COMPLETED),
    "the repeated hour": (
        [("PREEMPTED", "", "T02:40", "T02:55"), ("COMPLETED", "", "T02:05", "T02:30")],
        JobState.COMPLETED,
    ),
    "the repeated hour, ended before it began": (
        [
            ("PREEMPTED", "", "T01:40", "T02:10"),
            ("REQUEUED", "", "T02:10", "T02:10"),
            ("TIMEOUT", "", "T02:20", "T02:05"),
        ],
        JobState.TIMEOUT,
    ),
}


@pytest.mark.parametrize("name", ATTEMPTS)
def test_the_last_attempt_decides(name: str) -> None:
    attempts, state = ATTEMPTS[name]

    def cell(text: str) -> str:
        return f"2031-10-26{text}:00" if text.startswith("T") else text

    rows = [f"520|{word}|" + "|".join(map(cell, times)) for word, *times in attempts]
    (task,) = read_sacct("JobID|State|Submit|Start|End\n" + "\n".join(rows)).tasks
    assert task.record.state is state
    assert task.record.restarts == len(attempts) - 1 == len(task.earlier)
    assert task.is_final == state.is_over
    assert task.record.elapsed_seconds is None or task.record.elapsed_seconds >= 0


def test_clusters_and_components_are_told_apart() -> None:
    rows = ["77+0|77|RUNNING|elm", "77+1|78|FAILED|elm", "77+1.batch|78.batch|FAILED|elm", "77|77|FAILED|oak"]
    text = "\n".join(["JobID|JobIDRaw|State|Cluster", *rows])
    assert [(r.job, r.state) for r in parse_sacct(text)] == [
        (JobId(77, cluster="elm"), JobState.RUNNING),
        (JobId(78, cluster="elm"), JobState.FAILED),
        (JobId(77, cluster="oak"), JobState.FAILED),
    ]


def test_steps_alone_are_no_end_of_their_job() -> None:
    (record,) = parse_sacct("JobID|State\n61.batch|COMPLETED\n61.0|COMPLETED\n")
    assert record.state is JobState.UNKNOWN
    (record,) = parse_sacct("JobID|State\n61.batch|COMPLETED\n61|RUNNING\n")
    assert (record.state, record.step_states, record.restarts) == (JobState.RUNNING, (JobState.COMPLETED,), 0)


def test_gpus_are_counted_once() -> None:
    (record,) = parse_sacct("JobID|State|AllocTRES\n6|RUNNING|billing=8,cpu=8,gres/gpu:h100=2,gres/gpu=2,mem=64G\n")
    assert record.num_gpus == 2


PROBLEMS = {
    "Slurm accounting storage is disabled": "disabled",
    "sacct: error: Slurm accounting storage is disabled": "disabled",
    "sacct: error: Problem talking to the database: Connection refused": "down",
    "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection to host:db1:6819": "down",
    "sacct: error: Sending PersistInit msg: Connection refused": "down",
    "JobID|State\n5|RUNNING": None,
    "": None,
}


@pytest.mark.parametrize("text", PROBLEMS)
def test_accounting_that_cannot_answer_is_recognised(text: str) -> None:
    problem = sacct_problem(text)
    assert (problem.kind if problem else None) == PROBLEMS[text]


@given(st.text() | st.text("JobIDState|\n500_[]-9.batch+ CANCELED", max_size=200))
def test_any_rows_are_records_or_unreadable(text: str) -> None:
    answer = read_sacct(f"JobID|State|Elapsed|NodeList|ReqMem\n{text}")
    assert all(task.record.elapsed_seconds is None or task.record.elapsed_seconds >= 0 for task in answer.tasks)
