"""`infrarsi campaigns`: all of a project's campaigns, going on with one, and making finished ones small."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from infrarsi_hpc.stages.campaigns import CampaignRow
    from infrarsi_hpc.stages.cleaning import Cleaned, Planned

campaigns_app = typer.Typer(
    name="campaigns",
    help="All campaigns of a project: list, resume, clean.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

ProjectOption = Annotated[Path, typer.Option("--project", "-C", help="The project's folder.", show_default="here")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
HERE = Path()


@campaigns_app.command("list")
def list_(project: ProjectOption = HERE, as_json: JsonOption = False) -> None:
    """Every campaign with its state, result, cost and size."""
    from infrarsi_hpc.cli.output import say, say_json, table
    from infrarsi_hpc.stages.campaigns import list_campaigns

    rows = list_campaigns(project.resolve())
    if as_json:
        say_json([row.data() for row in rows])
    elif not rows:
        say("no campaigns yet; infrarsi run starts one")
    else:
        headings = ("campaign", "trials", "promoted", "device-h", "started", "last event", "MiB", "inodes", "state")
        say(table(headings, [_cells(row) for row in rows]))


def _cells(row: CampaignRow) -> tuple[str, ...]:
    return (
        row.name,
        "-" if row.num_search_trials is None else str(row.num_search_trials),
        "-" if row.promoted_speedup is None else f"{row.promoted_speedup:.3f}x",
        "-" if row.device_hours is None else f"{row.device_hours:.3f}",
        _when(row.started_at),
        _when(row.last_event_at),
        f"{row.usage.mib:.1f}",
        str(row.usage.num_inodes),
        row.state + (" (packed)" if row.is_packed else ""),
    )


def _when(at: float | None) -> str:
    from datetime import datetime

    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M") if at else "-"


@campaigns_app.command()
def resume(
    name: Annotated[str, typer.Argument(help="The campaign's name.")],
    project: ProjectOption = HERE,
    detach: Annotated[bool, typer.Option("--detach", help="Go on in the background.")] = False,
    as_job: Annotated[bool, typer.Option("--as-job", help="Run the head as a small Slurm job of its own.")] = False,
    once: Annotated[bool, typer.Option("--once", help="One tick, then return (for cron).")] = False,
) -> None:
    """Go on with a campaign: `infrarsi run` again, with the arguments it was last given.

    Example: infrarsi campaigns resume nightly --detach
    """
    import os
    import sys
    from datetime import datetime

    from infrarsi_hpc.cli.output import note
    from infrarsi_hpc.cli.saved_arguments import parse_saved
    from infrarsi_hpc.edges.project import CAMPAIGNS
    from infrarsi_hpc.edges.saved_run import read_saved_run
    from infrarsi_hpc.errors import UsageError
    from infrarsi_hpc.stages.cleaning import restore
    from infrarsi_hpc.stages.run.guest import MODULE

    root = project.resolve()
    folder = root / CAMPAIGNS / name
    if Path(name).name != name or not folder.is_dir():
        raise UsageError(f"there is no campaign {name}", fix="infrarsi campaigns list")
    modes = [mode for mode, is_given in (("--detach", detach), ("--as-job", as_job), ("--once", once)) if is_given]
    if len(modes) > 1:
        raise UsageError(f"{modes[0]} and {modes[1]} say different things", fix="give one of them")
    arguments = parse_saved(read_saved_run(folder), folder).resumed(root, name, modes, datetime.now())
    if num := restore(folder):
        note(f"{num} files of campaign {name} were put back from its archive")
    sys.stdout.flush()
    # this very process goes on as `infrarsi run`: its signals, its terminal and its exit code are that command's own
    os.execv(sys.executable, [sys.executable, *MODULE, "run", *arguments])


@campaigns_app.command()
def clean(
    names: Annotated[list[str] | None, typer.Argument(help="Campaigns (default: all that are closed).")] = None,
    project: ProjectOption = HERE,
    older_than: Annotated[float, typer.Option(help="Only without an event for so many days.", min=0.0)] = 0.0,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the trials' files for good.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make campaigns small: their trials' files go into one archive each. Ledger and report stay.

    Example: infrarsi campaigns clean --older-than 30
    """
    from infrarsi_hpc.cli.output import say, say_json
    from infrarsi_hpc.stages.cleaning import clean as clean_one
    from infrarsi_hpc.stages.cleaning import plan_cleaning

    plans = plan_cleaning(project.resolve(), names or (), older_than_days=older_than, delete=delete)
    if dry_run or not plans:
        if as_json:
            say_json([_plan_data(plan) for plan in plans])
        else:
            say(_plans_text(plans) if plans else "there is nothing to clean")
        return
    if not yes:
        _ask(plans)
    done = [clean_one(plan) for plan in plans]
    if as_json:
        say_json([cleaned.data() for cleaned in done])
    else:
        say(_cleaned_text(done))
    if any(cleaned.problem for cleaned in done):
        raise typer.Exit(4)


def _plan_data(plan: Planned) -> dict[str, object]:
    before = {"before_mib": round(plan.before.mib, 3), "before_inodes": plan.before.num_inodes}
    return {"name": plan.name, "action": plan.action, "is_closed": plan.is_closed, **before}


def _plans_text(plans: list[Planned]) -> str:
    from infrarsi_hpc.cli.output import table

    rows = []
    for plan in plans:
        remark = "" if plan.is_closed else "open: " + ("it can never go on" if plan.action == "delete" else "resumable")
        rows.append((plan.name, plan.action, f"{plan.before.mib:.1f}", str(plan.before.num_inodes), remark))
    return table(("folder", "to do", "MiB", "inodes", ""), rows)


def _cleaned_text(done: list[Cleaned]) -> str:
    from infrarsi_hpc.cli.output import table

    rows = []
    for cleaned in done:
        plan, after = cleaned.plan, cleaned.after
        mib, inodes = (plan.before.mib, after.mib), (plan.before.num_inodes, after.num_inodes)
        result = cleaned.problem or {"pack": "packed"}.get(plan.action, "removed")
        rows.append((plan.name, *(f"{x:.1f}" for x in mib), *map(str, inodes), result))
    return table(("folder", "MiB before", "after", "inodes before", "after", ""), rows)


def _ask(plans: list[Planned]) -> None:
    import sys

    from infrarsi_hpc.cli.output import note
    from infrarsi_hpc.errors import UsageError

    note(_plans_text(plans))
    if not sys.stdin.isatty():
        raise UsageError("this needs a yes or a no, and there is nobody to ask", fix="add --yes once you have looked")
    if not typer.confirm("do this?", err=True):
        raise typer.Exit(1)
