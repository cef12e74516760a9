"""Where a distributed transformer's step goes, in seconds at nominal rates: what its slowest card does.

FLOPs and the pipeline's bubble as Narayanan et al. (2104.04473, sec. 2.2 and 5.1); all-reduces move 2 (n-1)/n of the
data (ring), reduce-scatter and all-gather half of that each; four of them a layer under tensor parallelism (Shoeybi et
al., 1909.08053, sec. 3). What sharding moves: Rajbhandari et al. (1910.02054, sec. 7); from stage 2 on gradients are
scattered with every micro-batch, since no card has room for their sum. Rates are those of data sheets: what is reached
of them is one scale a part, learned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infrarsi_hpc.models.basis import FloatArray, Prior, Settings
from infrarsi_hpc.workloads.transformer_layout import Layout, layout_of, parameters_held
from infrarsi_hpc.workloads.transformer_workload import TransformerWorkload

#: Priors of the log of each part's scale; sources and spread: docs/models.md.
PRIORS: dict[str, Prior] = {
    "matmul": Prior(0.4, 0.15),
    "imbalance": Prior(-0.2, 0.5),
    "attention": Prior(-0.4, 0.5),
    "attention_scores": Prior(1.0, 0.5),
    "traffic": Prior(1.2, 0.5),
    "traffic_whole": Prior(0.5, 0.5),
    "launches": Prior(0.3, 0.6),
    "bubble": Prior(-0.7, 0.6),
    "recompute": Prior(0.6, 0.3),
    "tp_inside": Prior(-0.8, 0.5),
    "tp_between": Prior(-1.4, 0.7),
    "tp_waits_inside": Prior(2.3, 0.6),
    "tp_waits_between": Prior(3.0, 0.8),
    "pp_sends": Prior(-0.5, 0.8),
    "pp_waits": Prior(3.0, 1.5),
    "dp_inside": Prior(0.0, 0.6),
    "dp_between": Prior(-0.3, 0.6),
    "ep_exchange": Prior(0.0, 0.6),
    "cp_exchange": Prior(0.0, 0.6),
    "shard_gathers": Prior(0.0, 0.6),
    "optimizer": Prior(-0.5, 0.6),
    "step": Prior(-0.8, 0.8),
}
_LAUNCH_SECONDS, _KERNELS_A_LAYER, _COLLECTIVE_SECONDS, _STEP_SECONDS = 6e-6, 60.0, 25e-6, 0.03
_SEND_SECONDS = 1e-3


@dataclass(frozen=True)
class _Links:
    """Bytes a second of each kind of exchange: inside a node where its group fits into one."""

    tp: FloatArray
    is_tp_inside: FloatArray
    dp: FloatArray
    is_dp_inside: FloatArray
    cp: FloatArray
    ep: FloatArray
    pp: FloatArray


def time_components(settings: Settings, workload: TransformerWorkload) -> dict[str, FloatArray]:
    """Seconds a step by component; every setting may be a column."""
    at = layout_of(settings, workload)
    model, card = workload.model, workload.gpu
    memory_rate = card.bandwidths[0]
    links = _links(at, workload)
    slots = at.num_micro + (at.pp - 1) / at.vpp  # micro-batch times until the last one is through
    tokens, hidden, layers = at.tokens, float(model.hidden), float(model.layers)
    matrices = model.attention_parameters + model.active_experts * model.expert_parameters

    # forward and backward of one micro-batch on one card, 6 FLOPs a parameter and token
    layer = 6.0 * tokens * matrices / at.tp / card.peak_flops
    head = 6.0 * tokens * model.embedding_parameters / at.tp / card.peak_flops
    even = (layers * layer + head) / at.pp
    fullest = np.maximum(at.stage_layers * layer, np.where(at.pp == 1, at.stage_layers * layer + head, 0.0))
    score_flops = 12.0 * tokens * workload.seq_len * hidden / at.tp
    attention = at.stage_layers * score_flops / card.peak_flops * np.where(at.keeps_scores, 1.0, 0.5)
    scores = at.stage_layers * tokens * workload.seq_len * model.heads / at.tp * 30.0 / memory_rate
    width = model.ffn * (3.0 if model.gated_mlp else 2.0) * model.active_experts
    split = at.stage_layers * tokens * (30.0 * hidden + 12.0 * width) / at.tp / memory_rate
    norm_bytes = np.where(at.has_fused_norm, 40.0, 80.0)
    whole = at.stage_layers * tokens * norm_bytes * hidden / at.sequence_shards / memory_rate
    launches = at.stage_layers * _KERNELS_A_LAYER * _LAUNCH_SECONDS * np.ones_like(tokens)

    # all-reduces of a layer's output: two forward, two backward
    message = 2.0 * tokens * hidden
    ring = (at.tp - 1) / at.tp
    reduces = at.stage_layers * 4 * 2 * message * ring / links.tp
    waits = at.stage_layers * 4 * _COLLECTIVE_SECONDS * np.log2(np.maximum(at.tp, 1.0)) * np.ones_like(tokens)

    # parameters that are exchanged, and that a card updates: dense ones and experts have ranks of their own
    blocks, embeddings, experts = parameters_held(at, model)
    dense = blocks + embeddings
    dense_ranks, is_sharded = np.maximum(at.dense_ranks, 1.0), at.zero >= 1
    moved = dense * (dense_ranks - 1) / dense_ranks + experts * (at.expert_ranks - 1) / at.expert_ranks
    updated = dense / np.where(is_sharded, dense_ranks, 1.0) + experts / np.where(is_sharded, at.expert_ranks, 1.0)
    passes = np.where(at.zero >= 2, at.num_micro, 1.0) + np.where(at.zero >= 3, 0.0, 1.0)
    reduced = at.gradient_bytes * moved * passes / links.dp
    gathers = np.where(at.zero >= 3, 4.0 * moved / links.dp * at.num_micro, 0.0)
    states = updated * (at.optimizer_bytes + 8.0)
    again = at.full_layers * layer / 3 + at.full_layers / at.stage_layers * attention / 3
    again = np.where(at.full_layers > 0, again, np.where(at.is_selective, attention / 3, 0.0))
    # tokens to their experts and back, forward and backward
    exchange = at.stage_layers * 4 * message * model.experts_per_token / at.sequence_shards * (at.ep - 1) / at.ep
    # keys and values of all other ranks, forward and again backward with their gradients
    ring_attention = at.stage_layers * 6 * message * model.kv_share / at.tp * (at.cp - 1)
    # every chunk of an interleaved stage sends and waits
    sends = np.where(at.pp > 1, slots * at.vpp, 0.0)

    parts = {
        "matmul": at.num_micro * even,
        "imbalance": slots * (np.maximum(fullest, even) - even),
        "attention": slots * attention,
        "attention_scores": np.where(at.keeps_scores, slots * scores, 0.0),
        "traffic": slots * split,
        "traffic_whole": slots * whole,
        "launches": slots * launches,
        "bubble": (slots - at.num_micro) * even,
        "recompute": slots * again,
        "tp_inside": slots * reduces * links.is_tp_inside,
        "tp_between": slots * reduces * (1 - links.is_tp_inside),
        "tp_waits_inside": slots * waits * links.is_tp_inside,
        "tp_waits_between": slots * waits * (1 - links.is_tp_inside),
        "pp_sends": sends * 2 * message / links.pp,
        "pp_waits": sends * _SEND_SECONDS,
        "dp_inside": reduced * links.is_dp_inside,
        "dp_between": reduced * (1 - links.is_dp_inside),
        "ep_exchange": slots * exchange / links.ep,
        "cp_exchange": slots * ring_attention / links.cp,
        "shard_gathers": gathers,
        "optimizer": states / memory_rate,
        "step": _STEP_SECONDS * np.ones_like(tokens),
    }
    return {name: np.asarray(part, float) for name, part in parts.items()}


def _links(at: Layout, workload: TransformerWorkload) -> _Links:
    """Tensor-parallel ranks lie next to each other, then context, expert and data-parallel ones, then stages."""
    _, inside, between = workload.gpu.bandwidths
    node = min(workload.gpus_per_node, workload.gpus)
    is_tp_inside = (at.tp <= node).astype(float)
    replicas = at.tp * at.cp * at.dp
    is_dp_inside = (replicas <= node).astype(float)
    # several cards of a node take part in as many rings: each has a link of its own
    return _Links(
        tp=np.where(is_tp_inside > 0, inside, between),
        is_tp_inside=is_tp_inside,
        dp=np.where(is_dp_inside > 0, inside, between),
        is_dp_inside=is_dp_inside,
        cp=np.where(at.tp * at.cp <= node, inside, between),
        ep=np.where(at.expert_tp * at.ep <= node, inside, between),
        pp=np.where(replicas * at.pp <= node, inside, between),
    )
