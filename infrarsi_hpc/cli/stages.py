"""The five stages, `demo` and `try` as commands: call the stage, print what came out."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import typer

from infrarsi_hpc.cli.output import note, say, say_json, table
from infrarsi_hpc.domain.campaign import CampaignState
from infrarsi_hpc.domain.noise import DoctorReport
from infrarsi_hpc.errors import UsageError


def demo(directory: Path, as_json: bool) -> None:
    """Write the demo project out."""
    from infrarsi_hpc.stages.demo import write_demo

    path = write_demo(directory)
    if as_json:
        say_json({"directory": str(path)})
        return
    say(f"wrote a small GPT training project to {path}")
    say(f"next: cd {path} && infrarsi init && infrarsi doctor && infrarsi run && infrarsi report && infrarsi apply")


def init(directory: Path, goal: str, contract: str, relock: bool, yes: bool, as_json: bool) -> None:
    """Write, check and lock the contract."""
    from infrarsi_hpc.stages.init import lock_project, write_contract

    root = directory.resolve()
    draft = write_contract(root, contract, goal)
    if draft is not None:
        note(f"wrote {root / contract}; lines marked `guess` want a look")
        for remark in draft:
            note(f"  {remark}")
        if not yes and not _agrees("lock it as it is?"):
            say(f"not locked: edit {root / contract}, then run `infrarsi init` again")
            raise typer.Exit(1)
    locked = lock_project(root, contract, relock=relock)
    if as_json:
        say_json(locked.model_dump(mode="json"))
        return
    say(f"locked: contract {locked.contract_sha256[:12]}, baseline commit {locked.baseline_commit[:12]}")
    say(f"        {len(locked.editable_files)} editable files, {len(locked.locked_files)} locked files")
    say("next: infrarsi doctor")


def doctor(project: Path, contract: str, site: str, place: str, as_json: bool) -> None:
    """Examine the baseline."""
    from infrarsi_hpc.edges.project import open_project
    from infrarsi_hpc.edges.sites import read_profile
    from infrarsi_hpc.stages.doctor import examine

    opened = open_project(project.resolve(), contract)
    profile = read_profile(site, os.environ, Path.home())
    if profile.scheduler.kind == "slurm" and not place:
        from infrarsi_hpc.stages.on_node import examine_on_node

        report = examine_on_node(opened, profile, said=note)
    else:
        report = examine(opened, where=place, on_progress=note)
    if as_json:
        say_json(report.model_dump(mode="json"))
    else:
        say(_doctor_text(report, opened.contract.measurement.confidence))
        say("next: infrarsi run")


def _doctor_text(report: DoctorReport, confidence: float) -> str:
    from infrarsi_hpc.stages.report.resolution import resolution_lines

    phases = [
        (name, f"{1000 * s:.1f} ms", f"{s / max(sum(report.phases.values()), 1e-12):.0%}")
        for name, s in report.phases.items()
    ]
    peak = f"{report.peak_gib:.3f} GiB" if report.peak_gib is not None else "unknown"
    return "\n".join(
        [
            f"baseline on {report.device_key}: {1000 * report.step_seconds:.1f} ms a step over {report.num_runs} runs",
            f"peak memory {peak} ({report.memory_kind}), MFU {report.mfu:.1%} of a measured matmul ceiling of "
            f"{report.matmul_ceiling_flops / 1e9:.0f} GFLOP/s",
            table(("phase", "a step", "share"), phases),
            f"noise: {report.within_run_cv:.1%} between steps of a run, {report.between_run_cv:.1%} between runs",
            *resolution_lines(report, confidence),
            *(f"why runs differ: {cause}" for cause in report.noise_causes),
        ]
    )


@dataclass(frozen=True)
class RunFlags:
    """The flags of `infrarsi run` that bound a campaign, as typed; times are absolute."""

    budget: float | None
    max_trials: int | None
    start_at: float | None
    until: float | None
    batch: int
    seed: int | None
    fix: tuple[str, ...]
    experience: bool
    site: str | None

    def arguments(self) -> list[str]:
        """The same flags as a command line."""
        single = {
            "--budget": self.budget,
            "--max-trials": self.max_trials,
            "--start-at": _iso(self.start_at),
            "--until": _iso(self.until),
            "--batch": self.batch,
            "--seed": self.seed,
            "--site": self.site,
        }
        arguments = [text for flag, value in single.items() if value is not None for text in (flag, str(value))]
        arguments += [text for fixed in self.fix for text in ("--fix", fixed)]
        return arguments if self.experience else [*arguments, "--no-experience"]


def _iso(at: float | None) -> str | None:
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="seconds") if at is not None else None


def run(
    project: Path,
    contract: str,
    campaign: str | None,
    flags: RunFlags,
    *,
    how: str,
    as_json: bool,
) -> None:
    """Run a campaign: here, detached, as a job, or one tick of it; or show what it would begin with."""
    from infrarsi_hpc.cli.live import Live
    from infrarsi_hpc.edges.project import open_project
    from infrarsi_hpc.edges.sites import read_profile
    from infrarsi_hpc.stages.run import guest
    from infrarsi_hpc.stages.run.loop import run as run_campaign
    from infrarsi_hpc.stages.run.opening import RunOptions, campaign_name, known_doctor
    from infrarsi_hpc.stages.settings import parse_settings

    opened = open_project(project.resolve(), contract)
    name = campaign_name(opened, campaign)
    flags = replace(flags, site=_site_of(flags.site, opened.campaign_folder(name)))
    options = RunOptions(
        campaign=campaign,
        max_trials=flags.max_trials,
        budget_device_hours=flags.budget,
        start_at=flags.start_at,
        until=flags.until,
        seed=flags.seed,
        batch=flags.batch,
        fixed=parse_settings(opened.contract.knobs, flags.fix, "--fix"),
        use_experience=flags.experience,
        site=read_profile(flags.site or "local", os.environ, Path.home()),
        is_one_tick=how == "once",
    )
    arguments = ["--contract", contract, *(["--campaign", campaign] if campaign else []), *flags.arguments()]
    if how == "print-job":
        from infrarsi_hpc.stages.run.job_script import job_script

        say(job_script(opened, campaign, options.site, arguments).rstrip())
        return
    if how == "dry-run":
        from infrarsi_hpc.stages.run.dry_run import dry_run

        _show_dry_run(dry_run(opened, options, known_doctor(opened, options.site)), as_json)
        return
    guest.save_arguments(opened, name, arguments)
    if how == "detach":
        pid, log = guest.detach(opened, name, arguments)
        shown = {"campaign": name, "pid": pid, "log": str(log)}
        say_json(shown) if as_json else say(f"campaign {name} runs as process {pid}; log: {log}\nnext: infrarsi watch")
        return
    if how == "as-job":
        job = guest.submit_head(opened, name, options.site, arguments, begin_at=flags.start_at)
        say_json({"campaign": name, "job": job}) if as_json else say(f"head: job {job}\nnext: infrarsi watch")
        return
    live = Live()
    try:
        state = run_campaign(opened, options, live.observer())
    finally:
        live.close()
    if how == "once" and state.closed is None:
        if as_json and state.opened is not None:
            _show_state(state, as_json)
        return
    if how == "here":
        guest.mail_end(options.site, *guest.end_text(state), said=note)
    _show_state(state, as_json)
    if state.promoted() is None:
        raise typer.Exit(1)


def _site_of(given: str | None, campaign: Path) -> str:
    """The site named, or else the one that the campaign was last run with: its jobs are there."""
    from infrarsi_hpc.cli.saved_arguments import known_arguments

    if given is not None:
        return given
    saved = known_arguments(campaign)
    return (saved.value("--site") if saved is not None else None) or "local"


def cancel(project: Path, contract: str, campaign: str | None, site: str | None) -> None:
    """Stop a campaign's head and its trials."""
    from infrarsi_hpc.edges.project import open_project
    from infrarsi_hpc.edges.sites import read_profile
    from infrarsi_hpc.stages.run import guest
    from infrarsi_hpc.stages.run.opening import campaign_name

    opened = open_project(project.resolve(), contract)
    name = campaign_name(opened, campaign)
    profile = read_profile(_site_of(site, opened.campaign_folder(name)), os.environ, Path.home())
    guest.cancel_campaign(opened, name, profile, said=say)


def _show_dry_run(plan: object, as_json: bool) -> None:
    from infrarsi_hpc.stages.run.dry_run import DryRun

    assert isinstance(plan, DryRun)
    if as_json:
        say_json({**plan.__dict__, "candidates": [c.model_dump(mode="json") for c in plan.candidates]})
        return
    say(f"{plan.num_configurations} combinations of settings; at most {plan.max_trials} trials")
    if plan.trial_seconds:
        say(f"a trial takes about {plan.trial_seconds:.1f} s of steps at the baseline's speed")
    say("the first round would be:")
    for candidate in plan.candidates:
        settings = ", ".join(f"{k}={v}" for k, v in candidate.configuration.items())
        say(f"  {candidate.id}  {settings}" + (f"  +{len(candidate.patches)} patch" if candidate.patches else ""))
        say(f"      {candidate.reason}")


def _show_state(state: CampaignState, as_json: bool) -> None:
    from infrarsi_hpc.stages.status import status_of, status_text

    summary = status_of(state)
    if as_json:
        say_json(summary)
    else:
        say(status_text(summary))
        named = f" --campaign {state.opened['campaign']}" if state.opened else ""
        say(f"next: infrarsi report{named}" + (f"; infrarsi apply{named}" if state.promoted() is not None else ""))


def report(project: Path, contract: str, campaign: str | None, as_json: bool) -> None:
    """Write the report."""
    from infrarsi_hpc.stages.finished import write_report

    written = write_report(project.resolve(), contract, campaign)
    if as_json:
        say_json(written.files.data)
    else:
        say(written.files.headline)
        say(f"report: {written.html_path}")
        say(f"        {written.markdown_path}")


def apply(project: Path, contract: str, campaign: str | None, revert: bool, yes: bool, as_json: bool) -> None:
    """Commit the winner, or undo that."""
    from infrarsi_hpc.stages.finished import apply_campaign, revert_campaign

    def confirm(text: str) -> bool:
        note(text)
        return yes or _agrees("commit this?")

    root = project.resolve()
    outcome = revert_campaign(root, contract, campaign) if revert else apply_campaign(root, contract, campaign, confirm)
    if as_json:
        say_json(outcome.data)
    else:
        say(outcome.text)
    if not outcome.is_done:
        raise typer.Exit(1)


def try_(settings: list[str], patches: list[Path], project: Path, contract: str, as_json: bool) -> None:
    """Make one trial."""
    from infrarsi_hpc.edges.project import open_project
    from infrarsi_hpc.stages.attempt import attempt_text, try_candidate

    opened = open_project(project.resolve(), contract)
    tried = try_candidate(opened, settings, patches, on_progress=note)
    if as_json:
        say_json(tried.data())
    else:
        say(attempt_text(tried))
    if not tried.verdict.is_believed:
        raise typer.Exit(1)


def _agrees(question: str) -> bool:
    import sys

    if not sys.stdin.isatty():
        raise UsageError("this needs a yes or a no, and there is nobody to ask", fix="add --yes once you have looked")
    return typer.confirm(question, err=True)
