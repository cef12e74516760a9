"""`sacct --json` and `squeue --json`, whose fields changed their form with almost every version (20.11 to 24.11).

A number may stand bare or as `{"set": true, "infinite": false, "number": 5}`, a state as a word or a list of words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from infrarsi_hpc.domain.job import JobId, JobRecord, JobState
from infrarsi_hpc.edges.slurm.ids import MAX_TASKS, parse_tasks
from infrarsi_hpc.edges.slurm.quantities import expand_nodes
from infrarsi_hpc.edges.slurm.records import MAX_TEXT, read
from infrarsi_hpc.edges.slurm.states import parse_state

MAX_BYTES = 64 * 2**20


def parse_json(text: str) -> tuple[Literal["sacct", "squeue"], list[JobRecord], list[str]]:
    """Who speaks, one record a task as listed (requeues of a task in a row), and the errors that it reports.

    Raises
    ------
    ValueError
        It is no such JSON.
    """
    if len(text) > MAX_BYTES:
        raise ValueError("more JSON than any queue needs")
    try:
        # a warning or a banner may stand before it
        data = json.loads(text[max(0, text.find("{")) :])
    except (ValueError, RecursionError) as error:
        raise ValueError("not JSON") from error
    if not isinstance(data, dict) or not isinstance(data.get("jobs"), list):
        raise ValueError("JSON without a list of jobs")
    records: list[JobRecord] = []
    command: Literal["sacct", "squeue"] = "squeue"
    for job in data["jobs"]:
        if isinstance(job, dict) and len(records) <= 2 * MAX_TASKS:
            is_sacct = isinstance(job.get("state"), dict)
            command = "sacct" if is_sacct else command
            records += _of_sacct(job) if is_sacct else _of_squeue(job)
    errors = [_text(error.get("error") or error.get("description")) for error in _list(data.get("errors"))]
    if not data["jobs"] and "sacct" in json.dumps(_dict(data.get("meta")))[:4000]:
        command = "sacct"
    return command, records, [error for error in errors if error]


def _of_sacct(job: Mapping[str, Any]) -> list[JobRecord]:
    array, state, time = _dict(job.get("array")), _dict(job.get("state")), _dict(job.get("time"))
    exit_code, derived = _dict(job.get("exit_code")), _dict(job.get("derived_exit_code"))
    comment = job.get("comment")
    limit = _number(time.get("limit"))
    steps = _list(job.get("steps"))
    by = _text(job.get("kill_request_user")) if _state(state.get("current")) is JobState.CANCELLED else ""
    record = JobRecord(
        JobId(0),
        _state(state.get("current")),
        exit_code=_number(exit_code.get("return_code")),
        signal=_signal(exit_code),
        derived_exit_code=_number(derived.get("return_code")),
        nodes=read(expand_nodes, _text(job.get("nodes"))) or (),
        elapsed_seconds=_number(time.get("elapsed")),
        submitted_at=_time(time.get("submission")),
        started_at=_time(time.get("start")),
        ended_at=_time(time.get("end")),
        time_limit_seconds=None if limit is None else limit * 60,
        max_rss_gib=max((gib for step in steps if (gib := _rss_gib(step)) is not None), default=None),
        requested_memory_gib=_requested_gib(_dict(job.get("required"))),
        reason=f"cancelled by {by}" if by else "",
        name=_text(job.get("name")),
        comment=_text(_dict(comment).get("job") if isinstance(comment, dict) else comment),
        restarts=_number(job.get("restart_cnt")) or 0,
        step_states=tuple(_state(step.get("state")) for step in steps),
        num_nodes=_number(job.get("allocation_nodes")),
    )
    return _named(record, job, array.get("job_id"), array.get("task_id"), array.get("task"))


def _of_squeue(job: Mapping[str, Any]) -> list[JobRecord]:
    exit_code = _dict(job.get("exit_code"))
    limit = _number(job.get("time_limit"))
    reason = _text(job.get("state_reason"))
    record = JobRecord(
        JobId(0),
        _state(job.get("job_state")),
        exit_code=_number(exit_code.get("return_code")),
        signal=_signal(exit_code),
        nodes=read(expand_nodes, _text(job.get("nodes"))) or (),
        submitted_at=_time(job.get("submit_time")),
        started_at=_time(job.get("start_time")),
        ended_at=_time(job.get("end_time")),
        time_limit_seconds=None if limit is None else limit * 60,
        reason="" if reason == "None" else reason,
        name=_text(job.get("name")),
        comment=_text(job.get("comment")),
        restarts=_number(job.get("restart_cnt")) or 0,
        num_nodes=_number(job.get("node_count")),
    )
    return _named(record, job, job.get("array_job_id"), job.get("array_task_id"), job.get("array_task_string"))


def _named(record: JobRecord, job: Mapping[str, Any], array: Any, task: Any, tasks: Any) -> list[JobRecord]:
    """The record under its own number, its task's, or those of all tasks that still wait in it."""
    cluster, own, whole = _text(job.get("cluster"))[:100], _number(job.get("job_id")), _number(array)
    number = whole or own
    if not number:
        return []
    listed = read(parse_tasks, _text(tasks).strip("[]")) if whole and _text(tasks) else None
    if listed is not None:
        ids = [JobId(number, index, cluster) for index in listed[0]]
    else:
        ids = [JobId(number, _number(task) if whole else None, cluster)]
    return [replace(record, job=one) for one in ids]


def _number(value: Any) -> int | None:
    """A whole number, bare or wrapped; none where it is not set or infinite."""
    if isinstance(value, dict):
        if value.get("set") is False or value.get("infinite") is True:
            return None
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        return None
    return value


def _time(value: Any) -> float | None:
    number = _number(value)
    return float(number) if number else None


def _signal(exit_code: Mapping[str, Any]) -> int | None:
    signal = _dict(exit_code.get("signal"))
    return _number(signal.get("signal_id", signal.get("id")))


def _state(value: Any) -> JobState:
    """The base state; flags like REQUEUED may stand beside it, and say that the job goes on."""
    words = [parse_state(word) for word in (value if isinstance(value, list) else [value]) if isinstance(word, str)]
    waiting = [state for state in words if state.is_waiting]
    return (waiting or words or [JobState.UNKNOWN])[0]


def _rss_gib(step: Mapping[str, Any]) -> float | None:
    requested = _dict(_dict(step.get("tres")).get("requested"))
    found = [
        count
        for row in _list(requested.get("max"))
        if row.get("type") == "mem" and (count := _number(row.get("count")))
    ]
    return max(found) / 2**30 if found else None


def _requested_gib(required: Mapping[str, Any]) -> float | None:
    for name in ("memory_per_node", "memory"):
        if (mib := _number(required.get(name))) is not None:
            return mib / 1024
    return None


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value[:MAX_TEXT] if isinstance(value, str) else ""
