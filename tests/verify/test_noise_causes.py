"""Every cause of noise that can be seen from outside is named, and none where runs agree."""

from __future__ import annotations

from typing import Any

import pytest

from infrarsi_hpc.verify.noise_causes import noise_causes

CAUSES: list[tuple[str, list[dict[str, Any]], str]] = [
    ("others", [{"foreign_cores": 0.05}, {"foreign_cores": 1.4}], "other programs used 0.1 to 1.4 processors"),
    ("the hypervisor", [{"stolen_cores": 0.3}, {"stolen_cores": 0.3}], "hypervisor gave 0.3 processors"),
    ("clocks", [{"clock_mhz": 2100.0}, {"clock_mhz": 3400.0}], "between 2100 and 3400 MHz"),
    (
        "threads",
        [{"preemptions": 1000, "cpu_seconds": 7.0}, {"preemptions": 1200, "cpu_seconds": 7.0}],
        "taken off their processors",
    ),
    ("nothing", [{"foreign_cores": 0.0, "clock_mhz": 2000.0}] * 2, "nothing that can be seen from here explains it"),
    ("nothing at all", [{}, {}], "nothing that can be seen from here explains it: caches"),
]


@pytest.mark.parametrize(("name", "changes", "words"), CAUSES, ids=[row[0] for row in CAUSES])
def test_what_makes_runs_differ_is_named(name: str, changes: list[dict[str, Any]], words: str, make_run) -> None:
    runs = [make_run().model_copy(update=change) for change in changes]
    causes = noise_causes(0.12, runs, 2)
    assert words in causes[0]
    assert noise_causes(0.04, runs, 2) == (), "runs that agree need no reason"


def test_preemptions_beside_others_work_are_theirs(make_run) -> None:
    run = make_run().model_copy(update={"preemptions": 1000, "cpu_seconds": 1.0, "foreign_cores": 1.0})
    [cause] = noise_causes(0.2, [run, run], 2)
    assert "other programs" in cause


def test_steps_that_slow_down_for_good_are_seen(make_run) -> None:
    ends, at = [], 2.0
    for k in range(60):
        at += (0.1 if k < 25 else 0.2) + 1e-4 * (k * 7 % 5)
        ends.append(at)
    slowing = make_run(60).model_copy(update={"step_ends": tuple(ends)})
    [cause] = noise_causes(0.2, [slowing, slowing], None)
    assert "for good in the course of a run" in cause
