"""A workload written as columns is the workload that is read back; columns that cannot be are refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi_hpc.edges.store.rows import CampaignRow
from infrarsi_hpc.errors import StoreError
from infrarsi_hpc.workloads.transformer_columns import (
    SHAPE_COLUMNS,
    VERSION_COLUMNS,
    workload_columns,
    workload_of,
)
from infrarsi_hpc.workloads.transformer_workload import Card, TransformerModel, TransformerWorkload

counts = st.integers(1, 10**9)
words = st.text(max_size=100)
models = st.builds(
    TransformerModel, layers=counts, hidden=counts, heads=counts, kv_heads=st.none() | counts, ffn=counts,
    vocab=st.integers(2, 10**8), gated_mlp=st.booleans(), tied_embeddings=st.booleans(), experts=counts,
    experts_per_token=counts, shared_experts=st.integers(0, 10**4),
)  # fmt: skip
cards = st.builds(
    Card,
    name=words,
    memory_gib=st.floats(0, 10**5, exclude_min=True),
    peak_tflops_bf16=st.floats(0, 10**6, exclude_min=True),
)
workloads = st.builds(
    TransformerWorkload, model=models, seq_len=counts, global_batch=counts, gpus=counts, gpus_per_node=counts,
    gpu=cards, optimizer=words, framework=words,
)  # fmt: skip

DENSE = TransformerWorkload(
    model=TransformerModel(layers=12, hidden=768, heads=12, ffn=2048, vocab=50000),
    seq_len=1024,
    global_batch=64,
    gpus=16,
    gpu=Card(name="X100-SXM4-80GB", memory_gib=80, peak_tflops_bf16=312.5),
    optimizer="zero1-adamw",
    framework="megatron",
)


@given(workloads)
def test_what_is_written_is_read_back_to_the_rounding(workload: TransformerWorkload) -> None:
    read = workload_of(*workload_columns(workload))
    model = workload.model.model_copy(update={"kv_heads": workload.model.kv_heads or workload.model.heads})
    assert read.model == model
    assert read.model_copy(update={"model": model, "gpu": workload.gpu}) == workload.model_copy(update={"model": model})
    assert read.gpu.name == workload.gpu.name
    assert abs(read.gpu.memory_gib - workload.gpu.memory_gib) <= 1 / 1024
    assert abs(read.gpu.peak_tflops_bf16 - workload.gpu.peak_tflops_bf16) <= 1 / 1000


@given(workloads)
def test_columns_of_a_read_workload_are_the_same_columns(workload: TransformerWorkload) -> None:
    columns = workload_columns(workload)
    assert workload_columns(workload_of(*columns)) == columns


def test_a_usual_workload_comes_back_exactly() -> None:
    shape, versions = workload_columns(DENSE)
    assert workload_of(shape, versions).gpu == DENSE.gpu
    assert (shape["kv_heads"], shape["gpu_memory_mib"], shape["gpu_peak_gflops_bf16"]) == (12, 81920, 312500)
    assert versions == {"framework": "megatron", "optimizer": "zero1-adamw", "gpu": "X100-SXM4-80GB"}
    assert tuple(shape) == SHAPE_COLUMNS


def test_the_store_takes_these_columns() -> None:
    shape, versions = workload_columns(DENSE)
    row = CampaignRow(
        campaign="a", contract_sha256="0" * 64, workload_kind="transformer", shape=json.loads(json.dumps(shape)),
        versions=versions, step_seconds=1.0, within_run_cv=0.05, between_run_cv=0.05, detectable_speedup=1.1,
    )  # fmt: skip
    assert workload_of(row.shape, row.versions) == workload_of(shape, versions)


def test_versions_of_other_things_are_passed_over() -> None:
    shape, versions = workload_columns(DENSE)
    assert workload_of(shape, versions | {"torch": "2.9"}) == workload_of(shape, versions)


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no layers": ({"layers": 0}, "layers"),
    "a negative batch": ({"global_batch": -1}, "global_batch"),
    "a flag of 2": ({"gated_mlp": 2}, "flag of 0 or 1"),
    "a fraction": ({"seq_len": 1.5}, "no whole number"),
    "a word": ({"heads": "12"}, "no whole number"),
    "true for a number": ({"experts": True}, "no whole number"),
    "no memory": ({"gpu_memory_mib": 0}, "memory_gib"),
    "beyond any card": ({"gpu_peak_gflops_bf16": 10**12}, "peak_tflops_bf16"),
    "a newer version's column": ({"sliding_window": 4096}, "unknown here: sliding_window"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_columns_that_cannot_be_are_refused(name: str) -> None:
    change, said = FAULTS[name]
    shape, versions = workload_columns(DENSE)
    with pytest.raises(StoreError) as caught:
        workload_of(shape | change, versions)
    assert said in str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize("column", [*SHAPE_COLUMNS, *VERSION_COLUMNS])
def test_no_column_can_be_missing(column: str) -> None:
    shape, versions = workload_columns(DENSE)
    shape.pop(column, None)
    versions.pop(column, None)
    with pytest.raises(StoreError, match=f"has no {column}"):
        workload_of(shape, versions)


def test_a_card_name_beyond_its_length_is_refused() -> None:
    shape, versions = workload_columns(DENSE)
    with pytest.raises(StoreError, match=r"gpu\.name"):
        workload_of(shape, versions | {"gpu": "x" * 201})
