"""One job that is no trial: a command on a node, a head, a model server."""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
from pathlib import Path

from infrarsi_hpc.domain.job import JobId
from infrarsi_hpc.domain.site import Partition, SiteProfile
from infrarsi_hpc.edges.slurm.commands import SlurmCommands
from infrarsi_hpc.edges.slurm.request import JobRequest, script
from infrarsi_hpc.edges.slurm.sbatch_text import classify_refusal
from infrarsi_hpc.edges.slurm.squeue_text import FORMAT, SqueueAnswer, parse_squeue
from infrarsi_hpc.errors import SiteError


def submit_single(
    template: str,
    site: SiteProfile,
    partition: Partition,
    request: JobRequest,
    commands: SlurmCommands,
    folder: Path,
    *,
    own_folder: Path | None = None,
) -> JobId:
    """Submit one job, once.

    Raises
    ------
    SiteError
        sbatch did not take it, with the field of the profile to look at.
    """
    logging.getLogger("submitit").setLevel(logging.CRITICAL)
    from infrarsi_hpc.edges.slurm.executor import SubmitFailed, TemplateExecutor

    text = script(template, site, partition, request, own_folder=own_folder)
    executor = TemplateExecutor(folder / "submitit", commands, lambda _: text)
    try:
        with contextlib.redirect_stdout(None):
            executor.submit(print)
    except SubmitFailed as error:
        said = error.answer
        refusal = classify_refusal(said.stderr, said.returncode, timed_out=said.returncode is None)
        raise SiteError(f"Slurm does not take job {request.name}", why=refusal.evidence, fix=refusal.fix) from error
    assert executor.submitted is not None
    return executor.submitted


def cancel(commands: SlurmCommands, job: JobId) -> None:
    """Cancel a job."""
    commands.run("scancel", str(job), cluster=job.cluster)


def jobs_named(commands: SlurmCommands, name: str) -> list[JobId]:
    """This user's jobs of that name that are not over, as far as Slurm answers."""
    answer = ask_queue(commands, my_jobs(), f"--name={name}")
    return [r.job for r in answer.records if r.name == name and not r.state.is_over]


def ask_queue(commands: SlurmCommands, *which: str, cluster: str = "") -> SqueueAnswer:
    """What squeue says of some jobs, and whether that is an answer."""
    said = commands.run("squeue", "--noheader", f"--format={FORMAT}", *which, cluster=cluster)
    return parse_squeue(said.stdout, said.stderr, said.returncode)


def my_jobs() -> str:
    """The option that limits squeue and scancel to this user's jobs, in versions without `--me` too."""
    return f"--user={pwd.getpwuid(os.getuid()).pw_name}"
