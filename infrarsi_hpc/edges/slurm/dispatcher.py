"""Batches as Slurm jobs: one array a batch, one agent a task, through submitit and the site's template.

A submission whose answer was lost is looked for by its name, which no other submission has; and whatever is found or
not, a task is claimed by a file, so that no ghost job ever makes a trial twice.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from infrarsi_hpc.domain.job import JobId
from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.domain.trial import TrialSpec
from infrarsi_hpc.edges import batches
from infrarsi_hpc.edges.agent.main import run_task
from infrarsi_hpc.edges.atomic import write_json
from infrarsi_hpc.edges.dispatch import Phase, Sight
from infrarsi_hpc.edges.file_end import read_end
from infrarsi_hpc.edges.slurm.commands import SlurmCommands
from infrarsi_hpc.edges.slurm.request import JobRequest, partition_of, script
from infrarsi_hpc.edges.slurm.sacct_text import FORMAT as SACCT_FORMAT
from infrarsi_hpc.edges.slurm.sacct_text import read_sacct, sacct_problem
from infrarsi_hpc.edges.slurm.sbatch_text import SubmitRefusal, classify_refusal
from infrarsi_hpc.edges.slurm.single import ask_queue, my_jobs
from infrarsi_hpc.edges.slurm.starter import write_starter
from infrarsi_hpc.edges.slurm.watch import Seen, Watch
from infrarsi_hpc.errors import Interrupted, SiteError

#: Beside a run's own limits: start of Python and of torch, private copies, the held-out evaluation.
TASK_OVERHEAD_SECONDS = 180.0
RUN_OVERHEAD_SECONDS = 150.0
MAX_LOG_BYTES = 2**20
CANCEL_SECONDS = 30.0
#: A submission without an answer is looked for so long before it is taken for not made.
ADOPT_SECONDS = 8.0
#: Refusals that nobody has seen before are tried again so often.
MAX_UNKNOWN_REFUSALS = 5
#: An outage of the controller is waited for so long, then the command ends, resumable.
MAX_OUTAGE_SECONDS = 6 * 3600.0
#: What keeps a submission waiting is said so often.
SAY_AGAIN_SECONDS = 900.0


class SlurmDispatcher:
    """Submits to one partition of one site.

    `tag` tells this campaign's jobs from every other's. `said` is told what a person should know. `exclude` names
    nodes to keep away from, asked anew for every submission. Timed trials own their host: where the partition's nodes
    share one, tasks run one at a time.
    """

    def __init__(
        self,
        site: SiteProfile,
        campaign: Path,
        tag: str,
        *,
        partition: str = "",
        said: Callable[[str], None] = lambda _: None,
        exclude: Callable[[], Sequence[str]] = tuple,
        is_timed: bool = True,
        templates: Path | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.kind = "slurm"
        self.site, self.campaign, self.tag = site, campaign, tag
        self.partition = partition_of(site, partition)
        self.commands = SlurmCommands(site)
        self.said, self.exclude, self.is_timed, self.templates, self.pause = said, exclude, is_timed, templates, pause
        self.poll_seconds = max(1.0, site.limits.poll_seconds)
        self.poll_seconds_max = max(self.poll_seconds, site.limits.poll_seconds_max)
        self.result_grace_seconds = site.storage.result_grace_seconds
        self._watches: dict[tuple[str, int], Watch] = {}

    # ---- submission

    def group(self, specs: Sequence[TrialSpec], *, is_one_allocation: bool) -> list[list[TrialSpec]]:
        """One trial a task, as many tasks as the site allows; all in one where they must share an allocation."""
        if is_one_allocation:
            return [list(specs)]
        limits = self.site.limits
        most = max(1, min(limits.array_size, limits.submit_jobs or limits.array_size))
        num = min(len(specs), most)
        return [list(specs[i::num]) for i in range(num)]

    def round_size(self, wanted: int) -> int:
        """More than wanted where more nodes are free and each trial has its own."""
        if self.partition.shares_host:
            return wanted
        return batch_size(wanted, free_nodes(self.commands, self.partition.name), self.partition.num_nodes)

    def submit(self, folder: Path, attempt: int, tasks: Sequence[Sequence[TrialSpec]]) -> dict[str, Any]:
        """Submit a batch as one array (a single job where it has one task); waits out what passes.

        Raises
        ------
        SiteError
            Slurm refuses for good, naming the field of the profile; or it was away for too long.
        """
        (folder / "submitit").mkdir(parents=True, exist_ok=True)
        request = self._request(folder, attempt, tasks)
        kept = self._kept(request, len(tasks))
        write_json(folder / f"submission-{attempt}.json", kept)
        num_unknown, pause, began = 0, 2.0, time.monotonic()
        last_said, said_at = "", began
        while True:
            refusal = self._try(folder, request, attempt, len(tasks))
            if isinstance(refusal, JobId):
                return {**kept, "id": refusal.number, "cluster": refusal.cluster}
            if refusal.kind == "ambiguous":
                self.said(f"sbatch gave no answer ({refusal.evidence}); looking for the job by its name")
                found = self.adopt(folder, attempt)
                if found is not None:
                    return found
            if refusal.kind == "permanent" and request.exclude and "node name" in refusal.evidence.lower():
                self.said(f"a node that was left out is no longer there ({refusal.evidence}); leaving none out")
                request = replace(request, exclude=())
                continue
            num_unknown += refusal.kind == "unknown"
            if refusal.kind == "permanent" or num_unknown > MAX_UNKNOWN_REFUSALS:
                raise SiteError(
                    "Slurm refuses the trials' job",
                    why=refusal.evidence,
                    fix=f"{refusal.fix}; profile: infrarsi site show {self.site.name}",
                )
            if refusal.kind != "wait" and time.monotonic() - began > MAX_OUTAGE_SECONDS:
                raise Interrupted(
                    "the trials' job could not be submitted for hours",
                    why=refusal.evidence,
                    fix="the same command goes on when Slurm answers again",
                )
            why = "the submit limit is reached" if refusal.kind == "wait" else "Slurm cannot take it now"
            if why != last_said or time.monotonic() - said_at > SAY_AGAIN_SECONDS:
                last_said, said_at = why, time.monotonic()
                self.said(f"{why} ({refusal.evidence}); trying again, at most once a minute; Ctrl-C loses nothing")
            self.pause(pause)
            pause = min(2 * pause, 60.0)

    def _try(self, folder: Path, request: JobRequest, attempt: int, num: int) -> JobId | SubmitRefusal:
        # submitit logs by itself; what it says is said here in our words
        logging.getLogger("submitit").setLevel(logging.CRITICAL)
        from infrarsi_hpc.edges.slurm.executor import SubmitFailed, TemplateExecutor

        def rendered(num_tasks: int | None) -> str:
            del num_tasks  # the same as the request's: one submission a task
            return script("trials.sbatch.j2", self.site, self.partition, request, own_folder=self.templates)

        executor = TemplateExecutor(folder / "submitit", self.commands, rendered)
        try:
            with contextlib.redirect_stdout(None):
                executor.map_array(run_task, [str(folder)] * num, [attempt] * num, range(num))
        except SubmitFailed as error:
            said = error.answer
            if said.returncode == 0:  # it was taken, and its number cannot be read
                return SubmitRefusal("ambiguous", "", said.stderr[:500], "")
            return classify_refusal(said.stderr, said.returncode, timed_out=said.returncode is None)
        assert executor.submitted is not None
        return executor.submitted

    def _name(self, folder: Path, attempt: int) -> str:
        return f"infrarsi-{self.tag}-{folder.name}-{attempt}"

    def _request(self, folder: Path, attempt: int, tasks: Sequence[Sequence[TrialSpec]]) -> JobRequest:
        specs = [spec for task in tasks for spec in task]
        num = len(tasks)
        ranks = max(spec.ranks for spec in specs)
        gpus = ranks if any(spec.device == "cuda" for spec in specs) else 0
        if gpus > max(1, self.partition.gpus_per_node):
            raise SiteError(
                f"a trial wants {gpus} GPUs on a node of {self.partition.gpus_per_node}",
                why=f"partition {self.partition.name} of site {self.site.name}, as its profile says",
                fix="choose a partition with larger nodes, or hold the number of ranks with --fix",
            )
        is_exclusive = self.site.request.exclusive and self.is_timed
        # tasks that share a host would time each other
        one_at_a_time = self.is_timed and (self.partition.shares_host or not is_exclusive)
        cpus_are_the_gpus = bool(gpus and self.site.request.cpus_per_gpu)
        is_array = num > 1
        return JobRequest(
            name=self._name(folder, attempt),
            log=folder / ("job-%A_%a.log" if is_array else "job-%j.log"),
            seconds=max(self._task_seconds(task) for task in tasks),
            num_array_tasks=num if is_array else None,
            throttle=1 if one_at_a_time else self.site.limits.throttle,
            gpus_per_node=gpus,
            exclusive=is_exclusive,
            cpus=None if is_exclusive or cpus_are_the_gpus else max(1, ranks),
            exclude=tuple(self.exclude()),
            requeue=self.site.scheduler.requeue,
            values={
                "folder": str(folder),
                "folders": [str(self.campaign), str(Path(specs[0].project))],
                "starter": str(write_starter(self.campaign)),
                "attempt": attempt,
                "scratch": self.site.user.scratch or self.site.storage.scratch,
            },
        )

    @staticmethod
    def _task_seconds(task: Sequence[TrialSpec]) -> float:
        runs = sum(len(spec.lengths) * (spec.limits.wall_seconds + RUN_OVERHEAD_SECONDS) for spec in task)
        return TASK_OVERHEAD_SECONDS + runs

    @staticmethod
    def _kept(request: JobRequest, num: int) -> dict[str, Any]:
        """A job as the ledger keeps it, but for its number: written before sbatch is called, for who adopts it."""
        devices = max(1, request.nodes * request.gpus_per_node)
        return {"kind": "slurm", "name": request.name, "num_tasks": num, "num_devices": devices}

    def adopt(self, folder: Path, attempt: int) -> dict[str, Any] | None:
        """Find a batch's job by its name. Waits for an answer: without one nothing may be concluded.

        Raises
        ------
        SiteError
            Slurm did not answer for too long.
        """
        name = self._name(folder, attempt)
        try:
            kept = json.loads((folder / f"submission-{attempt}.json").read_bytes())
        except FileNotFoundError:
            return None  # killed before sbatch was called
        began = time.monotonic()
        pause = 1.0
        while True:
            answer = ask_queue(self.commands, "--states=all", f"--name={name}", my_jobs())
            found = [record.job for record in answer.records if record.name == name]
            if found:
                job = max(found)
                self.said(f"found the job of an unanswered submission: {job.number}")
                return {**kept, "id": job.number, "cluster": job.cluster}
            waited = time.monotonic() - began
            if answer.is_answer and waited >= ADOPT_SECONDS:
                return self._in_accounts(name, kept)
            if waited > MAX_OUTAGE_SECONDS:
                raise Interrupted(
                    "Slurm did not answer for hours", why=answer.evidence[:300], fix="run the same command again"
                )
            self.pause(pause)
            pause = pause if answer.is_answer else min(2 * pause, 60.0)

    def _in_accounts(self, name: str, kept: Mapping[str, Any]) -> dict[str, Any] | None:
        """A job that the controller has forgotten already (MinJobAge), by its name; waits for an answer."""
        began = time.monotonic()
        while self.site.scheduler.has_accounting is not False and time.monotonic() - began < MAX_OUTAGE_SECONDS:
            said = self.commands.run(
                "sacct", "--parsable2", f"--name={name}", f"--format={SACCT_FORMAT}", "--starttime=now-7days"
            )
            problem = sacct_problem(said.stdout + "\n" + said.stderr)
            if said.is_good:
                jobs = [task.record.job for task in read_sacct(said.stdout).tasks if task.record.name == name]
                return {**kept, "id": max(jobs).number, "cluster": max(jobs).cluster} if jobs else None
            if problem is None or problem.kind == "disabled":
                return None
            self.pause(10.0)
        return None

    # ---- watching

    def look(self, folder: Path, attempt: int, job: Mapping[str, Any] | None) -> list[Sight]:
        """One sight a task."""
        if job is None:
            return [self._by_signs(folder, attempt, task) for task in range(len(batches.read_tasks(folder)))]
        watch = self._watch(folder, attempt, job)
        now = watch.clock()
        return [self._sight(folder, job, seen, now) for seen in watch.look()]

    @staticmethod
    def _by_signs(folder: Path, attempt: int, task: int) -> Sight:
        """A task whose job nobody can name: its agent's own signs tell whether it lives."""
        if batches.shows_life(folder, attempt, task):
            return Sight("running")
        return Sight("over", words="its agent is gone, and Slurm knows no job of its name")

    def _watch(self, folder: Path, attempt: int, job: Mapping[str, Any]) -> Watch:
        key = (str(folder), attempt)
        if key not in self._watches:
            self._watches[key] = Watch(
                self.commands,
                JobId(int(job["id"]), cluster=str(job["cluster"])),
                int(job["num_tasks"]),
                name=str(job["name"]),
                is_array=int(job["num_tasks"]) > 1,
                said=self.said,
            )
        return self._watches[key]

    def _sight(self, folder: Path, job: Mapping[str, Any], seen: Seen | None, now: float) -> Sight:
        if seen is None:
            return Sight("unknown")
        record = seen.record
        devices = int(job["num_devices"])
        node = ",".join(record.nodes)
        seconds = seen.job_seconds(now)
        if not seen.is_over:
            phase: Phase = "settling" if seen.is_settling else "waiting" if record.state.is_waiting else "running"
            return Sight(phase, record, "", node, seconds, devices, record.reason)
        if seen.is_missing:
            words = f"Slurm no longer knows job {record.job}, last {record.state}"
            return Sight("over", None, words, node, seconds, devices)
        return Sight("over", record, _log(folder, record.job), node, seconds, devices, record.reason)

    def cancel(self, folder: Path, job: Mapping[str, Any] | None) -> None:
        """Cancel a batch's job, by number or by name, and wait until Slurm no longer runs it."""
        (folder / "cancel").touch()
        if job is not None and job.get("kind") != "slurm":
            return
        if job is not None:
            cluster = str(job["cluster"])
            self.commands.run("scancel", str(job["id"]), cluster=cluster)
            # and what an unanswered submission may have left under the same name
            self.commands.run("scancel", my_jobs(), f"--name={job['name']}", cluster=cluster)
            where = (f"--jobs={job['id']}", str(job["cluster"]))
        else:
            pattern = f"infrarsi-{self.tag}-{folder.name}"
            names = [f"{pattern}-{n}" for n in range(1, 10)]
            self.commands.run("scancel", my_jobs(), f"--name={','.join(names)}")
            where = (f"--name={','.join(names)}", "")
        deadline = time.monotonic() + CANCEL_SECONDS
        while time.monotonic() < deadline:
            answer = ask_queue(self.commands, my_jobs(), where[0], cluster=where[1])
            if answer.is_answer and not any(not record.state.is_over for record in answer.records):
                return
            self.pause(0.3)


def free_nodes(commands: SlurmCommands, partition: str) -> int | None:
    """Idle nodes of a partition; none where Slurm does not say."""
    said = commands.run("sinfo", "--noheader", f"--partition={partition}", "--states=idle", "--format=%D")
    counts = [int(line) for line in said.stdout.split() if line.isdigit()]
    return sum(counts) if said.is_good else None


def batch_size(wanted: int, idle: int | None, partition_nodes: int | None) -> int:
    """Trials of a round: what was asked for, and more where more nodes are free, up to all of the partition's.

    A round that is larger learns less between its trials, so idle nodes beyond four times the wanted size stay idle.
    """
    if idle is None:
        return wanted
    most = partition_nodes or idle
    return max(wanted, min(idle, most, 4 * wanted)) if idle else wanted


def _log(folder: Path, job: JobId) -> str:
    """The end of a task's own log; empty where there is none."""
    name = f"job-{job.number}_{job.task}.log" if job.task is not None else f"job-{job.number}.log"
    try:
        return read_end(folder / name, MAX_LOG_BYTES)
    except OSError:
        return ""
