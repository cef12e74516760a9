"""Where a GPT's step time goes, per rank, in seconds at nominal rates.

FLOPs as in Narayanan et al. (2104.04473, sec. 5.1); traffic counted in passes over activations. Nominal rates are
only where the fit starts: one common factor (how fast the machine is) and a scale for each part are learned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infrarsi_hpc.domain.contract import Shape
from infrarsi_hpc.models.basis import FloatArray, Prior, Settings
from infrarsi_hpc.workloads.settings import is_word, number
from infrarsi_hpc.workloads.torch_gpt_knobs import DEFAULTS, num_parameters


@dataclass(frozen=True)
class Rates:
    """Nominal rates of one device.

    Attributes
    ----------
    matmul_flops
        FLOP/s of fp32 matrix products (CPU: a thread).
    bytes_per_second
        Memory bandwidth of element-wise work (CPU: a thread).
    launch_seconds
        Overhead of one operator.
    sync_bytes_per_second, sync_seconds
        All-reduce bandwidth, and latency of one bucket.
    page_fault_seconds
        A GiB of fresh pages.
    sample_seconds
        Reading and collating one token in the training process.
    """

    matmul_flops: float
    bytes_per_second: float
    launch_seconds: float
    sync_bytes_per_second: float
    sync_seconds: float
    page_fault_seconds: float
    sample_seconds: float


RATES: dict[str, Rates] = {
    # one AVX-512 core: 92 GFLOP in 1.3 s, AdamW on 4.3M parameters fused 3 ms, foreach 21 ms, loop 19 ms
    "cpu": Rates(6e10, 6e9, 8e-6, 1.5e9, 4e-4, 0.25, 2e-8),
    "cuda": Rates(6e13, 1.5e12, 6e-6, 8e10, 3e-5, 0.0, 2e-8),
}

PRIORS: dict[str, Prior] = {
    "matmul_fp32": Prior(0.0, 0.3),
    "matmul_bf16": Prior(0.0, 0.8),
    "attention_math": Prior(0.0, 0.5),
    "attention_sdpa": Prior(0.0, 0.5),
    "recompute": Prior(0.0, 0.3),
    "pointwise_eager": Prior(0.0, 0.5),
    "pointwise_compiled": Prior(-0.5, 0.5),
    "shared_bandwidth": Prior(-1.5, 1.0),
    "loss": Prior(0.0, 0.5),
    "launch_eager": Prior(0.0, 0.7),
    "launch_compiled": Prior(-1.0, 0.7),
    "optimizer_loop": Prior(0.0, 0.6),
    "optimizer_foreach": Prior(0.0, 0.6),
    "optimizer_fused": Prior(0.0, 0.6),
    "sync_bytes": Prior(0.0, 0.8),
    "sync_latency": Prior(0.0, 1.0),
    "data_inline": Prior(0.0, 1.0),
    "data_workers": Prior(0.0, 1.0),
    "page_faults": Prior(0.0, 0.8),
}
#: bf16 matrix products against fp32 before anything is measured: CPUs without bf16 units gain nothing, GPUs much.
_BF16_SPEEDUP = {"cpu": 1.0, "cuda": 3.0}
#: Operators of one layer's forward and backward.
_OPERATORS = 60.0


def time_components(settings: Settings, shape: Shape, device: str, dynamic_gib: FloatArray) -> dict[str, FloatArray]:
    """Seconds a step by component; every setting may be a column.

    `dynamic_gib` is what one micro-batch allocates and frees (activations, scores, logits).
    """
    rates = RATES[device]
    micro_batch = number(settings, "micro_batch", DEFAULTS)
    ranks = number(settings, "ranks", DEFAULTS)
    threads = number(settings, "threads", DEFAULTS) if device == "cpu" else np.array(1.0)
    is_full = is_word(settings, "recompute", "full", DEFAULTS)
    is_partial = is_word(settings, "recompute", "attention", DEFAULTS)
    is_bf16 = is_word(settings, "precision", "bf16", DEFAULTS)
    is_math = is_word(settings, "attention", "math", DEFAULTS)
    is_compiled = is_word(settings, "compile", "on", DEFAULTS)
    parameters = num_parameters(shape)
    layers, hidden, sequence = shape.layers, shape.hidden, shape.sequence_length
    passes = shape.global_batch / np.maximum(micro_batch * ranks, 1e-9)
    tokens = shape.tokens_per_step / np.maximum(ranks, 1e-9)
    compute = rates.matmul_flops * threads
    # element-wise work does not speed up fully with threads: they share caches and memory
    bandwidth = rates.bytes_per_second * np.sqrt(threads)

    per_layer = 4 * hidden**2 + 2 * hidden * shape.feed_forward
    products = tokens * 6.0 * (layers * per_layer + hidden * shape.vocabulary) / compute
    repeated = tokens * 2.0 * layers * per_layer / compute
    scores = tokens * 12.0 * layers * hidden * sequence / compute
    # the materialised kernel walks over the scores about ten times, forward and backward
    walks = tokens * layers * shape.heads * sequence * 4.0 * 10 / bandwidth
    math, fused = scores + walks, 0.6 * scores
    again = np.where(is_full | is_partial, np.where(is_math, math, fused) / 3, 0.0)
    speedup = np.where(is_bf16, _BF16_SPEEDUP[device], 1.0)
    again = again + np.where(is_full, repeated / speedup, 0.0)
    bytes_walked = tokens * layers * 4.0 * (24 * hidden + 6 * shape.feed_forward)
    walked = bytes_walked / bandwidth * np.where(is_full, 4 / 3, 1.0)
    launches = passes * layers * _OPERATORS * rates.launch_seconds * np.where(is_full, 4 / 3, 1.0)
    is_every = is_word(settings, "gradient_sync", "every", DEFAULTS)
    syncs = np.where(ranks > 1, np.where(is_every, passes, 1.0), 0.0)
    gradient_bytes = 4.0 * parameters
    share = 2 * (ranks - 1) / np.maximum(ranks, 1)
    num_buckets = np.ceil(gradient_bytes / (np.maximum(number(settings, "bucket_mib", DEFAULTS), 1e-3) * 2**20))
    workers = number(settings, "data_workers", DEFAULTS)
    zero = np.zeros(())
    update = parameters * 16.0 / rates.bytes_per_second
    per_tensor = 12.0 * layers * rates.launch_seconds
    is_loop = is_word(settings, "optimizer", "loop", DEFAULTS)
    parts = {
        "matmul_fp32": np.where(is_bf16, zero, products),
        "matmul_bf16": np.where(is_bf16, products / speedup, zero),
        "attention_math": np.where(is_math, math, zero),
        "attention_sdpa": np.where(is_math, zero, fused),
        "recompute": again,
        "pointwise_eager": np.where(is_compiled, zero, walked),
        "pointwise_compiled": np.where(is_compiled, walked, zero),
        "shared_bandwidth": (bytes_walked * ranks) / rates.bytes_per_second if device == "cpu" else zero,
        "loss": tokens * shape.vocabulary * 4.0 * 6 / bandwidth,
        "launch_eager": np.where(is_compiled, zero, launches),
        "launch_compiled": np.where(is_compiled, launches, zero),
        "optimizer_loop": np.where(is_loop, 1.6 * update + 15 * per_tensor, zero),
        "optimizer_foreach": np.where(is_word(settings, "optimizer", "foreach", DEFAULTS), 1.7 * update, zero),
        "optimizer_fused": np.where(is_word(settings, "optimizer", "fused", DEFAULTS), 0.3 * update, zero),
        "sync_bytes": syncs * share * gradient_bytes / rates.sync_bytes_per_second,
        "sync_latency": syncs * num_buckets * rates.sync_seconds,
        "data_inline": np.where(workers == 0, tokens * rates.sample_seconds, zero),
        "data_workers": workers * passes * 2e-4,
        "page_faults": np.where(is_word(settings, "allocator", "retain", DEFAULTS), zero, passes * dynamic_gib)
        * rates.page_fault_seconds,
    }
    return {name: np.asarray(part, float) for name, part in parts.items()}
