"""The command `infrarsi`. Stages are imported when their command is called, so that `--help` is quick."""

from __future__ import annotations

import sys
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from infrarsi_hpc import __version__
from infrarsi_hpc.cli import run_options
from infrarsi_hpc.cli.campaigns import campaigns_app
from infrarsi_hpc.cli.run_options import (
    CONTRACT,
    HERE,
    CampaignOption,
    CampaignSiteOption,
    ContractOption,
    JsonOption,
    ProjectOption,
    YesOption,
)
from infrarsi_hpc.cli.site import site_app
from infrarsi_hpc.errors import InfrarsiError, UsageError

app = typer.Typer(
    name="infrarsi",
    help="Make a training run faster, and prove it: init, doctor, run, report, apply.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

SiteOption = Annotated[str, typer.Option(envvar="INFRARSI_SITE", help="The site profile's name.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"infrarsi-hpc {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Make a training run faster, and prove it."""


@app.command()
def demo(
    directory: Annotated[Path, typer.Argument(help="A new or empty folder.")], as_json: JsonOption = False
) -> None:
    """Write out a small training project to play with.

    Example: infrarsi demo ~/demo
    """
    from infrarsi_hpc.cli import stages

    stages.demo(directory, as_json)


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(help="The project's folder.", show_default="here")] = HERE,
    goal: Annotated[str, typer.Option(help="What you want, in a sentence.")] = "",
    contract: ContractOption = CONTRACT,
    relock: Annotated[bool, typer.Option(help="Lock again after the contract or the code changed.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Stage 1: write the contract if there is none, check it, and lock it.

    Example: infrarsi init . --goal "more tokens a second, at most 4 GPU-hours"
    """
    from infrarsi_hpc.cli import stages

    stages.init(directory, goal, contract, relock, yes, as_json)


@app.command()
def doctor(
    project: ProjectOption = HERE,
    contract: ContractOption = CONTRACT,
    site: SiteOption = "local",
    place: Annotated[str, typer.Option(hidden=True, help="Keep the report as that of a site's partition.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Stage 2: run the baseline several times, here or on a site's node; its phases, its memory, and the noise.

    Example: infrarsi doctor --site mycluster
    """
    from infrarsi_hpc.cli import stages

    stages.doctor(project, contract, site, place, as_json)


@app.command()
@wraps(run_options.run)
def run(**given: Any) -> None:
    """Its options, defaults and help are those of `run_options.run`."""
    from infrarsi_hpc.cli import stages
    from infrarsi_hpc.cli.until import parse_window

    o = run_options.run(**given)
    modes = {"detach": o.detach, "as-job": o.as_job, "once": o.once, "dry-run": o.dry_run, "print-job": o.print_job}
    chosen = [name for name, is_chosen in modes.items() if is_chosen]
    if len(chosen) > 1:
        raise UsageError(f"--{chosen[0]} and --{chosen[1]} say different things", fix="give one of them")
    if o.budget is not None and o.budget <= 0:
        raise UsageError("--budget must be above 0 device-hours", fix="for example: --budget 4")
    begin, end = parse_window(o.start_at, o.until, is_resumed=o.resumed)
    flags = stages.RunFlags(
        o.budget, o.max_trials, begin, end, o.batch, o.seed, tuple(o.fix or ()), o.experience, o.site
    )
    how = chosen[0] if chosen else "here"
    stages.run(o.project, o.contract, o.campaign, flags, how=how, as_json=o.as_json)


@app.command()
def cancel(
    project: ProjectOption = HERE,
    contract: ContractOption = CONTRACT,
    campaign: CampaignOption = None,
    site: CampaignSiteOption = None,
) -> None:
    """Stop a campaign: its head, wherever it runs, and its trials. `infrarsi run` goes on with it later."""
    from infrarsi_hpc.cli import stages

    stages.cancel(project, contract, campaign, site)


@app.command()
def report(
    project: ProjectOption = HERE,
    contract: ContractOption = CONTRACT,
    campaign: CampaignOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stage 4: write report.html and report.md into the campaign's folder."""
    from infrarsi_hpc.cli import stages

    stages.report(project, contract, campaign, as_json)


@app.command()
def apply(
    project: ProjectOption = HERE,
    contract: ContractOption = CONTRACT,
    campaign: CampaignOption = None,
    revert: Annotated[bool, typer.Option("--revert", help="Undo an earlier apply.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Stage 5: audit the winner and commit it, with its evidence, on a branch of its own."""
    from infrarsi_hpc.cli import stages

    stages.apply(project, contract, campaign, revert, yes, as_json)


@app.command("try")
def try_(
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="KNOB=VALUE; the rest as in the baseline.")
    ] = None,
    patch: Annotated[list[Path] | None, typer.Option(help="A diff to apply.")] = None,
    project: ProjectOption = HERE,
    contract: ContractOption = CONTRACT,
    as_json: JsonOption = False,
) -> None:
    """Make one trial now, and print its evidence and its verdict.

    Example: infrarsi try --set micro_batch=4 --patch patches/fused_loss.diff
    """
    from infrarsi_hpc.cli import stages

    stages.try_(settings or [], patch or [], project, contract, as_json)


@app.command()
def status(
    project: ProjectOption = HERE,
    contract: ContractOption = CONTRACT,
    campaign: CampaignOption = None,
    as_json: JsonOption = False,
) -> None:
    """Where a campaign stands."""
    from infrarsi_hpc.cli import readers

    readers.status(project, contract, campaign, as_json)


@app.command()
def watch(
    project: ProjectOption = HERE,
    contract: ContractOption = CONTRACT,
    campaign: CampaignOption = None,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.2)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, then return.")] = False,
) -> None:
    """Follow a campaign that runs elsewhere, until it is closed. Ctrl-C stops the watching, not the campaign."""
    from infrarsi_hpc.cli import watch as watching

    watching.watch(project, contract, campaign, interval, once)


@app.command()
def prices(
    project: ProjectOption = HERE,
    contract: ContractOption = CONTRACT,
    campaign: CampaignOption = None,
    as_json: JsonOption = False,
) -> None:
    """What each setting and patch costs or saves: GiB and step time, with intervals."""
    from infrarsi_hpc.cli import readers

    readers.prices(project, contract, campaign, as_json)


@app.command()
def nodes(
    project: ProjectOption = HERE,
    contract: ContractOption = CONTRACT,
    campaign: CampaignOption = None,
    site: SiteOption = "local",
    allow: Annotated[list[str] | None, typer.Option(help="Never leave this node out.", metavar="NODE")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Leave this node out.", metavar="NODE")] = None,
    as_json: JsonOption = False,
) -> None:
    """Which nodes a campaign ran on, and which it leaves out because they fail or are slow.

    Example: infrarsi nodes --allow n17 --exclude n3
    """
    from infrarsi_hpc.cli import nodes as command

    command.nodes(project, contract, campaign, site, allow=allow or (), exclude=exclude or (), as_json=as_json)


@app.command()
def explain(
    files: Annotated[list[str], typer.Argument(help="Files to look at, or numbers of Slurm jobs.")],
    kind: Annotated[str, typer.Option(help="contract, gpu, log, profile, slurm or store.")] = "log",
    site: SiteOption = "local",
    project: ProjectOption = HERE,
    as_json: JsonOption = False,
) -> None:
    """What would a campaign make of this file, or of how this job ended?

    Examples: infrarsi explain --kind log .infrarsi/demo/trials/t0007/log.txt;
    infrarsi explain --site mycluster 410022_3
    """
    from infrarsi_hpc.cli import readers

    readers.explain(files, kind, site, project, as_json)


app.add_typer(site_app, name="site")
app.add_typer(campaigns_app, name="campaigns")


def main() -> None:
    """Run the command; every failure has a message and an exit code, never a trace."""
    from infrarsi_hpc.cli.output import say_error
    from infrarsi_hpc.stages.interrupts import HandOver

    try:
        app()
    except InfrarsiError as error:
        say_error(error)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, HandOver):
        print("infrarsi: interrupted; the same command goes on", file=sys.stderr)
        sys.exit(5)
    except BrokenPipeError:
        sys.exit(1)
    except Exception as error:
        if isinstance(error, OSError) and (full := _as_site_error(error)) is not None:
            say_error(full)
            sys.exit(full.exit_code)
        _report_defect(error)
        sys.exit(1)


def _as_site_error(error: OSError) -> InfrarsiError | None:
    """A full disk or a read-only file system, wherever it was met."""
    from infrarsi_hpc.edges.atomic import site_error
    from infrarsi_hpc.errors import DiskFull

    said = site_error(Path(str(error.filename or "a file")), error)
    return said if isinstance(said, DiskFull) else None


def _report_defect(error: Exception) -> None:
    """An error nobody foresaw: keep the trace in a file and say where."""
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="infrarsi-defect-", suffix=".txt", delete=False) as file:
        traceback.print_exc(file=file)
    print(
        f"infrarsi: a defect of this program: {type(error).__name__}: {str(error)[:300]}\n"
        f"  why: nobody foresaw this; the details are in {file.name}\n"
        "  fix: report it with that file; finished trials are safe, and the same command goes on",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
