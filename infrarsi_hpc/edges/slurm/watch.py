"""What Slurm knows of a batch's tasks: at most one squeue and one sacct a look, and no look more often than needed.

Covers: outages of the controller and of the database (what was seen last stands), no accounting at all, records that
lag behind, jobs that Slurm has forgotten, requeued jobs whose earlier end is not their last.
Does not cover: whether the trial was measured. Only its result file says that.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from infrarsi_hpc.domain.job import JobId, JobRecord, JobState
from infrarsi_hpc.edges.slurm.commands import Answer, SlurmCommands
from infrarsi_hpc.edges.slurm.sacct_text import FORMAT as SACCT_FORMAT
from infrarsi_hpc.edges.slurm.sacct_text import RETURNING, read_sacct, sacct_problem
from infrarsi_hpc.edges.slurm.squeue_text import FORMAT as SQUEUE_FORMAT
from infrarsi_hpc.edges.slurm.squeue_text import parse_squeue
from infrarsi_hpc.edges.slurm.wait_reasons import meaning

#: A record in a state that jobs come back from is final only after it stood for so long.
RETURN_SECONDS = 20.0
#: sacct's final record comes up to so long after squeue's (seen: 2 s; busy databases take longer).
LAG_SECONDS = 15.0
#: A job that neither knows is gone after so long.
MISSING_SECONDS = 30.0
MIN_PAUSE_SECONDS = 1.0
#: Accounts that answer with errors for so long are done without.
ACCOUNTS_SECONDS = 600.0


@dataclass(frozen=True)
class Seen:
    """What is known of one task. `is_over` says that `record` is its last; `earlier_seconds` are of earlier starts."""

    record: JobRecord
    is_over: bool = False
    is_missing: bool = False
    #: It seems to have ended; whether it did shows when this has stood for a while.
    is_settling: bool = False
    earlier_seconds: float = 0.0
    at: float = 0.0

    def job_seconds(self, now: float) -> float:
        """Wall clock of all its starts until now."""
        seen = self.record.elapsed_seconds or 0
        running = 0.0 if self.is_over or self.record.state.is_waiting else max(0.0, now - self.at)
        # Slurm may have been silent for longer than the job can run
        most = float("inf") if self.record.time_limit_seconds is None else self.record.time_limit_seconds
        return self.earlier_seconds + max(seen, min(seen + running, most))


class Watch:
    """Watches one submitted batch."""

    def __init__(
        self,
        commands: SlurmCommands,
        job: JobId,
        num_tasks: int,
        *,
        name: str,
        is_array: bool,
        said: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.name, self.commands, self.job, self.said, self.clock, self.jitter = (
            name,
            commands,
            job,
            said,
            clock,
            jitter,
        )
        self.has_accounting = commands.site.scheduler.has_accounting is not False
        self._tasks: list[JobId] = [replace(job, task=task) if is_array else job for task in range(num_tasks)]
        self._seen: dict[int, Seen] = {}
        #: When a task was first seen in a state that may still change its meaning.
        self._since: dict[tuple[int, str], float] = {}
        self._next = 0.0
        self._pause = self._first_pause
        self._is_out = False
        self._accounts_out_since: float | None = None
        self._reasons: set[str] = set()

    @property
    def _first_pause(self) -> float:
        return max(MIN_PAUSE_SECONDS, self.commands.site.limits.poll_seconds)

    def look(self) -> list[Seen | None]:
        """What is known of each task; none where nothing is. Asks Slurm when it is time to."""
        now = self.clock()
        if now >= self._next and any(not self._is_settled(i) for i in range(len(self._tasks))):
            before = [seen.record.state if seen else None for seen in self._all()]
            self._ask(now)
            is_changed = before != [seen.record.state if seen else None for seen in self._all()]
            longest = max(self.commands.site.limits.poll_seconds_max, self._first_pause)
            self._pause = self._first_pause if is_changed else min(1.5 * self._pause, longest)
            self._next = self.clock() + self._pause * (0.8 + 0.4 * self.jitter())
        return self._all()

    def _all(self) -> list[Seen | None]:
        return [self._seen.get(i) for i in range(len(self._tasks))]

    def _is_settled(self, index: int) -> bool:
        seen = self._seen.get(index)
        return seen is not None and seen.is_over

    def _ask(self, now: float) -> None:
        said = self.commands.run(
            "squeue",
            "--noheader",
            "--states=all",
            f"--format={SQUEUE_FORMAT}",
            f"--jobs={self.job.number}",
            cluster=self.job.cluster,
        )
        answer = parse_squeue(said.stdout, said.stderr, said.returncode)
        if not answer.is_answer or said.returncode is None:
            if not self._is_out:
                self.said(f"Slurm does not answer ({answer.evidence or said.stderr}); what was seen last stands")
            self._is_out = True
            return
        if self._is_out:
            self.said("Slurm answers again")
            self._is_out = False
        # numbers are used again once a site starts its controller anew; names are not
        queued = {self._index(record.job): record for record in answer.records if record.name == self.name}
        open_tasks = [i for i in range(len(self._tasks)) if not self._is_settled(i)]
        needs_accounts = [i for i in open_tasks if i not in queued or queued[i].state.is_over]
        accounts = self._accounts() if needs_accounts and self.has_accounting else {}
        for i in open_tasks:
            self._seen[i] = self._judge(i, queued.get(i), accounts, now)

    def _accounts(self) -> dict[int, tuple[JobRecord, float]] | None:
        """sacct's last record of each task and the seconds of those before it; none where it did not answer."""
        said = self.commands.run(
            "sacct",
            "--parsable2",
            "--duplicates",
            f"--format={SACCT_FORMAT}",
            f"--jobs={self.job.number}",
            cluster=self.job.cluster,
        )
        problem = sacct_problem(said.stdout + "\n" + said.stderr)
        if problem is not None and problem.kind == "disabled":
            self.has_accounting = False
            self.said("this site keeps no accounts (sacct): how jobs end is told by their results and squeue alone")
            return {}
        if problem is not None or not said.is_good:
            return self._without_accounts(said, is_away=problem is not None)
        self._accounts_out_since = None
        try:
            tasks = read_sacct(said.stdout).tasks
        except ValueError:
            return None
        return {
            self._index(task.record.job): (
                task.record,
                sum(r.elapsed_seconds or 0.0 for r in task.earlier if r.name == self.name),
            )
            for task in tasks
            if task.record.name == self.name
        }

    def _without_accounts(self, said: Answer, *, is_away: bool) -> dict[int, tuple[JobRecord, float]] | None:
        """Whether to wait for accounts that do not answer: a database comes back, a missing program does not."""
        now = self.clock()
        since = self._accounts_out_since = now if self._accounts_out_since is None else self._accounts_out_since
        if is_away or now - since < ACCOUNTS_SECONDS:
            return None
        self.has_accounting = False
        self.said(f"sacct does not work here ({said.stderr.strip()[:200]}); going on without it")
        return {}

    def _say_why_it_waits(self, record: JobRecord) -> None:
        means = meaning(record.reason)
        if means.kind != "passes" and record.reason not in self._reasons:
            self._reasons.add(record.reason)
            lead = "waits for what may never come" if means.kind == "never" else "waits"
            self.said(f"job {record.job} {lead}: {record.reason}: {means.words} (scontrol show job {record.job})")

    def _index(self, job: JobId) -> int:
        return job.task if job.task is not None else 0

    def _judge(
        self, index: int, queued: JobRecord | None, accounts: dict[int, tuple[JobRecord, float]] | None, now: float
    ) -> Seen:
        before = self._seen.get(index)
        record, earlier = (accounts or {}).get(index, (None, before.earlier_seconds if before else 0.0))
        if queued is not None and not queued.state.is_over:
            self._forget(index)
            self._say_why_it_waits(queued)
            return Seen(queued, earlier_seconds=_earlier(before, queued, earlier), at=now)
        if record is not None and record.state.is_over:
            # the controller still has it and it may come back from there
            may_return = record.state in RETURNING and self._since_seconds(index, "returning", now) < RETURN_SECONDS
            # a record is written in parts: FAILED was seen before its exit code
            is_torn = record.state is JobState.FAILED and not record.exit_code and not record.signal
            may_return = may_return or (is_torn and self._since_seconds(index, "lagging", now) < LAG_SECONDS)
            return Seen(record, is_over=not may_return, is_settling=may_return, earlier_seconds=earlier, at=now)
        if queued is not None:
            may_return = queued.state in RETURNING and self._since_seconds(index, "returning", now) < RETURN_SECONDS
            is_lagging = self.has_accounting and self._since_seconds(index, "lagging", now) < LAG_SECONDS
            is_open = may_return or is_lagging
            return Seen(queued, is_over=not is_open, is_settling=is_open, earlier_seconds=earlier, at=now)
        last = record or (before.record if before else JobRecord(self._tasks[index], JobState.UNKNOWN))
        if accounts is None:  # the database is away: nobody has said that it is gone
            return Seen(last, earlier_seconds=earlier, at=now)
        is_missing = self._since_seconds(index, "missing", now) >= MISSING_SECONDS
        return Seen(
            last,
            is_over=is_missing,
            is_missing=is_missing,
            is_settling=not is_missing,
            earlier_seconds=earlier,
            at=now,
        )

    def _since_seconds(self, index: int, what: str, now: float) -> float:
        return now - self._since.setdefault((index, what), now)

    def _forget(self, index: int) -> None:
        for what in ("returning", "lagging", "missing"):
            self._since.pop((index, what), None)


def _earlier(before: Seen | None, queued: JobRecord, known: float) -> float:
    """Seconds of earlier starts: what had run is kept when the clock of the job begins anew."""
    if before is None:
        return known
    had, has = before.record.elapsed_seconds or 0, queued.elapsed_seconds or 0
    return max(known, before.earlier_seconds + (had if has < had else 0))
