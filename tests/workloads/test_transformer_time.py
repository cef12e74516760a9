"""A transformer's step time beside what the literature counts, and beside what a naive count says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformer_runs import LAYOUTS, LLAMA_3_8B, RUNS, SMALL, SOME_SETTINGS, a_run, step_seconds, time

from infrarsi_hpc.workloads.transformer_time import PRIORS, time_components
from infrarsi_hpc.workloads.transformer_workload import TransformerWorkload

#: Sequence, width, layers of the small model, sequences a step, and one A100's rates.
S, H, LAYERS, B = 2048, 1024, 8, 64
FLOPS, MEMORY, INSIDE, BETWEEN = 312e12, 2.0e12, 300e9, 25e9
#: Of the small model's layer, and bytes of one micro-batch's activations between layers.
PARAMETERS, MESSAGE = 12 * H**2, 2.0 * S * H


# ---- FLOPs: Narayanan et al., 2104.04473, sec. 5.1


@pytest.mark.parametrize("at", [{}, {"tp": 8}, {"micro_batch": 4}, {"cp": 2}], ids=str)
def test_flops_of_a_step_are_those_of_the_literature(at: dict[str, Any]) -> None:
    run = a_run({**SMALL, "vocab": 50304})
    parts = time(run, kernel="torch", **at)
    done = 16 * FLOPS * (parts["matmul"] + parts["attention"])
    once = 72 * B * S * LAYERS * H**2 * (1 + S / (6 * H) + 50304 / (12 * LAYERS * H))
    assert done == pytest.approx(once)
    # with every layer's forward again: 96, where the output projection is made once
    again = 16 * FLOPS * time(run, kernel="torch", recompute="full", **at)["recompute"]
    twice = 96 * B * S * LAYERS * H**2 * (1 + S / (6 * H) + 50304 / (16 * LAYERS * H))
    assert done + again == pytest.approx(twice)
    assert (done + again) / done < 4 / 3  # naive: a third more of everything


def test_a_kernel_that_keeps_no_scores_skips_the_masked_half_and_their_traffic() -> None:
    whole, flash = time(a_run(), kernel="torch"), time(a_run(), kernel="flash")
    assert flash["attention"] == pytest.approx(whole["attention"] / 2)
    assert whole["attention_scores"] > flash["attention_scores"] == 0


def test_recompute_of_attention_or_of_some_layers_costs_their_part() -> None:
    run = a_run()
    attention = time(run, kernel="torch")["attention"]
    full = time(run, kernel="torch", recompute="full")["recompute"]
    assert time(run, kernel="torch", recompute="selective")["recompute"] == pytest.approx(attention / 3)
    some = time(run, kernel="torch", recompute="full", recompute_layers=2)["recompute"]
    assert some == pytest.approx(full * 2 / 8)
    assert time(run)["recompute"] == 0


# ---- pipeline: Narayanan et al., sec. 2.2


@pytest.mark.parametrize(
    ("pp", "num_micro", "vpp", "bubble"),
    [(1, 16, 1, 0), (4, 16, 1, 3 / 16), (8, 16, 1, 7 / 16), (4, 4, 1, 3 / 4), (4, 16, 2, 3 / 32), (2, 16, 4, 1 / 64)],
)
def test_the_bubble_is_one_slot_a_stage_but_one_shorter_when_interleaved(
    pp: int, num_micro: int, vpp: int, bubble: float
) -> None:
    parts = time(a_run(gpus=pp, global_batch=num_micro), pp=pp, vpp=vpp)
    assert parts["bubble"] / parts["matmul"] == pytest.approx(bubble)


def test_interleaved_stages_send_and_wait_once_a_chunk() -> None:
    run = a_run(gpus=4, global_batch=16)
    plain, chunks = time(run, pp=4), time(run, pp=4, vpp=2)
    assert plain["pp_sends"] == pytest.approx((16 + 3) * 2 * MESSAGE / INSIDE)
    assert chunks["pp_sends"] == pytest.approx((16 + 3 / 2) * 2 * 2 * MESSAGE / INSIDE)
    for name in ("pp_sends", "pp_waits"):
        assert chunks[name] / plain[name] == pytest.approx(2 * 17.5 / 19)  # naive: less, with the bubble
        assert time(run, pp=1)[name] == 0


def test_a_stage_with_a_layer_more_makes_all_others_wait() -> None:
    even, odd = (time(a_run({**SMALL, "layers": layers}), pp=4) for layers in (32, 30))
    assert even["imbalance"] == 0
    layer = 6 * S * PARAMETERS / FLOPS
    lost = 8 * layer - (30 * layer + 6 * S * 512 * H / FLOPS) / 4
    assert odd["imbalance"] == pytest.approx((16 + 3) * lost)


# ---- tensor parallelism: Shoeybi et al., 1909.08053, sec. 3


@pytest.mark.parametrize(("tp", "name", "rate"), [(8, "tp_inside", INSIDE), (16, "tp_between", BETWEEN)])
def test_four_all_reduces_a_layer_move_twice_their_message_but_one_part(tp: int, name: str, rate: float) -> None:
    run = a_run(gpus=16)
    parts, other = time(run, tp=tp), {"tp_inside": "tp_between", "tp_between": "tp_inside"}[name]
    num_micro = B / (16 / tp)
    assert parts[name] == pytest.approx(num_micro * LAYERS * 4 * 2 * MESSAGE * (tp - 1) / tp / rate)
    assert parts[other] == 0
    waits = "tp_waits" + name.removeprefix("tp")
    assert parts[waits] > 0
    assert time(run, tp=tp, sequence_parallel=1)[name] == parts[name]  # naive: it would save exchange


def test_a_single_card_exchanges_nothing() -> None:
    parts = time(a_run(gpus=1))
    exchanges = [name for name in parts if name.partition("_")[0] in ("tp", "pp", "dp", "ep", "cp", "shard")]
    assert len(exchanges) == 11
    assert [parts[name] for name in exchanges] == [0] * 11


def test_sequence_parallelism_splits_what_tensor_parallelism_leaves_whole() -> None:
    plain, split = time(a_run(), tp=8), time(a_run(), tp=8, sequence_parallel=1)
    assert split["traffic_whole"] == pytest.approx(plain["traffic_whole"] / 8)
    assert split["traffic"] == plain["traffic"]


# ---- data parallelism: Rajbhandari et al., 1910.02054, sec. 7


@pytest.mark.parametrize(
    ("stage", "num_micro", "volumes"), [(0, 1, 2), (1, 1, 2), (2, 1, 2), (3, 1, 3), (0, 4, 2), (1, 4, 2), (2, 4, 5),
                                        (3, 4, 12)],
)  # fmt: skip
def test_sharding_moves_as_many_times_the_parameters_as_the_zero_paper_says(
    stage: int, num_micro: int, volumes: float
) -> None:
    """From stage 2 on no card has room for whole gradients: every micro-batch scatters its own."""
    run = a_run(gpus=8, global_batch=8 * num_micro)
    parts = time(run, zero_stage=stage)
    psi = LAYERS * PARAMETERS + 512 * H
    moved = (parts["dp_inside"] + parts["shard_gathers"]) * INSIDE / (2 * psi * 7 / 8)
    assert moved == pytest.approx(volumes)
    assert parts["dp_between"] == 0


def test_replicas_of_more_than_a_node_are_reduced_between_nodes() -> None:
    parts = time(a_run(gpus=16))
    psi = LAYERS * PARAMETERS + 512 * H
    assert parts["dp_between"] == pytest.approx(2 * 2 * psi * 15 / 16 / BETWEEN)
    assert parts["dp_inside"] == 0
    doubled = time(a_run(gpus=16), gradient_dtype="fp32")
    assert doubled["dp_between"] == pytest.approx(2 * parts["dp_between"])


def test_sharded_states_are_updated_in_parts() -> None:
    run = a_run(gpus=8)
    assert time(run, zero_stage=1)["optimizer"] == pytest.approx(time(run, zero_stage=0)["optimizer"] / 8)


# ---- experts and context

EXPERTS: dict[str, Any] = {**SMALL, "experts": 8, "experts_per_token": 2}


def test_a_token_is_computed_by_the_experts_that_it_passes() -> None:
    attention, expert = 4 * H**2, 8 * H**2
    shared = {**EXPERTS, "shared_experts": 1}
    for model, matrices in ((SMALL, attention + expert), (EXPERTS, attention + 2 * expert), (shared, 4 * H**2 * 7)):
        flops = 6 * B * S * (LAYERS * matrices + 512 * H)
        assert time(a_run(model))["matmul"] == pytest.approx(flops / 16 / FLOPS)  # naive: all 8 experts


def test_tokens_go_to_routed_experts_and_back_and_shared_ones_stay() -> None:
    moved = 4 * LAYERS * 4 * MESSAGE * 2 * 7 / 8  # micro-batches, layers, exchanges, experts a token
    assert time(a_run(EXPERTS), ep=8)["ep_exchange"] == pytest.approx(moved / INSIDE)
    assert time(a_run({**EXPERTS, "shared_experts": 2}), ep=8)["ep_exchange"] == pytest.approx(moved / INSIDE)
    assert time(a_run(EXPERTS, gpus_per_node=4), ep=8)["ep_exchange"] == pytest.approx(moved / BETWEEN)
    assert time(a_run(EXPERTS), ep=1)["ep_exchange"] == 0
    # with sequence parallelism each rank sends its own part of the sequence: per micro-batch half, of twice as many
    split = time(a_run(EXPERTS), ep=4, tp=2, sequence_parallel=1)["ep_exchange"]
    assert split == pytest.approx(8 * LAYERS * 4 * MESSAGE / 2 * 2 * 3 / 4 / INSIDE)


def test_experts_that_exist_once_are_not_reduced_and_are_updated_whole() -> None:
    run = a_run(EXPERTS, gpus=8)
    dense = LAYERS * 4 * H**2 + 512 * H
    own = LAYERS * 8 * H**2  # one of eight experts
    parts = time(run, ep=8, zero_stage=1)
    assert parts["dp_inside"] == pytest.approx(2 * 2 * dense * 7 / 8 / INSIDE)
    assert parts["optimizer"] == pytest.approx((dense / 8 + own) * 20 / MEMORY)
    naive = 2 * 2 * (dense + own) * 7 / 8 / INSIDE
    assert naive / parts["dp_inside"] > 2.9


def test_shared_experts_are_reduced_with_the_dense_parameters() -> None:
    plain, shared = (time(a_run({**EXPERTS, "shared_experts": n}, gpus=8), ep=8)["dp_inside"] for n in (0, 2))
    assert shared - plain == pytest.approx(2 * 2 * LAYERS * 2 * 8 * H**2 * 7 / 8 / INSIDE)


def test_ring_attention_moves_keys_and_values_of_all_other_ranks() -> None:
    model = {**SMALL, "heads": 16}
    moved = 16 * LAYERS * 6 * (MESSAGE / 4) * 3  # micro-batches of a quarter of the sequence, three other ranks
    assert time(a_run(model), cp=4)["cp_exchange"] == pytest.approx(moved / INSIDE)
    grouped = time(a_run({**model, "kv_heads": 4}), cp=4)["cp_exchange"]
    assert grouped == pytest.approx(moved / 4 / INSIDE)
    assert time(a_run(model, gpus_per_node=2), cp=4)["cp_exchange"] == pytest.approx(moved / BETWEEN)
    assert time(a_run(model), cp=1)["cp_exchange"] == 0


# ---- laws


@settings(max_examples=150)
@given(RUNS, SOME_SETTINGS)
def test_components_are_finite_and_nonnegative_with_a_positive_sum(
    run: TransformerWorkload, at: dict[str, Any]
) -> None:
    parts = time_components(at, run)
    assert set(parts) == set(PRIORS)
    assert all(np.isfinite(part) and part >= 0 for part in parts.values())
    assert float(step_seconds(run, **at)) > 0


@settings(max_examples=25)
@given(RUNS, st.lists(LAYOUTS, min_size=1, max_size=6), st.sets(st.sampled_from(["tp", "dp", "recompute", "kernel"])))
def test_a_table_at_once_is_the_same_as_row_by_row(
    run: TransformerWorkload, rows: list[dict[str, Any]], held: set[str]
) -> None:
    """Also where some settings are one value for the whole table."""
    rows = [{**row, **{name: rows[0][name] for name in held}} for row in rows]
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0] if name not in held}
    table = time_components(columns | {name: rows[0][name] for name in held}, run)
    for name, part in table.items():
        alone = [float(time_components(row, run)[name]) for row in rows]
        np.testing.assert_allclose(np.broadcast_to(part, len(rows)), alone)


@settings(max_examples=150)
@given(RUNS, LAYOUTS)
def test_recompute_never_saves_time(run: TransformerWorkload, at: dict[str, Any]) -> None:
    full, selective, none = step_seconds(run, **{**at, "recompute": np.array(["full", "selective", "none"])})
    assert full >= none * (1 - 1e-9)
    assert selective >= none * (1 - 1e-9)


@settings(max_examples=150)
@given(RUNS, LAYOUTS)
def test_bubble_sends_and_waits_never_fall_with_more_stages(run: TransformerWorkload, at: dict[str, Any]) -> None:
    """At the same replicas and micro-batches, on more cards."""
    parts = time_components({**at, "pp": np.array([1, 2, 4, 8, 16])}, run)
    for name in ("bubble", "pp_sends", "pp_waits"):
        assert (np.diff(parts[name]) >= -1e-9 * parts[name][:-1]).all()
    share = parts["bubble"] / parts["matmul"]
    assert (np.diff(share) > 0).all()


@settings(max_examples=100)
@given(RUNS, LAYOUTS)
def test_interleaving_never_lengthens_the_bubble_nor_shortens_the_waits(
    run: TransformerWorkload, at: dict[str, Any]
) -> None:
    parts = time_components({**at, "vpp": np.array([1, 2, 4])}, run)
    assert (np.diff(parts["bubble"]) <= 0).all()
    assert (np.diff(parts["pp_waits"]) >= 0).all()


@settings(max_examples=100)
@given(RUNS, LAYOUTS)
def test_faster_links_and_memory_never_cost_time(run: TransformerWorkload, at: dict[str, Any]) -> None:
    """An H100 has more of everything than an A100."""

    def on(name: str, tflops: float) -> float:
        card = run.gpu.model_copy(update={"name": name, "peak_tflops_bf16": tflops})
        return float(step_seconds(run.model_copy(update={"gpu": card}), **at))

    assert on("H100", 989) <= on("A100", 312)


@pytest.mark.parametrize("name", ["", "Abacus 9"])
def test_a_step_on_an_unknown_card_takes_a_finite_time(name: str) -> None:
    run = a_run(LLAMA_3_8B, gpu={"name": name, "memory_gib": 80, "peak_tflops_bf16": 312})
    assert 1 < float(step_seconds(run, tp=8)) / float(step_seconds(a_run(LLAMA_3_8B), tp=8)) < 10
