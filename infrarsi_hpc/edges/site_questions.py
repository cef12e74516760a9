"""What a login node can be asked about its cluster: every question through one function, with a time-out and a bound.

A command that is missing, fails, or does not answer in time is told apart and named; none of them is an error.
"""

from __future__ import annotations

import getpass
from collections.abc import Callable
from dataclasses import dataclass

from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.edges.slurm.commands import Answer, SlurmCommands
from infrarsi_hpc.edges.slurm.config_text import SINFO_FORMAT

MAX_CHARACTERS = 4 * 2**20
ASSOCIATIONS = "format=cluster,account,partition,qos,defaultqos,maxsubmit"
NVIDIA_SMI = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class Answers:
    """Texts by question, and why the others have none."""

    texts: dict[str, str]
    unanswered: tuple[str, ...]


def questions(login: str) -> dict[str, tuple[str, ...]]:
    """Every question's command line; `login` is the user whose associations are asked for."""
    return {
        "sinfo": ("sinfo", f"--format={SINFO_FORMAT}"),
        "config": ("scontrol", "show", "config"),
        "partitions": ("scontrol", "show", "partition", "-o"),
        "addresses": ("sinfo", "-h", "-N", "--format=%N|%o"),
        "associations": ("sacctmgr", "-P", "show", "assoc", f"user={login}", ASSOCIATIONS),
        "srun_help": ("srun", "--help"),
        "nvidia_smi": NVIDIA_SMI,
    }


def ask_all(site: SiteProfile, *, on_progress: Callable[[str], None] = lambda _: None) -> Answers:
    """Ask everything, one after another."""
    commands = SlurmCommands(site)
    texts: dict[str, str] = {}
    unanswered: dict[str, None] = {}
    gone: set[str] = set()
    for name, (program, *arguments) in questions(login_name()).items():
        if program in gone:
            continue
        on_progress(f"asking {program} {' '.join(arguments)[:60]}")
        answer = commands.run(program, *arguments)
        if answer.is_good:
            texts[name] = answer.stdout[:MAX_CHARACTERS]
        else:
            unanswered[_why(program, answer)] = None
            if "cannot be started" in answer.stderr:
                gone.add(program)
    return Answers(texts, tuple(unanswered))


def login_name() -> str:
    """The user's login name; empty where this machine knows none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _why(program: str, answer: Answer) -> str:
    said = (answer.stderr.strip() or answer.stdout.strip() or "it said nothing").splitlines()[0][:200]
    return said if said.startswith(program) else f"{program}: {said}"
