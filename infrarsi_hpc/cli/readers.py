"""Commands that only read: status, prices, explain."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import typer

from infrarsi_hpc.cli.output import say, say_json, table


def status(project: Path, contract: str, campaign: str | None, as_json: bool) -> None:
    """Where a campaign stands."""
    from infrarsi_hpc.cli.saved_arguments import known_arguments, saved_site
    from infrarsi_hpc.edges.ledger import load_state
    from infrarsi_hpc.edges.project import campaign_ledger
    from infrarsi_hpc.stages.run.activity import activity_of
    from infrarsi_hpc.stages.status import (
        activity_status,
        activity_text,
        nodes_left_out,
        not_begun,
        status_of,
        status_text,
    )

    ledger = campaign_ledger(project.resolve(), contract, campaign)
    state, now = load_state(ledger), time.time()
    left_out = nodes_left_out(state, ledger.parent, saved_site(known_arguments(ledger.parent)))
    around = activity_status(state, activity_of(ledger.parent, state, now), left_out, now)
    summary = status_of(state)
    if as_json:
        say_json(summary | around)
        return
    name = ledger.parent.name
    say(
        status_text(summary) if state.opened is not None else not_begun(name, ledger.parent, around["head"] is not None)
    )
    say(activity_text(around))
    if state.closed is None and around["head"] is None:
        say(f"next: infrarsi campaigns resume {name}")
    elif state.closed is not None:
        say(f"next: infrarsi report --campaign {name}")


def prices(project: Path, contract: str, campaign: str | None, as_json: bool) -> None:
    """What settings and patches cost."""
    from dataclasses import asdict

    from infrarsi_hpc.stages.finished import prices_of, read_campaign

    priced = prices_of(read_campaign(project.resolve(), contract, campaign))
    if as_json:
        say_json(asdict(priced))
        return
    rows = []
    for price in priced.prices:
        knob = f"{price.name} {price.instead_of} -> {price.setting}"
        what = knob if price.kind == "knob" else f"{'without' if price.is_removal else 'with'} patch {price.name}"
        time, memory, believed = price.time_factor, price.memory_gib, price.believed_time_factor
        rows.append(
            (
                what,
                f"{time.value:.3f}",
                f"{time.low:.3f} to {time.high:.3f}",
                f"{memory.value:+.4f}",
                f"{memory.low:+.4f} to {memory.high:+.4f}",
                f"{believed.value:.3f}",
                str(price.num_trials),
            )
        )
    say(table(("against the best so far", "time x", "90%", "GiB", "90%", "believed x", "trials"), rows))
    if len(priced.owners) > 1:
        say()
        headings = ("whose belief", "from trials", "trusted before", "on step time", "on memory")
        shares = [
            (o.name, str(o.num_trials or "-"), f"{o.before:.0%}", f"{o.time:.0%}", f"{o.memory:.0%}")
            for o in priced.owners
        ]
        say(table(headings, shares))


def explain(files: list[str], kind: str, site: str, project: Path, as_json: bool) -> None:
    """What a campaign would make of files and jobs."""
    from infrarsi_hpc.edges.sites import read_profile
    from infrarsi_hpc.stages.explain.files import explain_file
    from infrarsi_hpc.stages.explain.job import explain_job, is_job

    def one(name: str) -> dict[str, Any]:
        if is_job(name) and not Path(name).exists():
            where = site if site != "local" else _last_site(project.resolve())
            return explain_job(name, read_profile(where, os.environ, Path.home()), project.resolve())
        return explain_file(Path(name), kind)

    found = [one(name) for name in files]
    if as_json:
        say_json(found if len(found) > 1 else found[0])
    else:
        for item in found:
            label = "/".join(x for x in (item["outcome"], item["detail"]) if x)
            bound = f", at least {item['bound_gib']:.2f} GiB" if item["bound_gib"] is not None else ""
            say(f"{item['file']}: {label}{bound}")
            for name in ("evidence", "action"):
                if item[name]:
                    say(f"  {name}: {item[name]}")
            for finding in item["findings"]:
                say(f"  - {_finding_text(finding)}")
    if any(item["outcome"] == "refused" for item in found):
        raise typer.Exit(3)


def _last_site(root: Path) -> str:
    """The site of the campaign that was started last: a job's number is most likely of its jobs."""
    from infrarsi_hpc.cli.saved_arguments import known_arguments
    from infrarsi_hpc.edges.project import CAMPAIGNS
    from infrarsi_hpc.edges.saved_run import SAVED_RUN

    saved = sorted((root / CAMPAIGNS).glob(f"*/{SAVED_RUN}"), key=lambda path: path.stat().st_mtime, reverse=True)
    arguments = [found for path in saved if (found := known_arguments(path.parent)) is not None]
    return next((site for found in arguments if (site := found.value("--site"))), "local")


def _finding_text(finding: object) -> str:
    """One finding in a line: its own words where it has them, else its fields that say something."""
    if not isinstance(finding, dict):
        return str(finding)
    if text := finding.get("text"):
        where = [str(finding[name]) for name in ("where", "line") if finding.get(name)]
        return f"{' '.join(where)}: {text}" if where else str(text)
    return ", ".join(f"{name} {value}" for name, value in finding.items() if value not in (None, "", [], False))
