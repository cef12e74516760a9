"""A transformer's settings: what is understood, what follows from the rest, which layouts cannot run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from transformer_runs import GIB, LAYOUTS, LLAMA_3_8B, MIXTRAL_8X7B, RUNS, SMALL, a_run, fields, memory

from infrarsi_hpc.domain.contract import Shape
from infrarsi_hpc.errors import InputRefused
from infrarsi_hpc.workloads.transformer import TransformerBasis
from infrarsi_hpc.workloads.transformer_layout import broken_rules, layout_of
from infrarsi_hpc.workloads.transformer_workload import TransformerModel, TransformerWorkload

SHAPE = Shape(layers=8, hidden=1024, heads=16, feed_forward=4096, vocabulary=512, sequence_length=2048, global_batch=64)

# ---- parameters


def num_parameters(model: dict[str, Any]) -> float:
    """Of the whole model: bf16 weights of one unsharded card."""
    return memory(a_run(model, gpus=1))["weights"] * GIB / 2


def test_parameters_of_grouped_queries_are_counted() -> None:
    assert num_parameters(LLAMA_3_8B) == pytest.approx(8.03e9, rel=0.01)
    # as many keys as queries: a tenth too many
    assert num_parameters({**LLAMA_3_8B, "kv_heads": None}) / 8.03e9 > 1.09


def test_parameters_of_experts_are_counted_whole_and_as_a_token_meets_them() -> None:
    model = TransformerModel.model_validate(MIXTRAL_8X7B)
    active = model.layers * (model.attention_parameters + model.active_experts * model.expert_parameters)
    assert num_parameters(MIXTRAL_8X7B) == pytest.approx(46.7e9, rel=0.02)
    assert active + 2 * model.embedding_parameters == pytest.approx(12.9e9, rel=0.02)
    # what the name says: attention and embeddings counted eight times
    assert 8 * 7e9 / 46.7e9 > 1.19


def test_a_dense_model_has_one_feed_forward_part_however_many_a_token_may_have() -> None:
    assert TransformerModel.model_validate({**SMALL, "experts_per_token": 2}).active_experts == 1


# ---- what is left out


@pytest.mark.parametrize(
    ("given_settings", "dp", "num_micro"),
    [
        ({}, 16, 4),
        ({"tp": 2}, 8, 8),
        ({"tp": 2, "pp": 2, "cp": 2}, 2, 32),
        ({"tp": 2, "pp": 2, "micro_batch": 4}, 4, 4),
        ({"tp": 2, "dp": 4}, 4, 16),
    ],
)
def test_data_parallel_ranks_are_what_is_left_of_the_cards(
    given_settings: dict[str, Any], dp: float, num_micro: float
) -> None:
    at = layout_of(given_settings, a_run())
    assert (float(at.dp), float(at.num_micro)) == (dp, num_micro)


def test_context_parallel_ranks_share_the_tokens_of_a_micro_batch() -> None:
    assert float(layout_of({"micro_batch": 2}, a_run()).tokens) == 4096
    assert float(layout_of({"micro_batch": 2, "cp": 4}, a_run()).tokens) == 1024


@pytest.mark.parametrize(
    ("optimizer", "knobs", "stage"),
    [
        ("adamw", {}, 0),
        ("zero1-adamw", {}, 1),
        ("ZeRO-2", {}, 2),
        ("zero_3", {}, 3),
        ("fsdp", {}, 3),
        ("distributed_adam", {}, 1),
        ("zero1-adamw", {"zero_stage": 0}, 0),
        ("zero1-adamw", {"optimizer": "lion"}, 1),
        ("adamw", {"optimizer": "distributed_adam"}, 1),
        ("zero1-adamw", {"optimizer": "zero3-adamw"}, 3),
    ],
)
def test_the_stage_of_sharding_is_the_knobs_else_the_optimizers(
    optimizer: str, knobs: dict[str, Any], stage: int
) -> None:
    assert float(layout_of(knobs, a_run(optimizer=optimizer)).zero) == stage


@pytest.mark.parametrize(
    ("framework", "shards", "gradient_bytes"),
    [("", 1, 2), ("nanotron", 4, 4), ("megatron-core", 1, 4), ("Megatron", 1, 4), ("aleph-alpha", 1, 2)],
)
def test_frameworks_differ_in_what_is_usual(framework: str, shards: float, gradient_bytes: float) -> None:
    at = layout_of({"tp": 4}, a_run(framework=framework))
    assert (float(at.sequence_shards), float(at.gradient_bytes)) == (shards, gradient_bytes)
    told = layout_of({"tp": 4, "sequence_parallel": 0, "gradient_dtype": "bf16"}, a_run(framework=framework))
    assert (float(told.sequence_shards), float(told.gradient_bytes)) == (1, 2)


# ---- words


@pytest.mark.parametrize(
    ("word", "keeps_scores", "has_fused_norm"),
    [
        ("torch", True, False),
        ("megatron", True, False),
        ("flash", False, False),
        ("flash-attn", False, False),
        ("FlashAttention", False, False),
        ("flash_attention2 + RMS kernel", False, True),
        ("flash_attention2_+_RMS_kernel", False, True),
        ("sdpa", False, False),
        ("cudnn", False, False),
    ],
)
def test_kernels_are_known_by_what_their_names_contain(word: str, keeps_scores: bool, has_fused_norm: bool) -> None:
    for knob in ("kernel", "attention"):
        at = layout_of({knob: word}, a_run())
        assert (bool(at.keeps_scores), bool(at.has_fused_norm)) == (keeps_scores, has_fused_norm)


def test_without_a_word_the_kernel_keeps_no_scores() -> None:
    assert not layout_of({}, a_run()).keeps_scores


@pytest.mark.parametrize(
    ("word", "is_full", "is_selective"),
    [
        ("none", False, False),
        ("disabled", False, False),
        ("off", False, False),
        ("full", True, False),
        ("every_layer", True, False),
        ("uniform", True, False),
        ("selective", False, True),
        ("core_attention", False, True),
    ],
)
def test_recompute_is_known_by_what_its_name_contains(word: str, is_full: bool, is_selective: bool) -> None:
    at = layout_of({"recompute": word, "pp": 2}, a_run())
    assert (bool(at.is_full), bool(at.is_selective)) == (is_full, is_selective)
    assert float(at.full_layers) == (4 if is_full else 0)


def test_some_layers_of_a_stage_may_be_recomputed_and_never_more_than_it_has() -> None:
    counts = layout_of({"recompute": "block", "recompute_layers": np.array([0, 1, 3, 99]), "pp": 2}, a_run())
    assert counts.full_layers.tolist() == [4, 1, 3, 4]
    assert float(layout_of({"recompute": "none", "recompute_layers": 3}, a_run()).full_layers) == 0


@pytest.mark.parametrize("on", [1, True, 1.0, "on", "true", "True", "yes", "1"])
@pytest.mark.parametrize("off", [0, False, 0.0, "off", "false", "no", "0"])
def test_sequence_parallelism_is_on_or_off_in_any_of_its_forms(on: Any, off: Any) -> None:
    assert float(layout_of({"tp": 2, "sequence_parallel": on}, a_run()).sequence_shards) == 2
    assert float(layout_of({"tp": 2, "sequence_parallel": off}, a_run()).sequence_shards) == 1


@pytest.mark.parametrize("knob", ["tp", "pp", "dp", "cp", "ep", "vpp", "micro_batch", "zero_stage", "recompute_layers"])
def test_a_word_where_the_formulas_take_a_number_is_refused(knob: str) -> None:
    with pytest.raises(InputRefused, match=knob):
        layout_of({knob: "auto"}, a_run())


# ---- rules

#: The run, a layout that breaks one rule, its nearest neighbour that breaks none, and the reason.
RULES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "cards": ({}, {"tp": 2, "dp": 16}, {"tp": 2, "dp": 8}, "tp x pp x cp x dp is not the 16 cards"),
    "cards of context": ({}, {"cp": 2, "dp": 16}, {"cp": 2, "dp": 8}, "tp x pp x cp x dp is not the 16 cards"),
    "batch": ({}, {"micro_batch": 3}, {"micro_batch": 4}, "does not divide the global batch of 64"),
    "more than the batch": ({}, {"micro_batch": 8}, {"micro_batch": 4}, "does not divide the global batch of 64"),
    "a pipeline never full": (
        {"global_batch": 24}, {"pp": 4, "micro_batch": 3}, {"pp": 4, "micro_batch": 2}, "fewer micro-batches",
    ),
    "layers": ({"layers": 7}, {"pp": 8}, {"pp": 4}, "more pipeline stages than the 7 layers"),
    "layers in chunks": ({}, {"pp": 4, "vpp": 4}, {"pp": 4, "vpp": 2}, "more pipeline stages than the 8 layers"),
    "heads": ({"heads": 12, "kv_heads": 4}, {"tp": 8}, {"tp": 4}, "tp does not divide the 12 heads"),
    "heads of keys": ({"heads": 24, "kv_heads": 6}, {"tp": 4}, {"tp": 2}, "the 6 key and value heads"),
    "one head of keys is copied": ({"kv_heads": 1, "ffn": 4100}, {"tp": 8}, {"tp": 4}, "feed-forward width of 4100"),
    "experts": ({"experts": 6}, {"ep": 4}, {"ep": 2}, "ep does not divide the 6 experts"),
    "no experts": ({}, {"ep": 2}, {"ep": 1}, "ep does not divide the 1 experts"),
    "cards of experts": ({"experts": 32}, {"pp": 2, "ep": 16}, {"pp": 2, "ep": 8}, "ep does not divide tp x cp x dp"),
    "experts over tensor ranks": (
        {"experts": 32}, {"tp": 2, "pp": 2, "ep": 16}, {"tp": 2, "ep": 16}, "ep does not divide tp x cp x dp",
    ),
    "context": ({"seq_len": 2052}, {"cp": 4}, {"cp": 2}, "2 x cp does not divide the sequence"),
    "interleaved": (
        {"global_batch": 96}, {"pp": 4, "vpp": 2, "micro_batch": 4}, {"pp": 4, "vpp": 2, "micro_batch": 3},
        "micro-batches in multiples of pp",
    ),
}  # fmt: skip


def run_of(overrides: dict[str, Any]) -> TransformerWorkload:
    model = {name: value for name, value in overrides.items() if name in TransformerModel.model_fields}
    others = {name: value for name, value in overrides.items() if name not in model}
    return a_run({**SMALL, **model}, **others)


@pytest.mark.parametrize(("overrides", "broken", "neighbour", "reason"), RULES.values(), ids=RULES.keys())
def test_a_layout_that_cannot_run_is_told_its_one_reason_and_its_neighbour_runs(
    overrides: dict[str, Any], broken: dict[str, Any], neighbour: dict[str, Any], reason: str
) -> None:
    basis = TransformerBasis(run_of(overrides))
    found = basis.rules(broken, SHAPE)
    assert len(found) == 1
    assert reason in found[0]
    assert basis.rules(neighbour, SHAPE) == []
    both = {name: np.array([broken.get(name, 1), neighbour.get(name, 1)]) for name in broken | neighbour}
    assert basis.allowed(both, SHAPE).tolist() == [False, True]


def test_as_many_micro_batches_as_stages_less_one_are_enough() -> None:
    basis = TransformerBasis(a_run(global_batch=12))
    assert basis.rules({"pp": 4}, SHAPE) == []
    assert basis.rules({"pp": 8}, SHAPE) == ["there are fewer micro-batches than pipeline stages less one"]


@settings(max_examples=50)
@given(RUNS, st.lists(LAYOUTS, min_size=1, max_size=6))
def test_rules_say_the_same_of_a_column_as_of_each_row(run: TransformerWorkload, rows: list[dict[str, Any]]) -> None:
    basis = TransformerBasis(run)
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    assert basis.allowed(columns, SHAPE).tolist() == [basis.rules(row, SHAPE) == [] for row in rows]
    assert len(broken_rules(columns, run)) == len(broken_rules(rows[0], run))


# ---- the workload as data

REFUSED: dict[str, dict[str, Any]] = {
    "no layers": {"model": {**SMALL, "layers": 0}},
    "negative width": {"model": {**SMALL, "hidden": -1024}},
    "half a head": {"model": {**SMALL, "heads": 1.5}},
    "a word for a number": {"model": {**SMALL, "ffn": "wide"}},
    "NaN for a count": {"model": {**SMALL, "ffn": math.nan}},
    "a vocabulary of one": {"model": {**SMALL, "vocab": 1}},
    "no experts at all": {"model": {**SMALL, "experts": 0}},
    "fewer than no shared experts": {"model": {**SMALL, "shared_experts": -1}},
    "beyond any model": {"model": {**SMALL, "hidden": 10**10}},
    "no model": {"model": None},
    "a model without layers": {"model": {name: value for name, value in SMALL.items() if name != "layers"}},
    "no sequence": {"seq_len": 0},
    "no batch": {"global_batch": -8},
    "no cards": {"gpus": 0},
    "endless cards": {"gpus": math.inf},
    "no memory": {"gpu": {"memory_gib": 0, "peak_tflops_bf16": 312}},
    "memory that is NaN": {"gpu": {"memory_gib": math.nan, "peak_tflops_bf16": 312}},
    "an endless rate": {"gpu": {"memory_gib": 80, "peak_tflops_bf16": math.inf}},
    "a card without a rate": {"gpu": {"memory_gib": 80}},
    "a name without end": {"gpu": {"name": "x" * 201, "memory_gib": 80, "peak_tflops_bf16": 312}},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_workload_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        TransformerWorkload.model_validate(fields(**REFUSED[name]))


@pytest.mark.parametrize("name", ["model", "seq_len", "global_batch", "gpus", "gpu"])
def test_a_workload_needs_all_its_parts(name: str) -> None:
    with pytest.raises(ValidationError, match=name):
        TransformerWorkload.model_validate({key: value for key, value in fields().items() if key != name})


def test_a_workload_may_say_more_than_the_formulas_ask() -> None:
    assert a_run(comment="a sweep", paper="2311.05610") == a_run()
    assert a_run().tokens_per_step == 64 * 2048


# ---- cards


@pytest.mark.parametrize(
    ("name", "between_gb"),
    [
        ("NVIDIA A100-SXM4-80GB", 25),
        ("nvidia h100 80gb hbm3", 50),
        ("NVIDIA GH200 480GB", 25),
        ("NVIDIA H200", 50),
        ("Tesla V100-SXM2-16GB", 12.5),
        ("AMD Instinct MI300X", 50),
    ],
)
def test_a_known_card_has_the_links_of_its_data_sheet(name: str, between_gb: float) -> None:
    assert bandwidths(name)[2] == between_gb * 1e9


@pytest.mark.parametrize("name", ["", "Abacus 9", "RTX A1000", "NVIDIA H20", "x" * 200, "A 100"])
def test_an_unknown_card_has_finite_rates_that_follow_from_its_flops(name: str) -> None:
    found = bandwidths(name)
    assert all(math.isfinite(rate) and rate > 0 for rate in found)
    assert list(found) == sorted(found, reverse=True)
    assert found[0] == pytest.approx(312e12 / 200)


def bandwidths(name: str) -> tuple[float, float, float]:
    return a_run(gpu={"name": name, "memory_gib": 80, "peak_tflops_bf16": 312}).gpu.bandwidths


# ---- what the models are told beyond formulas


def test_formulas_carry_numbers_while_words_and_unknown_knobs_stay_open() -> None:
    basis = TransformerBasis(a_run())
    assert basis.memory_factor("micro_batch").width == basis.memory_factor("micro_batch").trend_width == 0
    assert 0 < basis.time_factor("micro_batch").width < basis.time_factor("kernel").width
    assert basis.memory_factor("kernel").width > 0
    assert basis.time_factor("nccl_algo").trend_width > 0
    assert set(basis.memory_components({}, SHAPE)) == set(basis.memory_priors)
    assert set(basis.time_components({}, SHAPE)) == set(basis.time_priors)
