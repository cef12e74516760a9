"""A transformer's workload as the flat columns that the experience store keeps, and back.

The store knows a campaign's shape as whole numbers and its versions as words, so that other tools read them without our
classes. Whole numbers need units of their own: memory in MiB, rates in GFLOP/s.

Covers: columns that are missing, unknown (a newer version's) or beyond what a workload may be. Does not cover: memory
finer than a MiB and rates finer than a GFLOP/s, which are rounded; keys and values whose number of heads is left out
are written with that of the queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from infrarsi_hpc.errors import StoreError
from infrarsi_hpc.workloads.transformer_workload import TransformerWorkload

_MODEL = (
    "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "gated_mlp", "tied_embeddings", "experts",
    "experts_per_token", "shared_experts",
)  # fmt: skip
_FLAGS = ("gated_mlp", "tied_embeddings")
_RUN = ("seq_len", "global_batch", "gpus", "gpus_per_node")
_MEMORY, _RATE = "gpu_memory_mib", "gpu_peak_gflops_bf16"
#: All columns of a shape, in their order.
SHAPE_COLUMNS: tuple[str, ...] = (*_MODEL, *_RUN, _MEMORY, _RATE)
#: All columns of the versions, in their order.
VERSION_COLUMNS: tuple[str, ...] = ("framework", "optimizer", "gpu")


def workload_columns(workload: TransformerWorkload) -> tuple[dict[str, int], dict[str, str]]:
    """Shape and versions as a `CampaignRow` keeps them: counts, flags as 0 or 1, MiB and GFLOP/s a card; words."""
    model, card = workload.model, workload.gpu
    sizes = model.model_dump() | {"kv_heads": model.kv_heads or model.heads}
    shape = {name: int(sizes[name]) for name in _MODEL}
    shape |= {name: int(getattr(workload, name)) for name in _RUN}
    shape[_MEMORY] = max(1, round(1024 * card.memory_gib))
    shape[_RATE] = max(1, round(1000 * card.peak_tflops_bf16))
    versions = {"framework": workload.framework, "optimizer": workload.optimizer, "gpu": card.name}
    return shape, versions


def workload_of(shape: Mapping[str, int], versions: Mapping[str, str]) -> TransformerWorkload:
    """The workload that `workload_columns` wrote; other versions (torch, driver) are passed over.

    Raises
    ------
    StoreError
        A column is missing, unknown, no whole number (a flag: 0 or 1), or beyond what a workload may be.
    """
    missing = [name for name in SHAPE_COLUMNS if name not in shape]
    missing += [name for name in VERSION_COLUMNS if name not in versions]
    unknown = sorted(set(shape) - set(SHAPE_COLUMNS))
    if missing or unknown:
        say = f"has no {', '.join(missing)}" if missing else f"has columns unknown here: {', '.join(unknown)[:200]}"
        raise StoreError(
            f"a transformer's campaign {say}",
            why="another program or version wrote it",
            fix="pip install -U infrarsi-hpc, or leave that store out",
        )
    for name in SHAPE_COLUMNS:
        value: Any = shape[name]
        if not isinstance(value, int) or isinstance(value, bool) or (name in _FLAGS and value not in (0, 1)):
            raise _beyond(name, f"{value!r} is no {'flag of 0 or 1' if name in _FLAGS else 'whole number'}")
    fields = {
        "model": {name: bool(shape[name]) if name in _FLAGS else shape[name] for name in _MODEL},
        **{name: shape[name] for name in _RUN},
        "gpu": {
            "name": versions["gpu"],
            "memory_gib": shape[_MEMORY] / 1024,
            "peak_tflops_bf16": shape[_RATE] / 1000,
        },
        "optimizer": versions["optimizer"],
        "framework": versions["framework"],
    }
    try:
        return TransformerWorkload.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _beyond(".".join(str(part) for part in first["loc"]), str(first["msg"])) from error


def _beyond(column: str, why: str) -> StoreError:
    return StoreError(
        f"a transformer's campaign has a {column} that cannot be",
        why=why,
        fix="leave that store out, or ask who wrote it",
    )
