"""The knobs that torch-gpt's formulas know, what they stand at where a contract leaves them out, and its rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from infrarsi_hpc.domain.contract import Shape
from infrarsi_hpc.models.basis import BoolArray, Settings
from infrarsi_hpc.workloads.settings import number

DEFAULTS: dict[str, Any] = {
    "micro_batch": 1,
    "ranks": 1,
    "threads": 1,
    "attention": "math",
    "recompute": "none",
    "compile": "off",
    "precision": "fp32",
    "optimizer": "foreach",
    "gradient_sync": "every",
    "data_workers": 0,
    "bucket_mib": 25,
    "allocator": "default",
}


def num_parameters(shape: Shape) -> float:
    """Parameters: attention and feed-forward matrices, token and position embeddings, norms and biases aside."""
    per_layer = 4 * shape.hidden**2 + 2 * shape.hidden * shape.feed_forward
    return float(shape.layers * per_layer + shape.hidden * (shape.vocabulary + shape.sequence_length))


def broken_rules(settings: Settings, shape: Shape, cores: int | None) -> list[tuple[BoolArray, str]]:
    """For each rule, where it is broken and why that cannot run."""
    micro_batch, ranks = number(settings, "micro_batch", DEFAULTS), number(settings, "ranks", DEFAULTS)
    threads, workers = number(settings, "threads", DEFAULTS), number(settings, "data_workers", DEFAULTS)
    batch = shape.global_batch
    is_positive = (micro_batch >= 1) & (ranks >= 1)
    per_pass = np.where(is_positive, micro_batch * ranks, 1)
    rules: list[tuple[BoolArray, str]] = [
        (~is_positive, "micro_batch and ranks are at least 1"),
        (batch % per_pass != 0, f"micro_batch x ranks does not divide the global batch of {batch}"),
        ((threads < 1) | (workers < 0), "threads are at least 1, data_workers at least 0"),
        (number(settings, "bucket_mib", DEFAULTS) <= 0, "a gradient bucket is larger than nothing"),
    ]
    if cores is not None:
        why = f"ranks x threads is more than the {cores} cores: the ranks would wait for each other"
        rules.append((threads * ranks > cores, why))
    return rules
