"""Which of Slurm's texts is this, and what would a campaign make of it? Told by content, never by the file's name.

A table without rows is unknown as long as nothing shows that the question was answered.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from infrarsi_hpc.domain.job import JobId, JobRecord
from infrarsi_hpc.domain.outcome import ACTIONS, Ending, Outcome
from infrarsi_hpc.edges.slurm.config_text import (
    SINFO_FORMAT,
    PartitionOffer,
    headless_rows,
    parse_config,
    parse_partitions,
    parse_sinfo,
)
from infrarsi_hpc.edges.slurm.json_text import parse_json
from infrarsi_hpc.edges.slurm.sacct_text import (
    RETURNING,
    SacctTask,
    group_attempts,
    read_sacct,
    sacct_problem,
)
from infrarsi_hpc.edges.slurm.sbatch_text import classify_refusal, is_refusal_text, parse_submission
from infrarsi_hpc.edges.slurm.squeue_text import SqueueAnswer, parse_squeue, squeue_errors
from infrarsi_hpc.edges.slurm.tables import read_table
from infrarsi_hpc.edges.slurm.wait_reasons import meaning
from infrarsi_hpc.errors import InputRefused
from infrarsi_hpc.verify.job_ending import NEEDS_END_MARK, ending_of_record

MAX_BYTES = 64 * 2**20
#: Findings shown of one file.
MAX_FINDINGS = 5000
_FAILURE = re.compile(r"submission failed|submit/allocate failed|: fatal:|plugin terminated with error", re.IGNORECASE)
_COMPLAINT = re.compile(
    r"\b(?:error|fatal|failed|failure|rejected|denied|refused|not permitted|not allowed)\b", re.IGNORECASE
)
LAST_STATE_STANDS = "no answer: the last known states stand, and squeue is asked again later"

Explained = dict[str, Any]


def explain_slurm_file(path: Path) -> Explained:
    """`explain_slurm` of a file's beginning.

    Raises
    ------
    InputRefused
        It cannot be read.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise InputRefused(f"{path} cannot be read", why=error.strerror or str(error), fix="check the path") from error
    return explain_slurm(text, name=path.name)


def explain_slurm(text: str, stderr: str | None = None, name: str = "") -> Explained:
    """One object: outcome, detail, bound_gib, rank, evidence, action, findings.

    `stderr` is none where only one stream is at hand. `name` is what to call the text where it is none of Slurm's.
    """
    if not text.strip() and not (stderr or "").strip():
        return _said("unknown", "empty", "nothing in it", "an empty answer is no answer; " + LAST_STATE_STANDS)
    for explain in _EXPLAINERS:
        try:
            found = explain(text, stderr)
        except ValueError:
            found = None
        if found is not None:
            return found
    evidence = f"{name or 'this'} is none of the texts of Slurm's that are known"
    return _said(
        "unknown", None, evidence, "known are sacct, squeue, sinfo, sbatch, and scontrol show config or partition"
    )


# ---- sacct


def _json(text: str, stderr: str | None) -> Explained | None:
    if not text.lstrip().startswith("{") and '"jobs"' not in text:
        return None
    command, records, errors = parse_json(text)
    if errors and not records:
        return _said("unknown", "outage", errors[0], LAST_STATE_STANDS)
    if command == "squeue":
        return _queue(SqueueAnswer(tuple(records), bool(records) or stderr is not None, evidence="no jobs"), stderr)
    return _tasks(group_attempts(records))


def _sacct_problem(text: str, stderr: str | None) -> Explained | None:
    problem = None if "JobID" in text else sacct_problem(f"{text}\n{stderr or ''}")
    if problem is None:
        return None
    if problem.kind == "disabled":
        action = (
            "no accounting here: squeue, scontrol and our own result and heartbeat files decide; doctor says so once"
        )
        return _said("unknown", "no_accounting", problem.evidence, action)
    action = "the accounting database is away: the last known states stand, squeue and our own files decide meanwhile"
    return _said("unknown", "outage", problem.evidence, action)


def _sacct(text: str, _: str | None) -> Explained | None:
    lines = text.splitlines()
    # squeue's header has JOBID, sacct's JobID
    if not any("JobID" in line or line.startswith("jobid") for line in lines):
        return None
    answer = read_sacct(text)
    found = _tasks(list(answer.tasks))
    if answer.unreadable and not answer.tasks:
        found["evidence"] = f"{len(answer.unreadable)} rows, and none that names a job"
    found["findings"] += [{"problem": "a row that names no job", "line": line} for line in answer.unreadable]
    if answer.is_fixed_width:
        found["findings"].append({"note": "cut columns: ask with --parsable2 and a --format of your own"})
    return found


def _tasks(tasks: list[SacctTask]) -> Explained:
    if not tasks:
        action = "unknown yet: sacct lags behind the controller; neither finished nor failed, asked again later"
        return _said("unknown", "no_rows", "a header and no rows", action)
    endings = [ending_of_record(task.record) for task in tasks]
    rows = [_task_row(task, ending) for task, ending in zip(tasks, endings, strict=True)]
    return _summed(endings, rows)


def _task_row(task: SacctTask, ending: Ending) -> Explained:
    row = _row(task.record, ending, task.is_final)
    if task.memory is not None:
        row["requested_memory_per"] = task.memory.per or None
    row["earlier_attempts"] = [
        {
            "state": record.state.value,
            "is_final": False,
            "elapsed_seconds": record.elapsed_seconds,
            "nodes": list(record.nodes),
        }
        for record in task.earlier
    ]
    if task.is_final and task.record.state in RETURNING:
        row["note"] = "may be requeued: over only as long as no later record or queued job of this id is seen"
    return row


def _summed(endings: list[Ending], rows: list[Explained]) -> Explained:
    """The outcome of the only task, or the one that all share; else unknown, with how many ended how."""
    labels = Counter(ending.label for ending in endings)
    first = endings[0]
    is_same = len(labels) == 1
    counts = ", ".join(f"{count} {label}" for label, count in labels.most_common())
    evidence = first.evidence if len(endings) == 1 else f"{len(endings)} tasks: {counts}"
    outcome = first.outcome if is_same else Outcome.UNKNOWN
    action = ACTIONS[outcome] if is_same else "every task by its own outcome"
    return _said(outcome.value, first.detail if is_same else None, evidence, action, rows)


# ---- squeue


def _squeue(text: str, stderr: str | None) -> Explained | None:
    has_error = bool(squeue_errors(text) or squeue_errors(stderr or ""))
    answer = parse_squeue(text, stderr)
    is_table = answer.clusters or answer.records or read_table(text, ("jobid", "state")) or _is_queue_header(text)
    return _queue(answer, stderr) if has_error or is_table else None


def _is_queue_header(text: str) -> bool:
    return any({"JOBID", "PARTITION"} <= set(line.split()) for line in text.splitlines()[:200])


def _queue(answer: SqueueAnswer, stderr: str | None) -> Explained:
    endings = [ending_of_record(record) for record in answer.records]
    rows = [_row(r, ending, r.state.is_over) for r, ending in zip(answer.records, endings, strict=True)]
    rows += [{"problem": "a row that cannot be read", "line": line} for line in answer.unreadable]
    if answer.is_purged:
        action = (
            "the controller has forgotten the job (MinJobAge): unknown, look at sacct and the result file; the other "
            "ids are asked without it"
        )
        return _said("unknown", "purged", answer.evidence, action, rows)
    if not answer.is_answer:
        what = LAST_STATE_STANDS
        if stderr is None and not squeue_errors(answer.evidence):
            what = "an outage says so on the other stream: not 'all jobs finished'; " + LAST_STATE_STANDS
        return _said("unknown", "outage" if squeue_errors(answer.evidence) else "no_rows", answer.evidence, what, rows)
    if not rows:
        action = "not in the queue any more: sacct and the result file tell how it ended"
        return _said("unknown", "no_rows", "an empty queue", action)
    return _summed(endings, rows)


# ---- sbatch


def _refused(text: str, stderr: str | None) -> Explained | None:
    both = f"{text}\n{stderr or ''}"
    if not is_refusal_text(both) or (parse_submission(both) is not None and not _FAILURE.search(both)):
        return None
    return _refusal(both)


def _refused_in_other_words(text: str, stderr: str | None) -> Explained | None:
    """A wrapper round sbatch may print its checks without saying who speaks; only lines about a failure count."""
    lines = [line for line in f"{text}\n{stderr or ''}".splitlines() if _COMPLAINT.search(line[:2000])]
    return _refusal("\n".join(lines)) if lines and classify_refusal("\n".join(lines), None).kind != "unknown" else None


def _refusal(both: str) -> Explained:
    refusal = classify_refusal(both, None)
    # a lost reply is no refusal
    outcome = "unknown" if refusal.kind == "ambiguous" else "refused"
    lead = {
        "permanent": "stop the run, the same request is never taken",
        "wait": "wait, then send it again",
        "transient": "send it again later, and say so",
        "ambiguous": "the job may exist",
        "unknown": "send it again a few times at most",
    }[refusal.kind]
    finding = {"kind": refusal.kind, "field": refusal.field or None, "evidence": refusal.evidence, "fix": refusal.fix}
    return _said(outcome, refusal.kind, refusal.evidence, f"{lead}: {refusal.fix}", [finding])


def _submitted(text: str, _: str | None) -> Explained | None:
    job = parse_submission(text)
    if job is None:
        return None
    action = "the id goes into the ledger"
    if job.cluster:
        action += f"; sacct, squeue and scancel are asked with -M {job.cluster}"
    on = f" on cluster {job.cluster}" if job.cluster else ""
    return _said("ok", "submitted", f"job {job}{on}", action, [_id(job)])


# ---- the cluster itself


def _partitions(text: str, _: str | None) -> Explained | None:
    offers = parse_partitions(text) if "PartitionName=" in text else parse_sinfo(text)
    evidence = f"{len(offers)} partitions: " + ", ".join(offer.name for offer in offers[:20])
    findings = [_offer(o) for o in offers]
    headless = None if "PARTITION" in text.upper() else headless_rows(text)
    if headless is not None:
        evidence += "; sinfo without its header, columns told by what stands in them"
        columns = ", ".join(map(str, headless.unknown_columns))
        note = f"columns {columns} are left out: nothing shows what they are; ask " if columns else "better ask "
        findings.append({"note": f"{note}sinfo --format='{SINFO_FORMAT}', with its header"})
    return _said("ok", "partitions", evidence, "goes into the site profile's [[partition]]", findings)


def _offer(offer: PartitionOffer) -> Explained:
    gpus_per_node = sum(gpus.count for gpus in offer.gpus)
    return {**asdict(offer), "nodes": list(offer.nodes), "gpus_per_node": gpus_per_node}


def _config(text: str, _: str | None) -> Explained | None:
    config = parse_config(text)
    notes = []
    if config.has_accounting is False:
        notes.append("no accounting: sacct has no answers, squeue and our own files decide")
    if config.max_array_index is not None:
        notes.append(
            f"highest array index {config.max_array_index}: limits.array_size at most {config.max_array_index + 1}"
        )
    if config.min_job_age_seconds is not None:
        notes.append(f"finished jobs are forgotten after {config.min_job_age_seconds} s: unknown then, not finished")
    if config.requeues is False:
        notes.append("jobs are not requeued by default: a preempted trial is sent again by the head")
    if config.counts_memory is False:
        notes.append("memory is not counted when jobs are placed: request.memory can be none")
    shown = config.cluster or "a cluster"
    evidence = f"{shown}, Slurm {config.version}" if config.version else shown
    return _said("ok", "config", evidence, "; ".join(notes) or "nothing here that a campaign minds", [asdict(config)])


# ---- rows


def _row(record: JobRecord, ending: Ending, is_final: bool) -> Explained:
    row: Explained = {
        **_id(record.job),
        "state": record.state.value,
        "is_final": is_final,
        "outcome": ending.outcome.value,
        "detail": ending.detail,
        "exit_code": record.exit_code,
        "signal": record.signal,
        "derived_exit_code": record.derived_exit_code,
        "elapsed_seconds": record.elapsed_seconds,
        "time_limit_seconds": record.time_limit_seconds,
        "requested_memory_gib": record.requested_memory_gib,
        "max_rss_gib": record.max_rss_gib,
        "nodes": list(record.nodes),
        "num_nodes": record.num_nodes,
        "num_gpus": record.num_gpus,
        "submitted_at": record.submitted_at,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
        "restarts": record.restarts,
        "reason": record.reason,
        "name": record.name,
        "steps": [state.value for state in record.step_states],
    }
    if record.state.is_waiting and record.reason:
        means = meaning(record.reason)
        row["waiting"] = {"kind": means.kind, "words": means.words}
    if record.state.value == "COMPLETED":
        row["note"] = NEEDS_END_MARK
    return row


def _id(job: JobId) -> Explained:
    return {"job_id": str(job), "number": job.number, "task": job.task, "cluster": job.cluster or None}


def _said(
    outcome: str, detail: str | None, evidence: str, action: str, findings: Iterable[Explained] = ()
) -> Explained:
    return {
        "outcome": outcome,
        "detail": detail,
        "bound_gib": None,
        "rank": None,
        "evidence": evidence[:1000],
        "action": action,
        "findings": list(findings)[:MAX_FINDINGS],
    }


#: In this order: a text that only begins like another's is told apart by what comes first.
_EXPLAINERS: tuple[Callable[[str, str | None], Explained | None], ...] = (
    _json,
    _sacct_problem,
    _refused,
    _sacct,
    _squeue,
    _partitions,
    _config,
    _submitted,
    _refused_in_other_words,
)
