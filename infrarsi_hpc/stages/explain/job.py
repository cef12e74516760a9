"""Explain a job by its number: what squeue and sacct say of it now, and the end of its log where we know it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from infrarsi_hpc.domain.campaign import TrialRecord
from infrarsi_hpc.domain.job import JobId, JobRecord, JobState
from infrarsi_hpc.domain.outcome import Ending, Outcome
from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.edges.batches import read_tasks
from infrarsi_hpc.edges.file_end import read_end
from infrarsi_hpc.edges.ledger import load_state
from infrarsi_hpc.edges.project import CAMPAIGNS
from infrarsi_hpc.edges.slurm.commands import SlurmCommands
from infrarsi_hpc.edges.slurm.ids import parse_id
from infrarsi_hpc.edges.slurm.sacct_text import FORMAT as SACCT_FORMAT
from infrarsi_hpc.edges.slurm.sacct_text import read_sacct, sacct_problem
from infrarsi_hpc.edges.slurm.single import ask_queue
from infrarsi_hpc.errors import InputRefused, SiteError, UsageError
from infrarsi_hpc.verify.job_ending import ending_of_job, ending_of_record

MAX_LOG_BYTES = 2**22
_JOB = re.compile(r"[1-9][0-9]{0,9}(?:_[0-9]{1,10})?")


def is_job(text: str) -> bool:
    """Whether a word can be a job's number, with an array task or without."""
    return bool(_JOB.fullmatch(text))


def explain_job(text: str, site: SiteProfile, project: Path) -> dict[str, Any]:
    """One object as for a file; an array without a task gives a finding for each.

    Raises
    ------
    UsageError
        The site has no Slurm.
    SiteError
        Slurm does not answer, or knows no such job.
    """
    if site.scheduler.kind != "slurm":
        raise UsageError("a job's number needs a site with Slurm", fix="name it with --site; see `infrarsi site list`")
    [wanted] = parse_id(text).jobs
    records = _records(SlurmCommands(site), wanted)
    if not records:
        raise SiteError(
            f"Slurm knows no job {text}",
            why="it is older than MinJobAge and no accounts are kept, or it never was",
            fix="its log can be explained without it: infrarsi explain --kind log FILE",
        )
    found = [(record, *_ending(record, project)) for record in records[:1000]]
    ending = found[0][1]
    return {
        "file": text,
        "kind": "job",
        "outcome": ending.outcome.value if len(found) == 1 else Outcome.UNKNOWN.value,
        "detail": ending.detail if len(found) == 1 else None,
        "bound_gib": ending.bound_gib,
        "rank": ending.rank,
        "evidence": ending.evidence if len(found) == 1 else f"{len(found)} tasks; each is a finding",
        "action": ending.action if len(found) == 1 else None,
        "findings": [
            {
                "job": str(record.job),
                "state": record.state.value,
                "outcome": how.label,
                "nodes": ",".join(record.nodes),
                "elapsed_seconds": record.elapsed_seconds,
                "restarts": record.restarts,
                "reason": record.reason,
                "log": str(log) if log else "",
            }
            for record, how, log in found
        ],
    }


def _ending(record: JobRecord, project: Path) -> tuple[Ending, Path | None]:
    log = _log_of(record.job, project)
    trials = _trials_of(record.job, log) if log is not None else []
    if trials and all(trial.ending is not None for trial in trials):
        return _of_trials(trials), log
    # a job of no campaign's that completed has nothing to show for it
    if not record.state.is_over or (not trials and record.state is JobState.COMPLETED):
        return ending_of_record(record), log
    return ending_of_job(record, read_end(log, MAX_LOG_BYTES) if log else ""), log


def _trials_of(job: JobId, log: Path) -> list[TrialRecord]:
    """The trials that a job's task was given, as their campaign's ledger has them; none where that is not known."""
    folder = log.parent
    try:
        state = load_state(folder.parent.parent / "ledger.jsonl")
        record = state.rounds[int(folder.name.removeprefix("r"))]
        if record.job is None or record.job.get("id") != job.number:
            return []
        return [state.trials[name] for name in read_tasks(folder)[job.task or 0]]
    except (InputRefused, OSError, ValueError, KeyError, IndexError):
        return []


def _of_trials(trials: list[TrialRecord]) -> Ending:
    """What the campaign made of a task: its trial's ending, or of several the first that is not ok."""
    endings = [trial.ending for trial in trials if trial.ending is not None]
    chosen = next((ending for ending in endings if ending.outcome is not Outcome.OK), endings[0])
    words = []
    for trial in trials[:20]:
        verdict = f", {trial.verdict.belief.value}" if trial.verdict is not None else ""
        words.append(f"{trial.plan.trial} {trial.ending.label if trial.ending else ''}{verdict}")
    evidence = "; ".join(words) + (f": {chosen.evidence}" if chosen.evidence else "")
    return chosen.model_copy(update={"evidence": evidence})


def _records(commands: SlurmCommands, wanted: JobId) -> list[JobRecord]:
    said = commands.run("sacct", "--parsable2", "--duplicates", f"--format={SACCT_FORMAT}", f"--jobs={wanted}")
    if said.is_good and sacct_problem(said.stdout + said.stderr) is None:
        found = [task.record for task in read_sacct(said.stdout).tasks]
        # Slurm numbers the tasks of an array like jobs: a number that was used again names a task of another job too
        own = [record for record in found if record.job.number == wanted.number]
        if found:
            return own or found
    answer = ask_queue(commands, "--states=all", f"--jobs={wanted}")
    if not answer.is_answer:
        raise SiteError("Slurm does not answer", why=answer.evidence, fix="try again later")
    return [r for r in answer.records if wanted.task is None or r.job.task == wanted.task]


def _log_of(job: JobId, project: Path) -> Path | None:
    name = f"job-{job.number}_{job.task}.log" if job.task is not None else f"job-{job.number}.log"
    return next(iter(sorted((project / CAMPAIGNS).glob(f"*/rounds/*/{name}"))), None)
