"""Job ids and states in every form that Slurm writes them, and forms that it never writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi_hpc.domain.job import JobId, JobState
from infrarsi_hpc.edges.slurm.ids import MAX_TASKS, ParsedId, parse_id, parse_tasks
from infrarsi_hpc.edges.slurm.states import cancelled_by, parse_state

IDS = {
    "510": ParsedId(510),
    " 510 ": ParsedId(510),
    "510_1": ParsedId(510, (1,)),
    "500_[6-9%2]": ParsedId(500, (6, 7, 8, 9), 2),
    "6_[4-6%4]": ParsedId(6, (4, 5, 6), 4),
    "500_[1,3-5:2]": ParsedId(500, (1, 3, 5)),
    "500_[0-20:5]": ParsedId(500, (0, 5, 10, 15, 20)),
    "500_[7]": ParsedId(500, (7,)),
    "500_[1,2,17,1...]": ParsedId(500, (1, 2, 17), is_cut=True),
    "500_[1-3,...%5]": ParsedId(500, (1, 2, 3), 5, is_cut=True),
    "500_[...]": ParsedId(500, (), is_cut=True),
    "77+1": ParsedId(77, component=1),
    "77+0.batch": ParsedId(77, component=0, step="batch"),
    "500_0.batch": ParsedId(500, (0,), step="batch"),
    "500_0.extern": ParsedId(500, (0,), step="extern"),
    "500_0.0": ParsedId(500, (0,), step="0"),
    "510_1.ba+": ParsedId(510, (1,), step="ba+"),
    "410024;willow": ParsedId(410024, cluster="willow"),
    "510_1;willow": ParsedId(510, (1,), cluster="willow"),
    "": None,
    "0": None,
    "-5": None,
    "510_": None,
    "510_[": None,
    "510_[]": None,
    "510_[9-6]": None,
    "510_[1-9:0]": None,
    "510_[1,,2]": None,
    "410026_12+": None,  # a cut column: neither a task nor a component can be told
    "12345678901": None,
    "510;rm -rf": None,
    "5\u0661": None,
    f"5_[0-{MAX_TASKS}]": None,
    "5_[0-4000000000]": None,
    "5_[0-60000,100000-160000]": None,
}


@pytest.mark.parametrize("text", IDS)
def test_an_id_is_read_as_it_is_meant(text: str) -> None:
    expected = IDS[text]
    if expected is None:
        with pytest.raises(ValueError, match=r"\w"):
            parse_id(text)
    else:
        assert parse_id(text) == expected


def test_a_pending_array_is_all_of_its_tasks() -> None:
    jobs = parse_id("500_[6-9%2];willow").jobs
    assert [str(job) for job in jobs] == ["500_6", "500_7", "500_8", "500_9"]  # naive: one job called 500
    assert {job.cluster for job in jobs} == {"willow"}


@given(st.builds(JobId, st.integers(1, 2**32), st.none() | st.integers(0, 4_000_000)))
def test_reading_a_written_id_gives_the_id(job: JobId) -> None:
    assert parse_id(str(job)).jobs == (job,)


@given(st.sets(st.integers(0, 10**6), min_size=1, max_size=50), st.none() | st.integers(1, 99))
def test_reading_a_written_list_of_tasks_gives_the_tasks(tasks: set[int], throttle: int | None) -> None:
    text = ",".join(map(str, sorted(tasks))) + ("" if throttle is None else f"%{throttle}")
    assert parse_tasks(text) == (tuple(sorted(tasks)), throttle, False)


@given(st.text() | st.text("0123456789_[]-,%:+.;ab", max_size=30))
def test_any_text_is_an_id_or_a_value_error(text: str) -> None:
    try:
        assert len(parse_id(text).jobs) <= MAX_TASKS
    except ValueError:
        return


STATES = {
    "COMPLETED": JobState.COMPLETED,
    "CANCELLED by 70123": JobState.CANCELLED,
    "CANCELLED by jo.doe": JobState.CANCELLED,
    "CANCELLED+": JobState.CANCELLED,
    "OUT_OF_ME+": JobState.OUT_OF_MEMORY,
    "out_of_memory": JobState.OUT_OF_MEMORY,
    "COMPLETI+": JobState.COMPLETING,
    "COMPLETE+": JobState.COMPLETED,
    "COMPLET+": JobState.UNKNOWN,  # naive: COMPLETED, an end, for a job that is still completing
    "REQUEUE+": JobState.UNKNOWN,
    "RE+": JobState.UNKNOWN,
    "UNKNOW+": JobState.UNKNOWN,
    "+": JobState.UNKNOWN,
    "CD": JobState.COMPLETED,
    "cd": JobState.COMPLETED,
    "CG": JobState.COMPLETING,
    "OOM": JobState.OUT_OF_MEMORY,
    "PR": JobState.PREEMPTED,
    "PD": JobState.PENDING,
    "R": JobState.RUNNING,
    "NODE_FAIL": JobState.NODE_FAIL,
    "  RUNNING  ": JobState.RUNNING,
    "EXPEDITING": JobState.UNKNOWN,
    "COMPLETEDISH": JobState.UNKNOWN,
    "": JobState.UNKNOWN,
}


@pytest.mark.parametrize("text", STATES)
def test_a_state_is_its_first_word(text: str) -> None:
    assert parse_state(text) is STATES[text]


@given(st.text())
def test_a_word_that_nobody_knows_is_never_an_end(text: str) -> None:
    state = parse_state(text)
    assert state is JobState.UNKNOWN or not state.is_over or text.strip()


@given(st.sampled_from([state for state in JobState if state is not JobState.UNKNOWN]), st.integers(1, 20))
def test_a_cut_state_is_the_state_or_unknown(state: JobState, width: int) -> None:
    assert parse_state(state.value[:width] + "+") in (state, JobState.UNKNOWN)
    assert parse_state(state.value.lower()) is state


def test_who_cancelled_is_kept() -> None:
    assert cancelled_by("CANCELLED by 70123") == "cancelled by 70123"
    assert cancelled_by("CANCELLED") == ""
