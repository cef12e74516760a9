"""From a batch to its results, whatever the scheduler shows and the files say; a scheduler that we script."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from infrarsi_hpc.domain.job import JobId, JobRecord, JobState
from infrarsi_hpc.domain.trial import TrialLimits, TrialSpec
from infrarsi_hpc.edges import batches
from infrarsi_hpc.edges.dispatch import Sight
from infrarsi_hpc.stages.run.collect import Collector, Taken, collect


class Scripted:
    """A dispatcher whose sights are given."""

    poll_seconds = poll_seconds_max = 0.01
    result_grace_seconds = 0.0

    def __init__(self, *sights: Sight) -> None:
        self.sights = list(sights)

    def group(self, specs: Sequence[TrialSpec], *, is_one_allocation: bool) -> list[list[TrialSpec]]:
        return [list(specs)]

    def round_size(self, wanted: int) -> int:
        return wanted

    def submit(self, folder: Path, attempt: int, tasks: Sequence[Sequence[TrialSpec]]) -> dict[str, Any]:
        return {"id": 7}

    def adopt(self, folder: Path, attempt: int) -> dict[str, Any] | None:
        return None

    def look(self, folder: Path, attempt: int, job: Mapping[str, Any] | None) -> list[Sight]:
        return self.sights

    def cancel(self, folder: Path, job: Mapping[str, Any] | None) -> None: ...


def spec(name: str) -> TrialSpec:
    limits = TrialLimits(wall_seconds=1, idle_seconds=1)
    return TrialSpec(
        trial=name, purpose="search", project="/p", baseline_commit="c", configuration={}, command=("x",), lengths=(1,),
        seed=1, limits=limits,
    )  # fmt: skip


def over(state: JobState = JobState.COMPLETED, **changes: Any) -> Sight:
    return Sight("over", JobRecord(JobId(7), state), **changes)


def write_result(campaign: Path, name: str, **changes: Any) -> None:
    run = {"length": 1, "wall_seconds": 1.0, "exit_codes": [0]} | changes.pop("run", {})
    result = {"schema_version": 1, "trial": name, "attempt": 1, "node": "n1", "started_at": 0.0, "finished_at": 5.0}
    result |= {"runs": [run], "device_seconds": 5.0} | changes
    (campaign / "trials" / name / "result.json").write_text(json.dumps(result))


def collector(campaign: Path, dispatcher: Scripted, *tasks: Sequence[str]) -> Collector:
    specs = [[spec(name) for name in task] for task in tasks]
    batches.write_batch(campaign, 1, 1, specs, {})
    return Collector(campaign, 1, 1, {"id": 7}, specs, dispatcher)


def labels(taken: Sequence[Taken]) -> dict[str, str]:
    return {t.spec.trial: "result" if t.result else t.ending.label if t.ending else "" for t in taken}


def test_a_result_is_taken_while_its_job_runs_on(tmp_path: Path) -> None:
    found = collector(tmp_path, Scripted(Sight("running")), ["t1", "t2"])
    write_result(tmp_path, "t1")
    assert labels(found.look()) == {"t1": "result"}
    assert set(found.waiting) == {"t2"}


@pytest.mark.parametrize("phase", ["waiting", "running", "settling", "unknown"])
def test_nothing_is_concluded_before_a_job_is_over(tmp_path: Path, phase: Any) -> None:
    assert collector(tmp_path, Scripted(Sight(phase)), ["t1"]).look() == []


@pytest.mark.parametrize(
    "changes", [{"problem": "cancelled"}, {"run": {"exit_codes": [-9]}}, {"run": {"stopped": "cancelled"}}]
)
def test_a_run_that_was_cut_short_waits_for_the_witness(tmp_path: Path, changes: dict[str, Any]) -> None:
    dispatcher = Scripted(Sight("running"))
    found = collector(tmp_path, dispatcher, ["t1"])
    write_result(tmp_path, "t1", **changes)
    assert found.look() == [], "a requeued job makes it again"
    dispatcher.sights = [over(JobState.OUT_OF_MEMORY)]
    [taken] = found.look()
    assert taken.result is not None
    assert taken.sight.record is not None
    assert taken.sight.record.state is JobState.OUT_OF_MEMORY


def test_a_late_result_is_waited_for_and_then_given_up(tmp_path: Path) -> None:
    dispatcher = Scripted(over())
    dispatcher.result_grace_seconds = 0.2
    found = collector(tmp_path, dispatcher, ["t1"])
    assert found.look() == []
    ended = list(collect(found))
    assert labels(ended) == {"t1": "infra"}


def test_a_task_that_the_head_gave_up_never_ran(tmp_path: Path) -> None:
    found = collector(tmp_path, Scripted(Sight("unknown")), ["t1"])
    batches.claim(found.folder, 1, 0)
    assert labels(found.look()) == {"t1": "cancelled"}


def test_a_live_agent_of_an_unanswered_submission_is_waited_for(tmp_path: Path) -> None:
    found = collector(tmp_path, Scripted(over()), ["t1"])
    (found.folder / "claim-1-0").write_text(json.dumps({"by": "agent", "submission": "6", "node": "n1", "pid": 1}))
    heartbeat = found.folder / "heartbeat-0.json"
    heartbeat.write_text(json.dumps({"time": time.time(), "trial": "t1"}))
    assert found.look() == [], "naive: our job is over, so nothing will come"
    os.utime(heartbeat, (time.time() - 3600,) * 2)
    assert labels(found.look()) == {"t1": "infra"}


def test_what_a_lost_job_cost_is_counted_once(tmp_path: Path) -> None:
    sight = over(JobState.NODE_FAIL, job_seconds=100.0, num_devices=2)
    found = collector(tmp_path, Scripted(sight), ["t1", "t2", "t3"])
    write_result(tmp_path, "t1")
    taken = found.look()
    lost = sum(t.lost_seconds for t in taken)
    measured = sum(t.result.device_seconds for t in taken if t.result)
    assert (lost, measured) == (195.0, 5.0), "naive: 200 for each of them"


def test_running_tasks_cost_what_no_result_accounts_for(tmp_path: Path) -> None:
    sight = Sight("running", job_seconds=100.0, num_devices=2)
    found = collector(tmp_path, Scripted(sight), ["t1", "t2"])
    write_result(tmp_path, "t1")
    found.look()
    assert found.running_seconds() == 195.0


def test_a_damaged_result_is_infra_and_is_told(tmp_path: Path) -> None:
    found = collector(tmp_path, Scripted(Sight("running")), ["t1"])
    (tmp_path / "trials" / "t1" / "result.json").write_text("{")
    [taken] = found.look()
    assert taken.ending is not None
    assert taken.ending.label == "infra"
    assert "result.json" in taken.ending.evidence


def test_one_tick_waits_only_for_what_a_moment_settles(tmp_path: Path) -> None:
    dispatcher = Scripted(Sight("settling"))
    found = collector(tmp_path, dispatcher, ["t1"])
    looks = []

    def polled(_: object) -> None:
        looks.append(1)
        if len(looks) == 3:
            dispatcher.sights = [Sight("waiting")]

    assert list(collect(found, on_poll=polled, is_one_tick=True)) == []
    assert len(looks) == 4, "the last look is told as well: limits hold for ticks"
    assert set(found.waiting) == {"t1"}


def test_trials_of_a_task_that_never_began_say_nothing_about_their_settings(tmp_path: Path) -> None:
    found = collector(tmp_path, Scripted(over(JobState.OUT_OF_MEMORY)), ["t1", "t2"])
    (tmp_path / "trials" / "t1" / "began-1").touch()
    assert labels(found.look()) == {"t1": "host_oom/cgroup", "t2": "infra"}, "naive: both ran out of memory"


def test_a_jobs_own_time_limit_condemns_only_a_trial_that_had_the_job_to_itself(tmp_path: Path) -> None:
    alone = collector(tmp_path / "a", Scripted(over(JobState.TIMEOUT)), ["t1"])
    (tmp_path / "a" / "trials" / "t1" / "began-1").touch()
    assert labels(alone.look()) == {"t1": "timeout/limit"}
    shared = collector(tmp_path / "b", Scripted(over(JobState.TIMEOUT)), ["t1", "t2"])
    (tmp_path / "b" / "trials" / "t1" / "began-1").touch()
    assert labels(shared.look()) == {"t1": "infra", "t2": "infra"}


def test_who_cancelled_a_job_is_kept(tmp_path: Path) -> None:
    by_others = collector(tmp_path / "a", Scripted(over(JobState.CANCELLED)), ["t1"])
    assert [t.is_foreign for t in by_others.look()] == [True]
    by_us = collector(tmp_path / "b", Scripted(over(JobState.CANCELLED)), ["t1"])
    (by_us.folder / "cancel").touch()
    assert [t.is_foreign for t in by_us.look()] == [False]
