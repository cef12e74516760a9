"""The head as a guest: in the background, as a small job, asked to stop from elsewhere, and a word when it is over."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from infrarsi_hpc.domain.campaign import CampaignState
from infrarsi_hpc.domain.digest import digest_json
from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.edges.atomic import site_error, write_json, write_text
from infrarsi_hpc.edges.dispatch import Dispatcher
from infrarsi_hpc.edges.ledger import load_state
from infrarsi_hpc.edges.project import Project
from infrarsi_hpc.errors import SiteError, UsageError
from infrarsi_hpc.stages.run.activity import head_of, stop_file
from infrarsi_hpc.stages.run.dispatchers import dispatcher_for

MODULE = ("-P", "-m", "infrarsi_hpc.cli.app")
#: A head as a job asks for this; it uses under 200 MiB and next to no processor time.
HEAD_MEMORY_GIB = 1.0
HEAD_SECONDS = 12 * 3600.0
#: Slurm may send a signal up to a minute late.
HEAD_NOTICE_SECONDS = 180
MAIL_SECONDS = 60.0


def save_arguments(project: Project, campaign: str, arguments: Sequence[str]) -> None:
    """Keep what a campaign was started with, for `infrarsi campaigns resume`."""
    folder = project.campaign_folder(campaign)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise site_error(folder, error) from error
    write_json(folder / "run.json", {"schema_version": 1, "arguments": list(arguments), "saved_at": time.time()})


def detach(project: Project, campaign: str, arguments: Sequence[str]) -> tuple[int, Path]:
    """Start `infrarsi run ARGUMENTS` in a session of its own; gives its process and its log.

    Raises
    ------
    SiteError
        It ended at once.
    """
    folder = project.campaign_folder(campaign)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "head.log"
    with open(log, "ab") as file:
        head = subprocess.Popen(
            [sys.executable, *MODULE, "run", *arguments],
            cwd=project.root,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = head.wait(timeout=1.5)
    except subprocess.TimeoutExpired:
        return head.pid, log
    if code != 0:
        lines = log.read_text("utf-8", "replace").strip().splitlines()
        raise SiteError("the head ended at once", why="\n     ".join(lines[-3:]), fix=f"look at {log}")
    return head.pid, log


def head_job_name(project: Project, campaign: str) -> str:
    """The name of a campaign's head as a job: the same for every resubmission, another for every other project."""
    return f"infrarsi-head-{campaign[:60]}-{digest_json([str(project.root), campaign])[:8]}"


def submit_head(
    project: Project, campaign: str, site: SiteProfile, arguments: Sequence[str], *, begin_at: float | None = None
) -> str:
    """Submit the head as a small job that submits itself again before its limit; gives the job's number.

    Raises
    ------
    UsageError
        The site has no Slurm.
    SiteError
        Slurm does not take it, or such a job is there already.
    """
    if site.scheduler.kind != "slurm":
        raise UsageError(
            "--as-job needs a site with Slurm", fix="name one with --site; `infrarsi site list` shows them"
        )
    from infrarsi_hpc.edges.slurm.commands import SlurmCommands
    from infrarsi_hpc.edges.slurm.request import JobRequest, partition_of, script
    from infrarsi_hpc.edges.slurm.single import jobs_named, submit_single
    from infrarsi_hpc.edges.templates import own_templates

    commands = SlurmCommands(site)
    name = head_job_name(project, campaign)
    running = jobs_named(commands, name)
    if running:
        raise SiteError(
            f"the head of campaign {campaign} is job {running[0]} already",
            why="two heads of one campaign would wait for each other",
            fix=f"infrarsi watch --campaign {campaign}, or infrarsi cancel --campaign {campaign}",
        )
    folder = project.campaign_folder(campaign)
    folder.mkdir(parents=True, exist_ok=True)
    stop_file(folder).unlink(missing_ok=True)
    partition = partition_of(site, site.login_node.head_partition)
    request = JobRequest(
        name=name,
        log=folder / "head-%j.log",
        seconds=HEAD_SECONDS,
        cpus=1,
        memory_gib=HEAD_MEMORY_GIB,
        exclusive=False,
        signal=f"B:USR1@{HEAD_NOTICE_SECONDS}",
        mail_type="FAIL" if site.login_node.mail_command else "END,FAIL",
        begin_at=begin_at,
        values={
            "project": str(project.root),
            "arguments": ["run", "--resumed", *arguments],
            "sbatch": commands.argv("sbatch"),
            "script": str(folder / "head.sh"),
            "stop_file": str(stop_file(folder)),
            "folder": str(folder),
        },
    )
    again = JobRequest(**{**request.__dict__, "begin_at": None})
    write_text(folder / "head.sh", script("head.sbatch.j2", site, partition, again, own_folder=own_templates()))
    job = submit_single("head.sbatch.j2", site, partition, request, commands, folder, own_folder=own_templates())
    return str(job)


def cancel_campaign(project: Project, campaign: str, site: SiteProfile, *, said: Callable[[str], None]) -> None:
    """Ask the head of a campaign to stop, wherever it runs, and stop what it has submitted.

    Raises
    ------
    UsageError
        There is no such campaign.
    """
    folder = project.campaign_folder(campaign)
    if not (folder / "ledger.jsonl").exists():
        raise UsageError(f"there is no campaign {campaign}", fix="`infrarsi campaigns list` shows what there is")
    write_text(stop_file(folder), "asked to stop by infrarsi cancel\n")
    state = load_state(folder / "ledger.jsonl")
    if state.opened is not None:
        _cancel_rounds(folder, state, dispatcher_for(site, folder, state.uid, said=said), said)
    if site.scheduler.kind == "slurm":
        from infrarsi_hpc.edges.slurm.commands import SlurmCommands
        from infrarsi_hpc.edges.slurm.single import cancel, jobs_named

        commands = SlurmCommands(site)
        for job in jobs_named(commands, head_job_name(project, campaign)):
            cancel(commands, job)
            said(f"its head, job {job}, is cancelled")
    holder = head_of(folder)
    if holder is not None:
        said(f"its head ({holder}) stops at its next look")


def _cancel_rounds(folder: Path, state: CampaignState, dispatcher: Dispatcher, said: Callable[[str], None]) -> None:
    for record in state.rounds.values():
        is_open = any(not state.trials[name].is_final for name in record.trials)
        if is_open and (record.job is not None or record.is_submitting):
            dispatcher.cancel(folder / "rounds" / f"r{record.round:04d}", record.job)
            said(f"round {record.round}: its trials are stopped")


def mail_end(site: SiteProfile, subject: str, text: str, *, said: Callable[[str], None]) -> None:
    """Send a mail by the site's own command, if it has one and the user an address. Never an error."""
    command, to = site.login_node.mail_command, site.user.mail_user
    if not command or not to:
        return
    argv = [part.replace("{subject}", subject).replace("{to}", to) for part in command]
    try:
        done = subprocess.run(argv, input=text.encode(), capture_output=True, timeout=MAIL_SECONDS, check=False)
        if done.returncode != 0:
            said(f"the mail to {to} was not sent: {done.stderr.decode('utf-8', 'replace').strip()[:200]}")
    except (OSError, subprocess.TimeoutExpired) as error:
        said(f"the mail to {to} was not sent: {error}")


def end_text(state: CampaignState) -> tuple[str, str]:
    """Subject and text of the mail at a campaign's end."""
    from infrarsi_hpc.stages.status import status_of, status_text

    name = state.opened["campaign"] if state.opened else "?"
    winner = state.promoted()
    what = f"{winner.speedup} verified" if winner is not None and winner.speedup else "no verified speedup"
    how = "ended" if state.closed is not None else "stopped"
    return f"infrarsi {name} {how}: {what}", status_text(status_of(state)) + "\n"
