"""Experience stores as owners of beliefs: campaigns that are alike are one family, and each family is one owner.

Nearer families are trusted more before any trial tells: the same model and batch, else the same cards and framework.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from infrarsi_hpc.domain.contract import Shape
from infrarsi_hpc.domain.knobs import Configuration
from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.edges.store import folder as stores
from infrarsi_hpc.edges.store.rows import CampaignRow
from infrarsi_hpc.errors import StoreError
from infrarsi_hpc.models.basis import Basis
from infrarsi_hpc.models.experience import Campaign, knobs_met, owner_of
from infrarsi_hpc.models.owners import Owner
from infrarsi_hpc.models.problem import Problem
from infrarsi_hpc.workloads import BASES
from infrarsi_hpc.workloads.transformer import TransformerBasis
from infrarsi_hpc.workloads.transformer_columns import workload_columns, workload_of
from infrarsi_hpc.workloads.transformer_workload import TransformerWorkload

#: Weights of a family before any trial, by how near it is.
SAME_WORKLOAD, SAME_CARDS, SAME_KIND, OTHER = 8.0, 4.0, 2.0, 0.5
#: Families that are looked at, the nearest ones.
MOST_OWNERS = 4
#: Relative standard error of a stored step time that has none of its own.
_USUAL_NOISE = 0.02


@dataclass(frozen=True)
class _Family:
    name: str
    trust: float
    campaigns: list[Campaign]


def contract_owners(
    sources: Sequence[tuple[str, Path]],
    device_key: str,
    workload_kind: str,
    device: str,
    shape: Shape,
    baseline: Configuration,
    *,
    without: str = "",
    said: Callable[[str], None] = lambda _: None,
) -> tuple[Owner, ...]:
    """Owners for a contract's workload, from named stores.

    `baseline` is the contract's, against which factors of settings are told. `without` is the campaign's own name in
    the store: its trials come from its ledger.
    """
    families: dict[str, _Family] = {}
    for source, path in sources:
        loaded = stores.load(path, device_key, workload_kind=workload_kind)
        for skipped in loaded.skipped:
            said(f"experience left out: {skipped.file}: {skipped.reason}")
        for row, rows in stores.by_campaign(loaded, without=without):
            try:
                its_shape = Shape.model_validate(row.shape)
            except ValidationError:
                continue  # of a version that counted other sizes
            is_same = its_shape == shape
            name = f"{source}: " + ("this workload" if is_same else "other sizes")
            family = families.setdefault(name, _Family(name, SAME_WORKLOAD if is_same else SAME_KIND, []))
            family.campaigns.append(_campaign(row, rows, BASES[workload_kind].on(device), its_shape, baseline))
    return _owners(families)


def transformer_owners(
    stores_: Sequence[Path], workload: TransformerWorkload, *, said: Callable[[str], None] = lambda _: None
) -> tuple[Owner, ...]:
    """Owners for a transformer on a cluster: families that share cards, framework and how many cards.

    What cannot be read is left out, and `said` gets the reason.
    """
    families: dict[str, _Family] = {}
    for path in stores_:
        for key in stores.device_keys(path):
            loaded = stores.load(path, key, workload_kind="transformer")
            for skipped in loaded.skipped:
                said(f"experience left out: {skipped.file}: {skipped.reason}")
            for row, rows in stores.by_campaign(loaded):
                try:
                    theirs = workload_of(row.shape, row.versions)
                except StoreError as error:
                    said(f"experience left out: campaign {row.campaign}: {error}")
                    continue
                campaign = _campaign(row, rows, TransformerBasis(theirs), shape_of(theirs), None)
                for name, trust in _kinships(theirs, workload):
                    families.setdefault(name, _Family(name, trust, [])).campaigns.append(campaign)
    return _owners(families)


def shape_of(workload: TransformerWorkload) -> Shape:
    """A transformer workload's model and batch in the contract's words."""
    model = workload.model
    sizes: dict[str, Any] = {
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "feed_forward": model.ffn,
        "vocabulary": model.vocab,
        "sequence_length": workload.seq_len,
        "global_batch": workload.global_batch,
    }
    return Shape(**sizes)


def _kinships(theirs: TransformerWorkload, ours: TransformerWorkload) -> list[tuple[str, float]]:
    """Families that a campaign belongs to, and what each is trusted here."""
    where = f"{theirs.framework or 'unnamed'} on {theirs.gpu.name or 'unnamed cards'}"
    is_same_kind = (theirs.framework, theirs.gpu.name) == (ours.framework, ours.gpu.name)
    found = [(where, SAME_KIND if is_same_kind else OTHER)]
    if is_same_kind and theirs.gpus == ours.gpus:
        found.append((f"{where}, {theirs.gpus} of them", SAME_CARDS))
    if workload_columns(theirs) == workload_columns(ours):  # the same said in other words is the same
        found.append(("this workload", SAME_WORKLOAD))
    return found


def _campaign(
    row: CampaignRow, rows: Sequence[Observation], basis: Basis, shape: Shape, baseline: Configuration | None
) -> Campaign:
    problem = Problem(
        knob_set=knobs_met(rows, baseline),
        basis=basis,
        shape=shape,
        memory_limit_gib=row.capacity_gib,
        run_noise=max(row.between_run_cv, _USUAL_NOISE),
        pool=() if baseline is None else None,
    )
    return Campaign(problem, tuple(rows))


def _owners(families: dict[str, _Family]) -> tuple[Owner, ...]:
    nearest = sorted(families.values(), key=lambda family: (-family.trust, family.name))[:MOST_OWNERS]
    owners = (owner_of(family.name, family.campaigns, family.trust) for family in nearest)
    return tuple(owner for owner in owners if owner is not None)
