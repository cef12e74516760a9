"""Tables of measured configurations as experience: one campaign a table, every measured row a trial of its first round.

Rows are kept as measured, repeats and all. What a table does not know is said as unknown (when it was measured, what it
cost) or as a cautious number: without repeats a run is taken to vary by 5%.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from replay_tables import Measured, Table

from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.digest import digest_json
from infrarsi_hpc.domain.gpu_names import device_named
from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.edges.store import folder as store
from infrarsi_hpc.edges.store.rows import CampaignRow, StoredTrial
from infrarsi_hpc.errors import InputRefused
from infrarsi_hpc.verify.noise import detectable_speedup
from infrarsi_hpc.workloads.transformer_columns import workload_columns
from infrarsi_hpc.workloads.transformer_workload import TransformerWorkload

_OUTCOMES = {"ok": Outcome.OK, "oom": Outcome.DEVICE_OOM, "error": Outcome.CRASHED}
#: Relative spread of runs where no configuration was measured twice.
UNKNOWN_SPREAD = 0.05
_PAIRS, _CONFIDENCE = 12, 0.95


def write_store(folder: Path, table: Table) -> Path:
    """Keep a table in an experience store; doing it again changes nothing.

    Raises
    ------
    InputRefused
        The table's workload is no transformer, or names no card.
    StoreError, SiteError, DiskFull
        As `edges.store.append`.
    """
    if "model" not in table.workload:
        raise InputRefused(
            f"{table.name} does not go into a store", why="its workload has no model", fix="describe the model there"
        )
    workload = TransformerWorkload.model_validate(table.workload)
    device = device_named(workload.gpu.name, memory_gib=workload.gpu.memory_gib)
    if device is None:
        raise InputRefused(
            f"{table.name} does not go into a store",
            why=f"its card is named {workload.gpu.name[:60]!r}, and experience is filed by card",
            fix="give gpu.name as nvidia-smi -L prints it",
        )
    shape, versions = workload_columns(workload)
    times = [row.step_seconds for row in table.rows if row.step_seconds is not None]
    spread = spread_of(table.rows)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", table.name).lstrip("_.-")[:64] or "table"
    campaign = CampaignRow(
        campaign=name,
        contract_sha256=digest_json(table.workload),
        workload_kind="transformer",
        shape=shape,
        versions=versions,
        memory_kind="cuda_reserved" if any(row.peak_gib is not None for row in table.rows) else "",
        capacity_gib=workload.gpu.memory_gib,
        step_seconds=float(np.median(times)),
        within_run_cv=UNKNOWN_SPREAD,
        between_run_cv=spread,
        detectable_speedup=max(1.0, detectable_speedup(spread, _PAIRS, _CONFIDENCE)),
    )
    trials = [_trial(name, i, row) for i, row in enumerate(table.rows)]
    return store.append(folder, str(device.key), campaign, 1, trials)


def spread_of(rows: Sequence[Measured]) -> float:
    """Relative spread of repeats: the standard deviation of log times around each configuration's mean, pooled."""
    groups: dict[tuple[tuple[str, object], ...], list[float]] = {}
    for row in rows:
        if row.step_seconds is not None:
            groups.setdefault(tuple(row.configuration.items()), []).append(float(np.log(row.step_seconds)))
    repeated = [group for group in groups.values() if len(group) > 1]
    if not repeated:
        return UNKNOWN_SPREAD
    squares = sum(float(np.sum((np.array(group) - np.mean(group)) ** 2)) for group in repeated)
    return float(np.sqrt(squares / sum(len(group) - 1 for group in repeated)))


def overlaps(stores: Sequence[Path], tables: Sequence[Table]) -> list[str]:
    """Tables whose own workload is among the experience: their replays have seen answers."""
    known = [
        (row.shape, row.versions)
        for folder in stores
        for key in store.device_keys(folder)
        for row in store.load(folder, key, workload_kind="transformer").campaigns.values()
    ]
    found = []
    for table in tables:
        if "model" in table.workload:
            columns = workload_columns(TransformerWorkload.model_validate(table.workload))
            if any(columns == row for row in known):
                found.append(table.name)
    return found


def _trial(campaign: str, number: int, row: Measured) -> StoredTrial:
    return StoredTrial(
        campaign=campaign,
        round=1,
        candidate=Candidate(configuration=row.configuration).id,
        purpose="search",
        finished_at=0.0,
        observation=Observation(
            trial=f"t{number:06d}",
            configuration=row.configuration,
            outcome=_OUTCOMES[row.outcome],
            step_seconds=row.step_seconds,
            peak_gib=row.peak_gib,
            source="table",
        ),
    )
