import math

import pytest

from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.models.rows import Censoring, ObservationRefused, memory_rows, time_rows


def row(outcome: Outcome = Outcome.OK, **fields: float | bool | None) -> Observation:
    return Observation.model_validate({"trial": "t1", "configuration": {"a": 1}, "outcome": outcome, **fields})


MEMORY = {
    "a measured peak is exact": (row(peak_gib=3.0), (3.0, Censoring.NONE)),
    "no reading: below the limit": (row(), (8.0, Censoring.LEFT)),
    "out of memory: above its bound": (row(Outcome.DEVICE_OOM, bound_gib=8.5), (8.5, Censoring.RIGHT)),
    "out of memory without a bound: above the limit": (row(Outcome.DEVICE_OOM), (8.0, Censoring.RIGHT)),
    "the node's memory says nothing": (row(Outcome.HOST_OOM), None),
    "a crash says nothing": (row(Outcome.CRASHED), None),
    "a refused trial says nothing": (row(Outcome.REFUSED), None),
}


@pytest.mark.parametrize(("observation", "expected"), MEMORY.values(), ids=MEMORY.keys())
def test_what_an_ending_says_about_memory(observation: Observation, expected: tuple[float, Censoring] | None) -> None:
    rows = memory_rows([observation], 8.0)
    found = [(math.exp(v), Censoring(c)) for v, c in zip(rows.log_gib, rows.censoring, strict=True)]
    assert found == ([] if expected is None else [(pytest.approx(expected[0]), expected[1])])


def test_without_a_limit_unread_peaks_and_unbounded_ooms_say_nothing() -> None:
    assert memory_rows([row(), row(Outcome.DEVICE_OOM)], None).index.size == 0


def test_contradictory_repeats_are_both_kept() -> None:
    rows = memory_rows([row(peak_gib=7.9), row(Outcome.DEVICE_OOM, bound_gib=8.0)], 8.0)
    assert rows.censoring.tolist() == [Censoring.NONE, Censoring.RIGHT]


def test_only_finished_and_believed_trials_have_a_time() -> None:
    rows = time_rows(
        [row(step_seconds=2.0, step_noise=0.1), row(step_seconds=2.0, is_believed=False), row(), row(Outcome.CRASHED)]
    )
    assert rows.index.tolist() == [0]
    assert rows.noise.tolist() == [0.1]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_number_that_cannot_be_measured_is_refused_with_its_trial(value: float) -> None:
    with pytest.raises(ObservationRefused, match="trial t1: step_seconds"):
        time_rows([row(step_seconds=value)])
    with pytest.raises(ObservationRefused, match="trial t1: peak_gib"):
        memory_rows([row(peak_gib=value)], 8.0)
    with pytest.raises(ObservationRefused, match="trial t1: bound_gib"):
        memory_rows([row(Outcome.DEVICE_OOM, bound_gib=value)], 8.0)
    with pytest.raises(ObservationRefused, match="memory limit"):
        memory_rows([], value)
    if value:
        with pytest.raises(ObservationRefused, match="step_noise"):
            time_rows([row(step_seconds=1.0, step_noise=value)])
