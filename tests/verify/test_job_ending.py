"""What a scheduler's record alone says about an end."""

from __future__ import annotations

import pytest

from infrarsi_hpc.domain.job import JobId, JobRecord, JobState
from infrarsi_hpc.domain.outcome import DETAILS, Ending, Outcome
from infrarsi_hpc.verify.job_ending import ending_of_job, ending_of_record, with_witness

S = JobState
#: state, exit code, signal, steps; outcome and detail
ENDS: list[tuple[JobState, int, int, tuple[JobState, ...], str]] = [
    (S.COMPLETED, 0, 0, (), "unknown"),  # naive: ok
    (S.COMPLETED, 0, 0, (S.OUT_OF_MEMORY,), "unknown"),
    (S.FAILED, 3, 0, (), "crashed"),
    (S.FAILED, 0, 11, (S.CANCELLED,), "crashed"),
    (S.FAILED, 0, 9, (), "unknown"),
    (S.FAILED, 0, 53, (), "infra"),
    (S.FAILED, 0, 125, (), "host_oom/cgroup"),
    (S.FAILED, 1, 0, (S.COMPLETED, S.OUT_OF_MEMORY), "host_oom/cgroup"),  # naive: crashed
    (S.OUT_OF_MEMORY, 0, 125, (), "host_oom/cgroup"),
    (S.TIMEOUT, 0, 0, (S.CANCELLED,), "timeout/limit"),
    (S.DEADLINE, 0, 0, (), "timeout/limit"),
    (S.NODE_FAIL, 0, 0, (), "infra"),
    (S.PREEMPTED, 0, 0, (S.CANCELLED,), "infra"),
    (S.BOOT_FAIL, 0, 0, (), "infra"),
    (S.CANCELLED, 0, 0, (), "cancelled"),
    (S.RUNNING, 0, 0, (), "unknown"),
    (S.REQUEUED, 0, 0, (), "unknown"),
    (S.UNKNOWN, 0, 0, (S.COMPLETED,), "unknown"),
]


@pytest.mark.parametrize(("state", "code", "signal", "steps", "label"), ENDS)
def test_a_record_says_so_much_and_no_more(
    state: JobState, code: int, signal: int, steps: tuple[JobState, ...], label: str
) -> None:
    ending = ending_of_record(JobRecord(JobId(7, 1), state, exit_code=code, signal=signal, step_states=steps))
    assert ending.label == label
    assert ending.evidence.startswith(f"7_1 {state.value}")


@pytest.mark.parametrize("state", list(JobState))
def test_every_state_has_an_outcome_with_a_detail_that_exists(state: JobState) -> None:
    ending = ending_of_record(JobRecord(JobId(7), state))
    assert ending.detail is None or ending.detail in DETAILS[ending.outcome]


#: state, exit code, signal, log; what a trial without a result is given
JOBS: list[tuple[JobState, int, int, str, str]] = [
    (S.COMPLETED, 0, 0, "", "infra"),
    (S.FAILED, 3, 0, "Lmod has detected the following error: module not found", "infra"),
    (S.FAILED, 1, 0, "torch.OutOfMemoryError: CUDA error: out of memory", "device_oom/no_number"),
    (S.FAILED, 0, 53, "", "infra"),
    (S.FAILED, 0, 9, "", "unknown"),
    (S.CANCELLED, 0, 0, "RuntimeError: CUDA error: out of memory", "cancelled"),
    (S.TIMEOUT, 0, 0, "training", "timeout/limit"),
    (S.PREEMPTED, 0, 0, "", "infra"),
]


@pytest.mark.parametrize(("state", "code", "signal", "log", "label"), JOBS)
def test_a_job_without_a_result_is_told_by_its_record_and_its_log(
    state: JobState, code: int, signal: int, log: str, label: str
) -> None:
    ending = ending_of_job(JobRecord(JobId(7, 1), state, exit_code=code, signal=signal), log)
    assert ending.label == label
    assert ending.evidence


def test_a_kill_at_the_jobs_memory_without_cgroups_is_the_hosts() -> None:
    killed = JobRecord(JobId(7), S.FAILED, exit_code=0, signal=9, max_rss_gib=3.9, requested_memory_gib=4.0)
    assert ending_of_job(killed).label == "host_oom/cgroup"


@pytest.mark.parametrize(
    ("outcome", "state", "label"),
    [
        (Outcome.UNKNOWN, S.OUT_OF_MEMORY, "host_oom/cgroup"),
        (Outcome.CANCELLED, S.TIMEOUT, "timeout/limit"),
        (Outcome.CANCELLED, S.PREEMPTED, "infra"),
        (Outcome.CANCELLED, S.COMPLETED, "cancelled"),
        (Outcome.OK, S.TIMEOUT, "ok"),  # measured before its job met the limit
        (Outcome.CRASHED, S.OUT_OF_MEMORY, "crashed"),
    ],
)
def test_slurm_explains_what_a_result_cannot_know(outcome: Outcome, state: JobState, label: str) -> None:
    assert with_witness(Ending(outcome=outcome), JobRecord(JobId(7), state)).label == label
    assert with_witness(Ending(outcome=outcome), None).outcome is outcome


def test_end_marks_of_all_ranks_beside_a_job_over_its_memory_are_a_tainted_measurement() -> None:
    record = JobRecord(JobId(7), S.OUT_OF_MEMORY, exit_code=0, signal=125)
    ending = with_witness(Ending(outcome=Outcome.OK, evidence="recovered from: x"), record)
    assert ending.outcome is Outcome.OK, "naive: host_oom, or the witness is forgotten"
    assert ending.is_tainted
    assert "7 OUT_OF_MEMORY 0:125" in ending.evidence
    assert "recovered from: x" in ending.evidence
    assert with_witness(ending, record) == ending
    well = with_witness(Ending(outcome=Outcome.OK), JobRecord(JobId(7), S.COMPLETED, exit_code=0, signal=0))
    assert not well.is_tainted
    assert not Ending(outcome=Outcome.HOST_OOM, evidence="tainted: no").is_tainted
