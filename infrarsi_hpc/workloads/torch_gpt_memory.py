"""Where a GPT's peak memory comes from, per rank.

CPU: growth after process groups and model exist, so weights do not count; CUDA: all that the allocator reserves.
Activation bytes follow Korthikanti et al. (2205.05198, sec. 4), counted for fp32 residuals and, under autocast, bf16
inputs of matrix products.
"""

from __future__ import annotations

import numpy as np

from infrarsi_hpc.domain.contract import Shape
from infrarsi_hpc.models.basis import FloatArray, Prior, Settings
from infrarsi_hpc.workloads.settings import is_word, number
from infrarsi_hpc.workloads.torch_gpt_knobs import DEFAULTS, num_parameters

_GIB = float(2**30)

PRIORS: dict[str, Prior] = {
    "weights": Prior(0.0, 0.1),
    "gradients": Prior(0.0, 0.2),
    "optimizer_state": Prior(0.0, 0.15),
    "optimizer_temporary": Prior(-0.7, 0.7),
    "activations": Prior(0.0, 0.3),
    "attention_scores": Prior(0.0, 0.4),
    "logits": Prior(0.0, 0.4),
    "buckets": Prior(-0.3, 0.5),
    "casts": Prior(-0.3, 0.6),
    "retained": Prior(0.0, 0.8),
    "threads": Prior(0.0, 1.0),
    "compiled_code": Prior(0.0, 0.9),
    "data": Prior(0.0, 0.9),
    "runtime": Prior(0.0, 0.8),
}


def memory_components(settings: Settings, shape: Shape, device: str) -> dict[str, FloatArray]:
    """GiB a rank by component; every setting may be a column.

    Everything that grows with the micro-batch grows linearly in it, so peaks never fall with it.
    """
    micro_batch = number(settings, "micro_batch", DEFAULTS)
    ranks = number(settings, "ranks", DEFAULTS)
    is_full = is_word(settings, "recompute", "full", DEFAULTS)
    is_partial = is_word(settings, "recompute", "attention", DEFAULTS)
    is_bf16 = is_word(settings, "precision", "bf16", DEFAULTS)
    is_math = is_word(settings, "attention", "math", DEFAULTS)
    is_compiled = is_word(settings, "compile", "on", DEFAULTS)
    parameters = num_parameters(shape)
    tokens = micro_batch * shape.sequence_length
    layers, hidden, ffn = shape.layers, shape.hidden, shape.feed_forward

    # per token and layer: two norms (in and out), q, k, v, attention out, two of the feed-forward's width
    fp32 = 4.0 * (8 * hidden + 2 * ffn)
    bf16 = 4.0 * 2 * hidden + 2.0 * (2 * hidden + 4 * hidden + 2 * ffn) + 4.0 * 2 * hidden
    per_layer = np.where(is_bf16, bf16, fp32)
    # full recompute keeps each layer's input and, while its backward runs, one layer's insides
    activations = tokens * np.where(is_full, layers * 4.0 * hidden + per_layer, layers * per_layer)
    # scores: softmax output of every layer kept (fp32, and its bf16 copy), two more of one layer in flight
    kept_layers = np.where(is_full | is_partial, 1, layers)
    scores = tokens * shape.heads * shape.sequence_length * np.where(is_bf16, 6.0, 4.0) * (kept_layers + 2)
    scores = np.where(is_math, scores, tokens * shape.heads * 4.0 * layers)
    logits = tokens * shape.vocabulary * np.where(is_bf16, 14.0, 12.0)
    dynamic = activations + scores + logits

    is_foreach = is_word(settings, "optimizer", "foreach", DEFAULTS)
    is_loop = is_word(settings, "optimizer", "loop", DEFAULTS)
    largest = float(max(shape.vocabulary * hidden, hidden * ffn))
    temporary = np.where(is_foreach, 8.0 * parameters, np.where(is_loop, 8.0 * largest, 0.0))
    buckets = 4.0 * parameters + number(settings, "bucket_mib", DEFAULTS) * 2**20
    parts = {
        "weights": np.array(4.0 * parameters if device == "cuda" else 0.0),
        "gradients": np.array(4.0 * parameters),
        "optimizer_state": np.array(8.0 * parameters),
        "optimizer_temporary": temporary,
        "activations": activations,
        "attention_scores": scores,
        "logits": logits,
        "buckets": np.where(ranks > 1, buckets, 0.0),
        "casts": np.where(is_bf16, 2.0 * parameters, 0.0),
        "retained": np.where(is_word(settings, "allocator", "retain", DEFAULTS), 0.25, 0.0) * dynamic,
        "threads": 0.01 * _GIB * number(settings, "threads", DEFAULTS),
        "compiled_code": np.where(is_compiled, 0.1 * _GIB, 0.0),
        "data": np.where(number(settings, "data_workers", DEFAULTS) > 0, 0.02 * _GIB, 0.0),
        "runtime": np.array(0.03 * _GIB),
    }
    return {name: np.asarray(part, float) / _GIB for name, part in parts.items()}
