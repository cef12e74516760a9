"""How a job ended, from what Slurm and its log say: for trials that left no result, or one that was cut short.

COMPLETED is no success: a batch script whose last command succeeds is COMPLETED after a failed srun, so that only the
trial's own end mark tells. A job that ran out of host memory inside a step is FAILED, so steps are read as well.

Covers: states with their steps, out-of-memory kills that the script survived, preemption, lost nodes, limits, jobs that
failed before the agent began.
Does not cover: a scheduler that lies.
"""

from __future__ import annotations

from infrarsi_hpc.domain.job import JobRecord, JobState
from infrarsi_hpc.domain.outcome import TAINTED, Ending, Outcome
from infrarsi_hpc.verify.ending import classify_log

NEEDS_END_MARK = "success needs our own end mark: COMPLETED says only that the batch script's last command succeeded"
#: Slurm's own codes in the place of a signal (slurm/slurm_errno.h).
_OUT_OF_MEMORY, _NO_WORKDIR = 125, 53
_KILL = 9
_SITE = frozenset(
    {
        JobState.BOOT_FAIL,
        JobState.LAUNCH_FAILED,
        JobState.NODE_FAIL,
        JobState.PREEMPTED,
        JobState.RECONFIG_FAIL,
    }
)


_BELIEVED_OF_A_JOB = (Outcome.DEVICE_OOM, Outcome.HOST_OOM, Outcome.TIMEOUT, Outcome.INFRA)


def ending_of_record(record: JobRecord) -> Ending:
    """How the task ended as far as its record tells; `unknown` while it has not, and where the record cannot tell."""
    state, shown = record.state, _shown(record)
    if not state.is_over:
        if state is JobState.UNKNOWN:
            return Ending(
                outcome=Outcome.UNKNOWN, evidence=f"{shown}: a state that is not known, never taken for an end"
            )
        return Ending(outcome=Outcome.UNKNOWN, evidence=f"{shown}: not over")
    if state is JobState.OUT_OF_MEMORY or record.signal == _OUT_OF_MEMORY:
        return Ending(outcome=Outcome.HOST_OOM, detail="cgroup", evidence=f"{shown}: over its host memory")
    if state in _SITE:
        return Ending(outcome=Outcome.INFRA, evidence=shown)
    if JobState.OUT_OF_MEMORY in record.step_states and state is not JobState.COMPLETED:
        return Ending(outcome=Outcome.HOST_OOM, detail="cgroup", evidence=f"{shown}, with a step OUT_OF_MEMORY")
    if state in (JobState.TIMEOUT, JobState.DEADLINE):
        return Ending(outcome=Outcome.TIMEOUT, detail="limit", evidence=shown)
    if state in (JobState.CANCELLED, JobState.REVOKED):
        return Ending(outcome=Outcome.CANCELLED, evidence=f"{shown} {record.reason}".strip())
    if state is JobState.COMPLETED:
        return Ending(outcome=Outcome.UNKNOWN, evidence=f"{shown}: {NEEDS_END_MARK}")
    return _of_failure(record, shown)


def ending_of_job(record: JobRecord, log: str = "") -> Ending:
    """How a job that is over ended, given the end of its log and that it left no result; never `ok`."""
    alone = ending_of_record(record)
    if alone.outcome not in (Outcome.UNKNOWN, Outcome.CRASHED):
        return alone
    found = classify_log(log) if log else None
    # what a program does stands in its own log: the job's is the agent's, whose failure is no configuration's
    if found is not None and found.outcome in _BELIEVED_OF_A_JOB:
        return found
    if record.signal == _KILL and _used_its_memory(record):
        text = f"{alone.evidence}; {record.max_rss_gib:.2f} GiB resident of {record.requested_memory_gib:.2f} GiB"
        return Ending(outcome=Outcome.HOST_OOM, detail="cgroup", evidence=text)
    if record.signal == _KILL:
        return alone
    if record.state is JobState.COMPLETED:
        return Ending(outcome=Outcome.INFRA, evidence=f"{_shown(record)}, but no result of it has appeared")
    return Ending(outcome=Outcome.INFRA, evidence=f"{_shown(record)}, before a result was written{_last_line(log)}")


def with_witness(ending: Ending, record: JobRecord | None) -> Ending:
    """An ending read from a result, corrected by how the job ended where the result cannot know.

    A rank that was killed from outside or an agent that was told to stop sees no reason; Slurm does. Where all ranks
    have left their end marks and Slurm says that the job was over its memory, a helper was killed and no rank: what was
    measured is kept as tainted, and no promotion rests on it.
    """
    if record is None:
        return ending
    if ending.outcome is Outcome.OK and not ending.is_tainted:
        alone = ending_of_record(record)
        if alone.outcome is Outcome.HOST_OOM:
            text = f"{TAINTED}all ranks came to their end, and a process beside them was killed: {alone.evidence}"
            return ending.model_copy(update={"evidence": "; ".join(filter(None, (text, ending.evidence)))})
    if ending.outcome not in (Outcome.UNKNOWN, Outcome.CANCELLED):
        return ending
    alone = ending_of_record(record)
    return alone if alone.outcome not in (Outcome.UNKNOWN, Outcome.CRASHED) else ending


def _of_failure(record: JobRecord, shown: str) -> Ending:
    if record.signal == _NO_WORKDIR:
        evidence = f"{shown}: its folder or output file could not be opened, so there is no log"
        return Ending(outcome=Outcome.INFRA, evidence=evidence)
    if record.signal == _KILL:
        evidence = f"{shown}: killed, by whom is not said (over its memory where nothing counts it by cgroup?)"
        return Ending(outcome=Outcome.UNKNOWN, evidence=evidence)
    return Ending(outcome=Outcome.CRASHED, evidence=shown)


def _shown(record: JobRecord) -> str:
    code = "" if record.exit_code is None else f" {record.exit_code}:{record.signal or 0}"
    return f"{record.job} {record.state.value}{code}"


def _used_its_memory(record: JobRecord) -> bool:
    used, asked = record.max_rss_gib, record.requested_memory_gib
    return used is not None and asked is not None and asked > 0 and used >= 0.9 * asked


def _last_line(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f"; its log ends: {lines[-1][:200]}" if lines else "; it wrote no log"
