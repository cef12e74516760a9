"""The command `infrarsi nodes`: which nodes a campaign ran on, which it leaves out and why, and what a person says."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from infrarsi_hpc.cli.output import note, say, say_json, table


def nodes(
    project: Path,
    contract: str,
    campaign: str | None,
    site: str,
    *,
    allow: Sequence[str],
    exclude: Sequence[str],
    as_json: bool,
) -> None:
    """Show the nodes of a campaign, after changing what is said of them."""
    from infrarsi_hpc.edges.sites import read_profile
    from infrarsi_hpc.stages.finished import read_campaign
    from infrarsi_hpc.stages.run.nodes import change_node_list, excluded_nodes, nodes_report

    finished = read_campaign(project.resolve(), contract, campaign)
    partition = read_profile(site, os.environ, Path.home(), for_use=False).chosen_partition()
    shares_host = partition is not None and partition.shares_host
    noise_cv = finished.doctor.between_run_cv
    if allow or exclude:
        change_node_list(finished.folder, allow=allow, exclude=exclude)
    rows = nodes_report(finished.state, finished.folder, noise_cv=noise_cv, shares_host=shares_host)
    if unseen := sorted({*allow, *exclude} - {row.node for row in rows if row.num_visits}):
        note(f"no trial of this campaign has run on {', '.join(unseen)} so far; is the name right?")
    excluded = excluded_nodes(finished.state, finished.folder, noise_cv=noise_cv, shares_host=shares_host)
    if as_json:
        say_json(
            {"nodes": [asdict(row) for row in rows], "excluded": list(excluded), "compares_speed": not shares_host}
        )
        return
    if not rows:
        say("no trial of this campaign has said yet on which node it ran")
        return
    cells = [
        (
            row.node,
            str(row.num_visits),
            str(row.num_failures),
            f"{row.speed_ratio:.2f}" if row.speed_ratio is not None else "-",
            row.verdict,
            row.reason,
        )
        for row in rows
    ]
    say(table(("node", "visits", "failed", "step time x", "verdict", "why"), cells))
    if shares_host:
        say("speeds are not compared: these nodes share a host")
    if excluded:
        say(f"left out from the next submission on: {', '.join(excluded)} (infrarsi nodes --allow NODE takes one back)")
