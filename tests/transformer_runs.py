"""Transformer runs for tests: a small model, two well-known ones, layouts to draw, and totals at the priors' means."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from infrarsi_hpc.models.basis import FloatArray
from infrarsi_hpc.workloads import transformer_memory, transformer_time
from infrarsi_hpc.workloads.transformer_workload import TransformerWorkload

GIB = 2.0**30
#: A feed-forward part of four times the width without a gate, as the formulas of the literature have it.
SMALL: dict[str, Any] = {
    "layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 512, "gated_mlp": False, "tied_embeddings": True,
}  # fmt: skip
LLAMA_3_8B: dict[str, Any] = {
    "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256,
}  # fmt: skip
MIXTRAL_8X7B: dict[str, Any] = {
    "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 32000, "experts": 8,
    "experts_per_token": 2,
}  # fmt: skip
A100: dict[str, Any] = {"name": "NVIDIA A100-SXM4-80GB", "memory_gib": 80, "peak_tflops_bf16": 312}


def fields(model: dict[str, Any] = SMALL, **others: Any) -> dict[str, Any]:
    """A workload as JSON has it; by default 16 cards in nodes of 8 and 64 sequences of 2048 tokens."""
    return {"model": model, "seq_len": 2048, "global_batch": 64, "gpus": 16, "gpus_per_node": 8, "gpu": A100, **others}


def a_run(model: dict[str, Any] = SMALL, **others: Any) -> TransformerWorkload:
    return TransformerWorkload.model_validate(fields(model, **others))


def memory(run: TransformerWorkload, **settings: Any) -> dict[str, float]:
    """GiB by component."""
    return {name: float(part) for name, part in transformer_memory.memory_components(settings, run).items()}


def time(run: TransformerWorkload, **settings: Any) -> dict[str, float]:
    """Seconds by component."""
    return {name: float(part) for name, part in transformer_time.time_components(settings, run).items()}


def peak_gib(run: TransformerWorkload, **settings: Any) -> FloatArray:
    """Peak at the priors' means."""
    parts = transformer_memory.memory_components(settings, run)
    return _total({name: parts[name] * np.exp(prior.mean) for name, prior in transformer_memory.PRIORS.items()})


def step_seconds(run: TransformerWorkload, **settings: Any) -> FloatArray:
    """Step time at the priors' means."""
    parts = transformer_time.time_components(settings, run)
    return _total({name: parts[name] * np.exp(prior.mean) for name, prior in transformer_time.PRIORS.items()})


def _total(parts: dict[str, FloatArray]) -> FloatArray:
    total: FloatArray = np.sum(np.broadcast_arrays(*parts.values()), axis=0)
    return total


_MODELS = st.builds(
    lambda shape, **rest: {"layers": shape[0], "heads": shape[1], "hidden": 64 * shape[1], **rest},
    st.tuples(st.integers(1, 96), st.sampled_from([8, 16, 40])),
    ffn=st.sampled_from([1024, 4096, 13824]),
    vocab=st.sampled_from([2, 32000, 256000]),
    kv_heads=st.sampled_from([None, 1, 8]),
    gated_mlp=st.booleans(),
    tied_embeddings=st.booleans(),
    experts=st.sampled_from([1, 8, 64]),
    experts_per_token=st.sampled_from([1, 2, 8]),
    shared_experts=st.integers(0, 2),
)
RUNS = st.builds(
    a_run,
    _MODELS,
    seq_len=st.sampled_from([128, 2048, 32768]),
    global_batch=st.sampled_from([8, 64, 2048]),
    gpus=st.sampled_from([1, 8, 64, 1024]),
    gpus_per_node=st.sampled_from([1, 4, 8]),
    gpu=st.builds(lambda name: {**A100, "name": name}, st.sampled_from(["A100", "NVIDIA H100", "Abacus 9", ""])),
    optimizer=st.sampled_from(["adamw", "zero1-adamw", "distributed_adam", "lion"]),
    framework=st.sampled_from(["", "nanotron", "megatron-core"]),
)
_SETTINGS = {
    "tp": st.sampled_from([1, 2, 8, 16]),
    "pp": st.sampled_from([1, 2, 4, 16]),
    "cp": st.sampled_from([1, 2]),
    "ep": st.sampled_from([1, 2, 8]),
    "vpp": st.sampled_from([1, 2, 4]),
    "dp": st.sampled_from([1, 2, 16, 128]),
    "micro_batch": st.sampled_from([1, 2, 4, 32]),
    "zero_stage": st.integers(0, 3),
    "sequence_parallel": st.integers(0, 1),
    "recompute": st.sampled_from(["none", "disabled", "every_layer", "selective", "full"]),
    "recompute_layers": st.integers(0, 4),
    "kernel": st.sampled_from(["torch", "flash_attention2", "flash_attention2 + RMS kernel"]),
    "optimizer": st.sampled_from(["adamw", "adamw8bit", "distributed_adam", "sgd"]),
    "gradient_dtype": st.sampled_from(["bf16", "fp32"]),
}
#: Any values of all settings, whether or not they can run.
LAYOUTS = st.fixed_dictionaries(_SETTINGS)
#: The same with settings left out.
SOME_SETTINGS = st.fixed_dictionaries({}, optional=_SETTINGS)
