"""A campaign as one Slurm job: the script to hand to sbatch."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.edges.project import Project
from infrarsi_hpc.edges.templates import render

DEFAULT_TIME = "08:00:00"


def job_script(project: Project, campaign: str | None, site: SiteProfile, arguments: Sequence[str]) -> str:
    """The sbatch script that runs this campaign, to its end or on from where it stopped, on one node of its own.

    `arguments` are those of `infrarsi run`, without `--print-job`.
    """
    name = campaign or project.contract.name
    folder = project.campaign_folder(name)
    return render(
        "campaign.sbatch.j2",
        {
            "campaign": name,
            "time": DEFAULT_TIME,
            "log": str(folder / "job-%j.log"),
            "setup": site.environment.setup,
            "project": str(project.root),
            "python": sys.executable,
            "arguments": list(arguments),
        },
    )
