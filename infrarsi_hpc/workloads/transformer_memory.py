"""Where a distributed transformer's peak memory comes from, per card, on its fullest pipeline stage.

Activation bytes a token and layer follow Korthikanti et al. (2205.05198, sec. 4): of 34 h in 16 bits, 10 h stay whole
under tensor parallelism and 24 h are split (all of them with sequence parallelism); scores take 5 heads x sequence.
Stages hold as many micro-batches as lie between them and the end (1F1B; Narayanan et al., 2104.04473, sec. 2.2); when
interleaved the first holds a little more and the last nearly as many. Sharded states as Rajbhandari et al.
(1910.02054, sec. 5).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from infrarsi_hpc.models.basis import FloatArray, Prior, Settings
from infrarsi_hpc.workloads.transformer_layout import Layout, layout_of, parameters_held
from infrarsi_hpc.workloads.transformer_workload import TransformerWorkload

_GIB = float(2**30)

#: Priors of the log of each part's scale; sources and spread: docs/models.md.
PRIORS: dict[str, Prior] = {
    "weights": Prior(-0.1, 0.2),
    "gradients": Prior(-0.2, 0.3),
    "optimizer_state": Prior(0.3, 0.25),
    "activations": Prior(0.4, 0.4),
    "activations_whole": Prior(0.8, 0.5),
    "attention_scores": Prior(0.8, 0.5),
    "logits": Prior(0.4, 0.4),
    "buffers": Prior(-1.5, 0.8),
    "runtime": Prior(-0.6, 0.5),
}


def memory_components(settings: Settings, workload: TransformerWorkload) -> dict[str, FloatArray]:
    """GiB a card by component, of the stage that needs most at the priors' means; every setting may be a column."""
    at = layout_of(settings, workload)
    first, last = _stage(at, workload, is_last=False), _stage(at, workload, is_last=True)
    expected = {name: float(np.exp(prior.mean)) for name, prior in PRIORS.items()}
    is_last = _total(last, expected) >= _total(first, expected)
    return {name: np.where(is_last, last[name], first[name]) / _GIB for name in PRIORS}


def _total(stage: Mapping[str, FloatArray], scale: Mapping[str, float]) -> FloatArray:
    total: FloatArray = np.sum(np.broadcast_arrays(*(scale[name] * part for name, part in stage.items())), axis=0)
    return total


def _stage(at: Layout, workload: TransformerWorkload, *, is_last: bool) -> dict[str, FloatArray]:
    """Bytes by component of the first stage, or of the last."""
    model, one = workload.model, np.ones(np.broadcast_shapes(at.tp.shape, at.pp.shape, at.micro_batch.shape))
    is_alone = at.pp == 1
    blocks, embeddings, experts = parameters_held(at, model)
    dense = blocks + embeddings

    def sharded(size: FloatArray, stage: float) -> FloatArray:
        is_sharded = at.zero >= stage
        return size * (
            dense / np.where(is_sharded, at.dense_ranks, 1.0) + experts / np.where(is_sharded, at.expert_ranks, 1.0)
        )

    # interleaved: (2 (p - rank - 1) + (v - 1) p + 1) chunks of 1 / v of a stage each, as Megatron-core warms up
    interleaved = at.pp + (at.pp - 1) / at.vpp * (-1.0 if is_last else 1.0)
    in_flight = np.where(at.vpp > 1, interleaved, 1.0 if is_last else at.pp)
    in_flight = np.minimum(in_flight, np.maximum(at.num_micro, 1.0))
    tokens, hidden = at.tokens, float(model.hidden)
    kept_layers = at.stage_layers - at.full_layers
    # kept by layers that are not recomputed; and the insides of one layer while its backward runs
    inside = kept_layers * in_flight + np.where(at.full_layers > 0, 1.0, 0.0)
    width = model.ffn * (3.0 if model.gated_mlp else 2.0) * model.active_experts
    norms = np.where(at.has_fused_norm, 8.0, 10.0)
    # inputs of recomputed layers; that of the layer whose backward runs is among its insides
    inputs = np.maximum(at.full_layers * in_flight - 1, 0.0) * 2.0 * tokens * hidden / at.sequence_shards
    rows = tokens * model.heads * workload.seq_len / at.tp
    is_kept = np.where(at.is_selective, 1.0, inside)
    logits = np.where(is_alone | is_last, tokens * model.vocab * 10.0 / at.tp, 0.0)
    # stage 3 has two whole layers at hand, the one at work and the next; stages 1 and 2 gather in buckets
    away = np.where(at.dense_ranks > 1, blocks, 0.0) + np.where(at.expert_ranks > 1, experts, 0.0)
    buckets = np.where(at.dense_ranks > 1, 0.5 * dense, 0.0)
    gathered = np.where(at.zero >= 3, 4.0 * away / at.stage_layers, np.where(at.zero >= 1, buckets, 0.0))
    return {
        "weights": sharded(2.0 * one, 3),
        "gradients": sharded(at.gradient_bytes + 0.0 * one, 2),
        "optimizer_state": sharded(at.optimizer_bytes + 0.0 * one, 1),
        "activations": inside * tokens * ((4.0 + 4.0 * model.kv_share) * hidden + 2.0 * width) / at.tp,
        "activations_whole": inside * tokens * norms * hidden / at.sequence_shards + inputs,
        "attention_scores": np.where(at.keeps_scores, 5.0 * rows * is_kept, 0.0),
        "logits": logits,
        "buffers": gathered + 4.0 * tokens * hidden * np.where(at.pp > 1, 2.0, 0.0),
        "runtime": 1.0 * _GIB * one,
    }
