"""The agent's own files beside a campaign: what jobs run, the same all night, and the standard library beyond it.

Jobs run in whatever Python the site gives them (a container's, say), where infrarsi itself is not installed; and a
job that starts hours later must not run what an upgrade has put there meanwhile.
"""

from __future__ import annotations

from pathlib import Path

from infrarsi_hpc.edges.atomic import write_bytes

_PACKAGE = Path(__file__).parents[2]
_PARTS = ("__init__.py", "edges/__init__.py", "edges/agent/*.py")


def write_starter(campaign: Path) -> Path:
    """Copy the agent's files below `campaign`, once; gives the folder for PYTHONPATH."""
    folder = campaign / "starter"
    for pattern in _PARTS:
        for source in _PACKAGE.glob(pattern):
            target = folder / "infrarsi_hpc" / source.relative_to(_PACKAGE)
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(target, source.read_bytes())
    return folder
