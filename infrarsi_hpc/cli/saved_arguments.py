"""The arguments of an earlier `infrarsi run`, read strictly: a saved file never does what the command would not.

Only options that `infrarsi run` has today are taken. Times are those that were meant when they were saved: a deadline
that has passed stays passed (what was started is taken in, nothing new begins), and a start that has passed is now.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from infrarsi_hpc.cli.run_options import spellings
from infrarsi_hpc.cli.until import parse_window
from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.edges.saved_run import SAVED_RUN, SavedRun, read_saved_run
from infrarsi_hpc.edges.sites import read_profile
from infrarsi_hpc.errors import InfrarsiError, InputRefused, UsageError

#: How a head runs; given anew, they replace the saved one.
MODES = ("--detach", "--as-job", "--once")
#: Options that start nothing.
NEVER_SAVED = ("--dry-run", "--print-job", "--help")
#: Said anew by whoever resumes, or meant as points in time.
_SAID_ANEW = ("--project", "--campaign", "--start-at", "--until")


@dataclass(frozen=True)
class RunArguments:
    """Saved arguments: (option, value) pairs in order, flags with an empty value, and the window they meant.

    `begin` and `end` are Unix seconds, none where not given.
    """

    pairs: tuple[tuple[str, str], ...]
    begin: float | None
    end: float | None

    def value(self, option: str) -> str | None:
        """The last value given for an option."""
        return next((value for name, value in reversed(self.pairs) if name == option), None)

    def resumed(self, root: Path, campaign: str, modes: Sequence[str], now: datetime) -> list[str]:
        """The same as a command line for this project and campaign; `modes` replace the saved ones if any are given."""
        dropped = {*_SAID_ANEW, *(MODES if modes else ())}
        kept = [
            part for name, value in self.pairs if name not in dropped for part in ((name, value) if value else (name,))
        ]
        window = []
        if self.begin is not None and self.begin > now.timestamp():
            window += ["--start-at", _iso(self.begin)]
        if self.end is not None:
            window += ["--until", _iso(self.end) if self.end > now.timestamp() else "+0m"]
        return ["--project", str(root), "--campaign", campaign, *kept, *window, *modes]


def parse_saved(saved: SavedRun, campaign: Path) -> RunArguments:
    """Check saved arguments against the options of today.

    Raises
    ------
    InputRefused
        There is something that `infrarsi run` does not know, or that is not of this campaign.
    """
    where, options = campaign / SAVED_RUN, spellings()
    pairs = []
    rest = list(saved.arguments)
    while rest:
        spelling, has_value, value = rest.pop(0).partition("=")
        name, takes_value = options.get(spelling, ("", False))
        if not name or name in NEVER_SAVED:
            raise _refused(where, f"it holds {spelling[:60]!r}, which is no option of a saved `infrarsi run`")
        if takes_value and not has_value:
            if not rest:
                raise _refused(where, f"{spelling} has no value")
            value = rest.pop(0)
        if takes_value != bool(has_value or value):
            raise _refused(where, f"{spelling} {'has no value' if takes_value else 'takes no value'}")
        pairs.append((name, value))
    arguments = RunArguments(tuple(pairs), None, None)
    named = arguments.value("--campaign")
    if named is not None and named != campaign.name:
        raise _refused(where, f"it is of campaign {named[:60]!r}")
    try:
        saved_at = datetime.fromtimestamp(saved.saved_at)
        window = parse_window(arguments.value("--start-at"), arguments.value("--until"), saved_at)
    except (UsageError, ValueError, OverflowError, OSError) as error:
        raise _refused(where, getattr(error, "what", str(error))) from error
    return RunArguments(arguments.pairs, *window)


def known_arguments(campaign: Path) -> RunArguments | None:
    """The saved arguments for those who only show them; none where there are none that can be used."""
    try:
        return parse_saved(read_saved_run(campaign), campaign)
    except InputRefused:
        return None


def saved_site(arguments: RunArguments | None) -> SiteProfile | None:
    """The profile of the site that a campaign runs on; none where it is not known or may not be used."""
    name = arguments.value("--site") if arguments is not None else None
    try:
        return read_profile(name, os.environ, Path.home()) if name else None
    except InfrarsiError:
        return None


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="seconds")


def _refused(where: Path, why: str) -> InputRefused:
    return InputRefused(
        f"{where} cannot be used",
        why=why,
        fix=f"give the arguments yourself: infrarsi run --campaign {where.parent.name} ...",
    )
