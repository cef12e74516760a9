"""The options of `infrarsi run`, declared apart: the command is made of them, and saved arguments are read by them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import typer

ProjectOption = Annotated[Path, typer.Option("--project", "-C", help="The project's folder.", show_default="here")]
ContractOption = Annotated[str, typer.Option("--contract", help="The contract's file in the project.")]
CampaignOption = Annotated[
    str | None, typer.Option("--campaign", help="The campaign's name (default: the contract's).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")]

CampaignSiteOption = Annotated[
    str | None,
    typer.Option(
        "--site", envvar="INFRARSI_SITE", help="The site profile's name (default: the campaign's last, else local)."
    ),
]

HERE = Path()
CONTRACT = "infrarsi.toml"


def run(
    project: ProjectOption = HERE,
    contract: ContractOption = CONTRACT,
    campaign: CampaignOption = None,
    budget: Annotated[float | None, typer.Option(help="Device-hours that may be spent.")] = None,
    max_trials: Annotated[int | None, typer.Option(help="Search trials at most.", min=1)] = None,
    start_at: Annotated[str | None, typer.Option(help="Start nothing before: 22:00, +2h, a date and time.")] = None,
    until: Annotated[str | None, typer.Option(help="Stop by then: 07:00, +90m, or 2030-01-31T07:00.")] = None,
    batch: Annotated[int, typer.Option(help="Trials a round.", min=1, max=1000)] = 4,
    seed: Annotated[int | None, typer.Option(help="Seed of the search's random choices.", min=0)] = None,
    fix: Annotated[list[str] | None, typer.Option(help="KNOB=VALUE: leave this knob out of the search.")] = None,
    experience: Annotated[bool, typer.Option(help="Use and extend the experience store.")] = True,
    site: CampaignSiteOption = None,
    detach: Annotated[bool, typer.Option("--detach", help="Go on in the background.")] = False,
    as_job: Annotated[bool, typer.Option("--as-job", help="Run the head as a small Slurm job of its own.")] = False,
    once: Annotated[bool, typer.Option("--once", help="One tick, then return (for cron).")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the first round; start nothing.")] = False,
    print_job: Annotated[
        bool, typer.Option("--print-job", help="Print a Slurm job script that runs this campaign on one node.")
    ] = False,
    resumed: Annotated[bool, typer.Option("--resumed", hidden=True, help="A time that has passed is now.")] = False,
    as_json: JsonOption = False,
) -> SimpleNamespace:
    """Stage 3: search, then re-verify the winners against the baseline. Ctrl-C and go on later as you like.

    Examples: infrarsi run --max-trials 24 --until 07:00;
    infrarsi run --site mycluster --start-at 22:00 --until 07:00 --detach
    """
    return SimpleNamespace(**locals())


def spellings() -> dict[str, tuple[str, bool]]:
    """Every spelling of every option: its first spelling, and whether it takes a value."""
    import typer.main

    alone = typer.Typer(add_completion=False)
    alone.command()(run)
    options: dict[str, tuple[str, bool]] = {}
    for parameter in typer.main.get_command(alone).params:
        takes_value = not getattr(parameter, "is_flag", False)
        options |= dict.fromkeys(parameter.opts, (parameter.opts[0], takes_value))
        options |= {spelling: (spelling, takes_value) for spelling in parameter.secondary_opts}
    return options
