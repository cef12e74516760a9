"""Slurm's commands as this site has them: their folder, their cluster, a clean environment, and a time-out each.

A command that fails or does not answer is an answer of its own kind: callers tell "there are no jobs" from "nobody
answered", since an outage must never look like a finished night.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.edges.slurm.squeue_text import ENVIRONMENT

MAX_OUTPUT_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Answer:
    """What a command said. `returncode` is none where it did not end in time, or could not be started."""

    returncode: int | None
    stdout: str
    stderr: str

    @property
    def is_good(self) -> bool:
        """Whether it ended well. Some versions complain on stderr alone and end with 0: look there too."""
        return self.returncode == 0


def clean_variables(site: SiteProfile, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment for Slurm's commands: without what a surrounding job left, which sbatch would hand on.

    sbatch(1), INPUT ENVIRONMENT VARIABLES: SBATCH_* and some SLURM_* are taken as options.
    """
    scrub, keep = site.environment.scrub, site.environment.keep
    return {
        name: value
        for name, value in inherited.items()
        if not _matches(name, scrub) or _matches(name, keep) or name == "SLURM_CONF"
    }


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(name.startswith(p[:-1]) if p.endswith("*") else name == p for p in patterns)


class SlurmCommands:
    """Runs squeue, sacct, scancel, scontrol and knows how to call sbatch."""

    def __init__(self, site: SiteProfile) -> None:
        self.site = site
        self.num_calls: dict[str, int] = {}

    def argv(self, program: str, *arguments: str, cluster: str = "") -> list[str]:
        """The command line of one of Slurm's programs."""
        scheduler = self.site.scheduler
        path = f"{os.path.expandvars(scheduler.bin)}/{program}" if scheduler.bin else program
        named = cluster or (scheduler.cluster if scheduler.names_cluster else "")
        return [path, *(["-M", named] if named and program != "scontrol" else []), *arguments]

    def variables(self) -> dict[str, str]:
        """The environment that commands get: cleaned, with times in a form that can be read back."""
        return clean_variables(self.site, os.environ) | ENVIRONMENT | {"LC_ALL": "C"}

    def run(self, program: str, *arguments: str, cluster: str = "") -> Answer:
        """Run one and wait for it, at most `limits.command_seconds`."""
        self.num_calls[program] = self.num_calls.get(program, 0) + 1
        try:
            done = subprocess.run(
                self.argv(program, *arguments, cluster=cluster),
                capture_output=True,
                stdin=subprocess.DEVNULL,
                env=self.variables(),
                timeout=self.site.limits.command_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            return Answer(None, _text(error.stdout), f"{program}: error: no answer in {error.timeout:g} s")
        except OSError as error:
            return Answer(None, "", f"{program}: error: cannot be started: {error.strerror}")
        return Answer(done.returncode, _text(done.stdout), _text(done.stderr))


def _text(data: bytes | str | None) -> str:
    if isinstance(data, str):
        return data
    return (data or b"")[:MAX_OUTPUT_BYTES].decode("utf-8", "replace")
