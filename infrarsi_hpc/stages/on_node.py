"""One command of infrarsi's own, run to its end on a node of the kind that trials get, from a login node."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from infrarsi_hpc.domain.job import JobState
from infrarsi_hpc.domain.noise import DoctorReport
from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.edges.project import CAMPAIGNS, Project
from infrarsi_hpc.edges.slurm.commands import SlurmCommands
from infrarsi_hpc.edges.slurm.request import JobRequest, partition_of
from infrarsi_hpc.edges.slurm.single import cancel, submit_single
from infrarsi_hpc.edges.slurm.watch import Watch
from infrarsi_hpc.edges.templates import own_templates
from infrarsi_hpc.errors import Interrupted, SiteError
from infrarsi_hpc.stages.interrupts import HandOver, interruptible

COMMAND_SECONDS = 3600.0


def place_of(site: SiteProfile) -> str:
    """A site's partition as a place whose nodes are alike: what a doctor's report is of."""
    return f"{site.name}-{partition_of(site).name}"


def examine_on_node(
    project: Project, site: SiteProfile, *, said: Callable[[str], None], on_poll: Callable[[], None] = lambda: None
) -> DoctorReport:
    """Run the doctor on a node of the site's; gives the report that it kept. `on_poll` as in `run_on_node`.

    Raises
    ------
    SiteError
        It left none.
    """
    where = place_of(site)
    run_on_node(
        project, site, ["doctor", "--contract", project.contract_file, "--place", where], said=said, on_poll=on_poll
    )
    report = project.doctor(where)
    if report is None:
        raise SiteError(
            "the doctor's report is not there",
            why="its job ended well, and this host does not see what it wrote",
            fix="is the project on a file system that nodes and login node share?",
        )
    return report


def run_on_node(
    project: Project,
    site: SiteProfile,
    arguments: Sequence[str],
    *,
    said: Callable[[str], None],
    on_poll: Callable[[], None] = lambda: None,
) -> None:
    """Run `infrarsi ARGUMENTS` as a job that owns its node, and pass on what it says.

    `on_poll` is called at every look at the job; a KeyboardInterrupt of its cancels it.

    Raises
    ------
    SiteError
        It was refused, or did not end well.
    Interrupted
        Ctrl-C; the job is cancelled.
    """
    name = arguments[0]
    folder = project.root / CAMPAIGNS / f"{name}-jobs"
    folder.mkdir(parents=True, exist_ok=True)
    partition = partition_of(site)
    commands = SlurmCommands(site)
    request = JobRequest(
        name=f"infrarsi-{name}",
        log=folder / "job-%j.log",
        seconds=COMMAND_SECONDS,
        gpus_per_node=partition.gpus_per_node if project.contract.workload.device == "cuda" else 0,
        exclusive=site.request.exclusive,
        requeue=False,
        values={"project": str(project.root), "arguments": list(arguments), "folder": str(folder)},
    )
    own = own_templates()
    with interruptible():
        job = submit_single("command.sbatch.j2", site, partition, request, commands, folder, own_folder=own)
        said(f"`infrarsi {name}` runs as job {job} in partition {partition.name}")
        log = folder / f"job-{job.number}.log"
        watch = Watch(commands, job, 1, name=request.name, is_array=False, said=said)
        try:
            shown = 0
            while True:
                seen = watch.look()[0]
                shown = _pass_on(log, shown, said)
                if seen is not None and seen.is_over:
                    break
                on_poll()
                time.sleep(max(1.0, site.limits.poll_seconds))
        except HandOver:
            cancel(commands, job)
            raise
        except KeyboardInterrupt as error:
            cancel(commands, job)
            raise Interrupted(
                f"`infrarsi {name}` was stopped", why="Ctrl-C, SIGTERM or `infrarsi cancel`", fix="run it again"
            ) from error
    _pass_on(log, shown, said)
    if seen.record.state is not JobState.COMPLETED:
        raise SiteError(
            f"`infrarsi {name}` did not end well on its node: {seen.record.state}",
            why=_tail(log) or "it wrote no log; are environment.setup and launch of the profile right?",
            fix=f"look at {log}, then `infrarsi site check {site.name}`",
        )


def _pass_on(log: Path, shown: int, said: Callable[[str], None]) -> int:
    """Say the whole lines that are new in a log; gives how far it was read."""
    try:
        with open(log, "rb") as file:
            file.seek(shown)
            new = file.read(2**20)
    except OSError:
        return shown
    whole = new[: new.rfind(b"\n") + 1]
    for line in whole.decode("utf-8", "replace").splitlines():
        if line.strip():
            said(line[:300])
    return shown + len(whole)


def _tail(log: Path) -> str:
    try:
        return log.read_bytes()[-1500:].decode("utf-8", "replace").strip()
    except OSError:
        return ""
