"""What a watch concludes from answers that come in any order, late, torn, or not at all; with a clock that we turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from infrarsi_hpc.domain.job import JobId
from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.edges.slurm.commands import Answer, SlurmCommands
from infrarsi_hpc.edges.slurm.dispatcher import batch_size
from infrarsi_hpc.edges.slurm.watch import LAG_SECONDS, MISSING_SECONDS, RETURN_SECONDS, Seen, Watch

SITE = SiteProfile.model_validate(
    {"schema_version": 1, "name": "t", "scheduler": {"kind": "slurm"}, "partition": [{"name": "gpu"}]}
)
NOTHING = Answer(0, "", "")
DOWN = Answer(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
PURGED = Answer(1, "", "slurm_load_jobs error: Invalid job id specified")
NO_ACCOUNTS = Answer(1, "", "Slurm accounting storage is disabled")
DATABASE_DOWN = Answer(1, "", "sacct: error: Problem talking to the database: Connection refused")


def squeue(*rows: tuple[int, str], name: str = "ours") -> Answer:
    lines = [
        f"{70 + task}|7|{task}|{state}|None|n1|2030-01-01T00:00:00|2030-01-01T00:00:01|10:00|0:05|1|infrarsi|{name}"
        for task, state in rows
    ]
    return Answer(0, "\n".join(lines) + "\n", "")


def sacct(*rows: tuple[int, str, str], name: str = "ours") -> Answer:
    lines = ["JobID|State|ExitCode|Submit|Start|End|Elapsed|JobName|NodeList"]
    lines += [f"7_{t}|{s}|{c}|2030-01-01T00:00:00|2030-01-01T00:00:01|Unknown|00:00:09|{name}|n1" for t, s, c in rows]
    return Answer(0, "\n".join(lines) + "\n", "")


@dataclass
class Fake(SlurmCommands):
    """Answers by program; every call is kept."""

    answers: dict[str, Answer]
    calls: list[str] = field(default_factory=list)
    site: SiteProfile = SITE

    def run(self, program: str, *arguments: str, cluster: str = "") -> Answer:
        self.calls.append(program)
        return self.answers[program]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def watch_of(num: int = 1) -> tuple[Watch, Fake, Clock, Callable[..., list[Seen | None]]]:
    fake, clock = Fake({"squeue": NOTHING, "sacct": sacct()}), Clock()
    watch = Watch(fake, JobId(7), num, name="ours", is_array=True, clock=clock, jitter=lambda: 0.5)

    def look(after: float = 100.0, **answers: Answer) -> list[Seen | None]:
        fake.answers |= answers
        clock.now += after
        return watch.look()

    return watch, fake, clock, look


def is_over(seen: Seen | None) -> bool:
    return seen is not None and seen.is_over


def test_an_outage_leaves_the_last_state_standing() -> None:
    _, _, _, look = watch_of()
    [seen] = look(squeue=squeue((0, "RUNNING")))
    for answer in (
        DOWN,
        Answer(None, "", "squeue did not answer"),
        Answer(0, "CLUSTER: w\n", "slurm_load_jobs error: x"),
    ):
        [again] = look(squeue=answer)
        assert again == seen, "naive: an empty table means that all have ended"


def test_a_running_job_costs_as_the_clock_goes_on() -> None:
    _, _, clock, look = watch_of()
    [seen] = look(squeue=squeue((0, "RUNNING")))
    assert seen is not None
    assert seen.job_seconds(clock.now + 10) == 15.0


def test_an_outage_does_not_bill_more_than_the_job_may_run() -> None:
    _, _, clock, look = watch_of()
    [seen] = look(squeue=squeue((0, "RUNNING")))
    look(squeue=DOWN)
    assert seen is not None
    assert seen.job_seconds(clock.now + 4 * 3600) == 600.0, "naive: four hours"


def test_accounts_that_never_work_are_done_without() -> None:
    watch, _, _, look = watch_of()
    look(squeue=squeue((0, "RUNNING")))
    broken = Answer(1, "", 'sacct: error: Invalid field requested: "Comment"')
    for _ in range(20):
        [seen] = look(squeue=PURGED, sacct=broken)
    assert not watch.has_accounting
    [seen] = look(MISSING_SECONDS + 1)
    assert is_over(seen), "naive: waited for all night"


def test_a_job_that_waits_for_what_never_comes_is_told_once() -> None:
    words: list[str] = []
    watch, _, _, look = watch_of()
    watch.said = words.append
    held = squeue((0, "PENDING"))
    held = Answer(0, held.stdout.replace("|None|", "|JobHeldAdmin|"), "")
    for _ in range(3):
        look(squeue=held)
    assert len([word for word in words if "JobHeldAdmin" in word]) == 1


def test_an_end_that_both_know_is_believed_at_once() -> None:
    _, _, _, look = watch_of()
    [seen] = look(squeue=squeue((0, "COMPLETED")), sacct=sacct((0, "COMPLETED", "0:0")))
    assert is_over(seen)


def test_an_end_without_a_record_waits_for_the_accounts() -> None:
    _, _, _, look = watch_of()
    [seen] = look(squeue=squeue((0, "FAILED")))
    assert not is_over(seen)
    [seen] = look(LAG_SECONDS + 1)
    assert is_over(seen)


def test_a_torn_record_is_not_believed_at_its_first_sight() -> None:
    _, _, _, look = watch_of()
    [seen] = look(squeue=PURGED, sacct=sacct((0, "FAILED", "0:0")))
    assert not is_over(seen), "naive: FAILED with exit code 0"
    [seen] = look(5, sacct=sacct((0, "FAILED", "3:0")))
    assert is_over(seen)
    assert seen is not None
    assert seen.record.exit_code == 3


@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL", "BOOT_FAIL"])
def test_a_job_that_may_come_back_is_waited_for(state: str) -> None:
    _, _, _, look = watch_of()
    [seen] = look(squeue=squeue((0, state)), sacct=sacct((0, state, "0:0")))
    assert not is_over(seen)
    assert seen is not None
    assert seen.is_settling
    [seen] = look(5, squeue=squeue((0, "PENDING")))
    assert seen is not None
    assert not seen.is_settling
    [seen] = look(100, squeue=squeue((0, state)), sacct=sacct((0, state, "0:0")))
    assert not is_over(seen), "its second loss is waited for anew"
    [seen] = look(RETURN_SECONDS + 1)
    assert is_over(seen)


def test_a_job_that_slurm_forgot_is_missing_only_after_a_while() -> None:
    _, _, _, look = watch_of()
    look(squeue=squeue((0, "RUNNING")))
    [seen] = look(squeue=PURGED, sacct=sacct())
    assert not is_over(seen)
    [seen] = look(MISSING_SECONDS + 1, sacct=DATABASE_DOWN)
    assert not is_over(seen), "nobody has said that it is gone"
    [seen] = look(MISSING_SECONDS + 1, sacct=sacct())
    assert is_over(seen)
    assert seen is not None
    assert seen.is_missing


def test_a_site_without_accounts_is_asked_once() -> None:
    watch, fake, _, look = watch_of()
    look(squeue=squeue((0, "COMPLETED")), sacct=NO_ACCOUNTS)
    [seen] = look(LAG_SECONDS + 1)
    assert is_over(seen)
    assert fake.calls.count("sacct") == 1
    assert not watch.has_accounting


def test_another_jobs_record_under_the_same_number_is_none_of_ours() -> None:
    _, _, _, look = watch_of()
    [seen] = look(squeue=squeue((0, "RUNNING")), sacct=sacct((0, "COMPLETED", "0:0"), name="older"))
    assert not is_over(seen)
    [seen] = look(5, squeue=PURGED)
    assert not is_over(seen), "naive: the number's old record"


def test_looks_are_few_and_further_apart_while_nothing_changes() -> None:
    _, fake, _, look = watch_of(100)
    look(squeue=squeue(*[(task, "RUNNING") for task in range(100)]))
    for _ in range(600):
        look(1.0)
    assert fake.calls.count("squeue") < 40, "naive: 600"
    assert fake.calls.count("sacct") == 0


def test_a_batch_that_is_over_is_not_asked_about_again() -> None:
    _, fake, _, look = watch_of()
    look(squeue=squeue((0, "COMPLETED")), sacct=sacct((0, "COMPLETED", "0:0")))
    before = len(fake.calls)
    look()
    assert len(fake.calls) == before


@pytest.mark.parametrize(
    ("wanted", "idle", "nodes", "size"),
    [(4, None, 8, 4), (4, 0, 8, 4), (4, 2, 8, 4), (4, 6, 8, 6), (4, 40, 64, 16), (4, 40, 8, 8), (4, 40, None, 16)],
)
def test_a_round_grows_with_idle_nodes_and_not_without_end(
    wanted: int, idle: int | None, nodes: int | None, size: int
) -> None:
    assert batch_size(wanted, idle, nodes) == size
