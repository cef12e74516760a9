"""JSON of sacct and squeue, in the forms of several versions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi_hpc.domain.job import JobId, JobState
from infrarsi_hpc.edges.slurm.json_text import parse_json


def number(value: int | None) -> dict[str, Any]:
    return {"set": value is not None, "infinite": False, "number": value or 0}


SACCT_OLD: dict[str, Any] = {
    "job_id": 913, "array": {"job_id": 912, "task_id": 1, "task": None}, "cluster": "elm", "name": "t",
    "state": {"current": "OUT_OF_MEMORY", "reason": "None"}, "nodes": "n[01-02]",
    "exit_code": {"status": "SIGNALED", "return_code": 0, "signal": {"signal_id": 125, "name": ""}},
    "time": {"elapsed": 131, "start": 1767225600, "end": 1767225731, "submission": 1767225500, "limit": 30},
    "comment": {"job": "irsi", "system": None}, "required": {"memory": 16384},
    "steps": [{"state": "OUT_OF_MEMORY", "tres": {"requested": {"max": [{"type": "mem", "count": 2147483648}]}}}],
}  # fmt: skip
SACCT_NEW: dict[str, Any] = {
    **SACCT_OLD,
    "array": {"job_id": 912, "task_id": number(1), "task": ""},
    "state": {"current": ["OUT_OF_MEMORY"], "reason": "None"},
    "exit_code": {"status": ["SIGNALED"], "return_code": number(0), "signal": {"id": number(125), "name": ""}},
    "time": {**SACCT_OLD["time"], "limit": number(30)},
    "required": {"memory_per_node": number(16384)},
    "steps": [{**SACCT_OLD["steps"][0], "state": ["OUT_OF_MEMORY"]}],
}


@pytest.mark.parametrize("job", [SACCT_OLD, SACCT_NEW], ids=["21.08", "23.11"])
def test_sacct_is_read_in_old_and_new_forms(job: dict[str, Any]) -> None:
    command, (record,), errors = parse_json(json.dumps({"jobs": [job], "errors": []}))
    assert (command, errors) == ("sacct", [])
    assert (record.job, record.state, record.signal) == (JobId(912, 1, "elm"), JobState.OUT_OF_MEMORY, 125)
    assert (record.elapsed_seconds, record.time_limit_seconds, record.nodes) == (131, 1800, ("n01", "n02"))
    assert (record.max_rss_gib, record.requested_memory_gib, record.comment) == (2.0, 16.0, "irsi")
    assert record.step_states == (JobState.OUT_OF_MEMORY,)


def test_squeue_lists_pending_tasks_one_by_one() -> None:
    waiting = {
        "job_id": 912, "array_job_id": number(912), "array_task_id": number(None), "array_task_string": "4-6%2",
        "job_state": ["PENDING"], "state_reason": "Priority", "nodes": "", "restart_cnt": 0, "time_limit": number(None),
    }  # fmt: skip
    running = {"job_id": 950, "array_job_id": 0, "array_task_id": None, "job_state": "RUNNING", "nodes": "n7"}
    command, records, _ = parse_json("note: 3 jobs\n" + json.dumps({"jobs": [waiting, running]}))
    assert command == "squeue"
    assert [(str(r.job), r.state) for r in records] == [
        ("912_4", JobState.PENDING),
        ("912_5", JobState.PENDING),
        ("912_6", JobState.PENDING),
        ("950", JobState.RUNNING),
    ]
    assert records[0].time_limit_seconds is None


def test_a_requeued_job_is_waiting_whatever_stands_first() -> None:
    job = {"job_id": 5, "job_state": ["COMPLETED", "REQUEUED"]}
    _, (record,), _ = parse_json(json.dumps({"jobs": [job]}))
    assert record.state is JobState.REQUEUED  # naive: COMPLETED


@pytest.mark.parametrize("text", ["", "{", "[]", '{"jobs": 5}', "[" * 100_000, "{" + '"a":{' * 50_000])
def test_what_is_no_such_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="JSON"):
        parse_json(text)


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["set", "number", "current", "job_id", "task_id", "max", "type", "count", "id"]), inner
        )
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from([*SACCT_OLD, "array_job_id", "array_task_id", "job_state", "time_limit"]), _ANY))
def test_fields_of_any_form_are_taken(job: dict[str, Any]) -> None:
    parse_json(json.dumps({"jobs": [job, 5], "errors": [job], "meta": job}))
