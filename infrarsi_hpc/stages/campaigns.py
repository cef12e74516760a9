"""All campaigns of a project at a glance: state, result, cost, and what they take of the disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infrarsi_hpc.domain.campaign import CampaignState
from infrarsi_hpc.edges.archive import ARCHIVE, parts
from infrarsi_hpc.edges.disk_usage import DiskUsage, disk_usage
from infrarsi_hpc.edges.ledger import load_state
from infrarsi_hpc.edges.lock import Holder
from infrarsi_hpc.edges.project import CAMPAIGNS
from infrarsi_hpc.errors import LedgerError
from infrarsi_hpc.stages.run.activity import OpenJob, head_of, open_jobs


@dataclass(frozen=True)
class CampaignRow:
    """One campaign in short. Times are Unix seconds, none where nothing was written yet."""

    name: str
    state: str
    num_search_trials: int | None
    promoted_speedup: float | None
    device_hours: float | None
    started_at: float | None
    last_event_at: float | None
    usage: DiskUsage
    is_packed: bool

    def data(self) -> dict[str, Any]:
        """The row as JSON-able data."""
        rest = {name: value for name, value in self.__dict__.items() if name != "usage"}
        return rest | {"disk_mib": round(self.usage.mib, 3), "num_inodes": self.usage.num_inodes}


def list_campaigns(root: Path) -> list[CampaignRow]:
    """Every campaign below `root`, oldest first; a damaged ledger is said in its row and spoils no other."""
    rows = [_row(ledger.parent) for ledger in (root / CAMPAIGNS).glob("*/ledger.jsonl")]
    return sorted(rows, key=lambda row: (row.started_at or 0.0, row.name))


def state_text(state: CampaignState, head: Holder | None, jobs: tuple[OpenJob, ...]) -> str:
    """`running on HOST pid N`, `waiting for jobs`, `open`, or `closed: REASON`."""
    if state.closed is not None:
        return f"closed: {state.closed.get('reason', '')}"
    if head is not None:
        return f"running on {head.host} pid {head.pid}"
    return "waiting for jobs" if jobs else "open"


def _row(folder: Path) -> CampaignRow:
    usage = disk_usage(folder)
    is_packed = (folder / ARCHIVE).exists() and not parts(folder)
    try:
        state = load_state(folder / "ledger.jsonl")
    except LedgerError as error:
        what = error.what.replace(f"{folder / 'ledger.jsonl'}", "its ledger")
        return CampaignRow(folder.name, f"damaged: {what}", None, None, None, None, None, usage, is_packed)
    winner = state.promoted()
    return CampaignRow(
        name=folder.name,
        state=state_text(state, head_of(folder), open_jobs(folder, state)),
        num_search_trials=sum(t.purpose == "search" and t.is_final for t in state.trials.values()),
        promoted_speedup=winner.speedup.ratio if winner is not None and winner.speedup is not None else None,
        device_hours=state.device_seconds() / 3600,
        started_at=float(state.opened["time"]) if state.opened is not None else None,
        last_event_at=state.last_time or None,
        usage=usage,
        is_packed=is_packed,
    )
