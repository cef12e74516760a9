"""A transformer's peak memory beside what the literature counts, and beside what a naive count says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformer_runs import GIB, LAYOUTS, LLAMA_3_8B, MIXTRAL_8X7B, RUNS, SMALL, SOME_SETTINGS, a_run, memory, peak_gib

from infrarsi_hpc.domain.knobs import Knob
from infrarsi_hpc.models.design import column
from infrarsi_hpc.workloads.transformer_layout import layout_of
from infrarsi_hpc.workloads.transformer_memory import PRIORS, memory_components
from infrarsi_hpc.workloads.transformer_workload import TransformerWorkload

KEPT = ("activations", "activations_whole", "attention_scores")
STATES = ("weights", "gradients", "optimizer_state")
#: Sequence, width and heads of the small model.
S, H, A = 2048, 1024, 16


def kept_bytes(run: TransformerWorkload, **at: Any) -> float:
    return GIB * sum(memory(run, **at)[name] for name in KEPT)


def state_bytes(run: TransformerWorkload, **at: Any) -> float:
    return GIB * sum(memory(run, **at)[name] for name in STATES)


# ---- activations: Korthikanti et al., 2205.05198, table 2

SBH, SCORES = 2.0 * S * H, 5.0 * A * S * S * 2  # micro-batch of 2
PER_LAYER: dict[str, tuple[dict[str, Any], float]] = {
    "no parallelism": ({"tp": 1}, 34 * SBH + SCORES),
    "tensor": ({"tp": 4}, (10 + 24 / 4) * SBH + SCORES / 4),
    "tensor and sequence": ({"tp": 4, "sequence_parallel": 1}, (34 * SBH + SCORES) / 4),
    "tensor, attention again": ({"tp": 4, "recompute": "selective"}, (10 + 24 / 4) * SBH),
    "tensor and sequence, attention again": (
        {"tp": 4, "sequence_parallel": 1, "recompute": "selective"}, 34 * SBH / 4,
    ),
    "a kernel that keeps no scores": ({"tp": 4, "sequence_parallel": 1, "kernel": "flash"}, 34 * SBH / 4),
    "everything again": ({"recompute": "full"}, 2 * SBH),
    "everything again, tensor": ({"tp": 4, "recompute": "full"}, 2 * SBH),
    "everything again, tensor and sequence": ({"tp": 4, "sequence_parallel": 1, "recompute": "full"}, 2 * SBH / 4),
    "context": ({"cp": 4}, (34 * SBH + SCORES) / 4),
}  # fmt: skip


@pytest.mark.parametrize(("at", "per_layer"), PER_LAYER.values(), ids=PER_LAYER.keys())
def test_each_further_layer_keeps_what_the_literature_counts(at: dict[str, Any], per_layer: float) -> None:
    few, many = (a_run({**SMALL, "layers": layers}) for layers in (4, 12))
    at = {"micro_batch": 2, "kernel": "torch", **at}
    assert (kept_bytes(many, **at) - kept_bytes(few, **at)) / 8 == pytest.approx(per_layer)


def test_tensor_parallelism_alone_does_not_split_everything() -> None:
    whole, split = (kept_bytes(a_run(), tp=tp) for tp in (1, 8))
    assert split / whole == pytest.approx((10 + 24 / 8) / 34)  # naive: an eighth
    assert split / whole > 3 / 8


def test_what_is_recomputed_has_its_insides_in_memory_once() -> None:
    one, eight = a_run({**SMALL, "layers": 1}), a_run()
    # its input is one of them: a single layer keeps the same either way, not two bytes more
    assert kept_bytes(one, recompute="full") == pytest.approx(kept_bytes(one))
    assert kept_bytes(eight, recompute="full") == pytest.approx((34 + 7 * 2) * S * H)  # naive: 8 x 2
    some = kept_bytes(eight, recompute="full", recompute_layers=3)
    assert some == pytest.approx((5 * 34 + 34 + 2 * 2) * S * H)
    alone = kept_bytes(eight, kernel="torch", recompute="selective") - 8 * 34 * S * H
    assert alone == pytest.approx(5 * A * S * S)  # the scores of one layer


def test_keys_and_values_of_fewer_heads_take_less() -> None:
    grouped = memory(a_run(LLAMA_3_8B))["activations"] * GIB / (32 * 2048)
    # queries and attention's output 4 h, keys and values 4 h / 4, three feed-forward matrices' worth of 16 bits
    assert grouped == pytest.approx(5 * 4096 + 6 * 14336)
    naive = memory(a_run({**LLAMA_3_8B, "kv_heads": None}))["activations"] * GIB / (32 * 2048)
    assert naive == pytest.approx(8 * 4096 + 6 * 14336)


def test_fused_norms_keep_less() -> None:
    plain, fused = (memory(a_run(), kernel=word)["activations_whole"] for word in ("flash", "flash + RMS kernel"))
    assert fused / plain == pytest.approx(8 / 10)


# ---- states: Rajbhandari et al., 1910.02054, figure 1 (7.5 billion parameters, 64 cards, Adam: GB of 10^9 bytes)


@pytest.mark.parametrize(("stage", "gb"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.88)])
def test_sharded_states_are_those_of_the_zero_paper(stage: int, gb: float) -> None:
    run = a_run(gpus=64)
    psi = memory(run)["weights"] * GIB / 2
    assert state_bytes(run, zero_stage=stage) / psi * 7.5 == pytest.approx(gb, rel=0.01)


@pytest.mark.parametrize(
    ("at", "a_parameter"),
    [
        ({}, 16),
        ({"gradient_dtype": "fp32"}, 18),
        ({"optimizer": "adamw8bit"}, 2 + 2 + 4 + 2),
        ({"optimizer": "lion"}, 2 + 2 + 4 + 4),
        ({"optimizer": "muon"}, 2 + 2 + 4 + 4),
        ({"optimizer": "adafactor"}, 2 + 2 + 4),
        ({"optimizer": "sgd"}, 2 + 2 + 4),
    ],
)
def test_states_a_parameter_follow_from_optimizer_and_gradients(at: dict[str, Any], a_parameter: float) -> None:
    run = a_run()
    psi = memory(run)["weights"] * GIB / 2
    assert state_bytes(run, **at) / psi == pytest.approx(a_parameter)


@pytest.mark.parametrize(
    ("is_tied", "pp", "matrices"), [(True, 1, 1), (False, 1, 2), (True, 2, 1), (False, 2, 1), (True, 4, 1)]
)
def test_tied_embeddings_are_one_matrix_on_one_stage_and_two_copies_on_two(
    is_tied: bool, pp: int, matrices: int
) -> None:
    run = a_run({**SMALL, "tied_embeddings": is_tied, "vocab": 50304})
    parameters = memory(run, pp=pp)["weights"] * GIB / 2
    assert parameters == pytest.approx(8 / pp * 12 * H**2 + matrices * 50304 * H)


def test_the_fullest_stage_has_the_layer_that_is_left_over() -> None:
    run = a_run({**SMALL, "layers": 30})
    layers = (memory(run, pp=4)["weights"] * GIB / 2 - 512 * H) / (12 * H**2)
    assert layers == pytest.approx(8)  # naive: 7.5


# ---- experts


def test_experts_are_spread_over_their_cards_and_sharded_over_the_copies_that_are_left() -> None:
    run = a_run(MIXTRAL_8X7B)
    dense = 32 * 2.5 * 4096**2 + 2 * 32000 * 4096
    experts = 32 * 8 * 3 * 4096 * 14336
    assert memory(run, ep=8)["weights"] * GIB / 2 == pytest.approx(dense + experts / 8)
    sharded = memory(run, ep=8, zero_stage=1)["optimizer_state"] * GIB / 12
    assert sharded == pytest.approx(dense / 16 + experts / 8 / 2)  # naive: experts / 8 / 16, as if each had 16 copies
    assert memory(run, ep=8, zero_stage=1)["optimizer_state"] > 5 * (dense + experts / 8) / 16 * 12 / GIB


def test_experts_that_fill_all_cards_are_not_split_by_tensor_parallelism_as_well() -> None:
    run = a_run({**SMALL, "experts": 64, "gated_mlp": True}, gpus=64)
    layer, attention = 3 * 1024 * 4096, 4 * 1024**2

    def experts(tp: int) -> float:
        parameters = memory(run, tp=tp, ep=64)["weights"] * GIB / 2
        return parameters - (8 * attention + 512 * H) / tp

    assert experts(1) == experts(2) == pytest.approx(8 * layer)  # naive: half with tp 2, as if there were 128 cards


def test_a_token_takes_the_room_of_the_experts_that_it_passes() -> None:
    def inside(model: dict[str, Any]) -> float:
        return memory(a_run(model))["activations"] * GIB / (8 * S)

    experts = {**SMALL, "experts": 8, "experts_per_token": 2, "shared_experts": 1}
    assert inside(SMALL) == 8 * H + 4 * 4096
    assert inside(experts) == 8 * H + 3 * 4 * 4096  # naive: all 8 experts


# ---- stages: 1F1B, the worst one is taken


@pytest.mark.parametrize(
    ("global_batch", "at", "in_flight"),
    [
        (16, {"pp": 4, "dp": 1}, 4),  # as many as stages, however many micro-batches follow
        (64, {"pp": 4, "dp": 1}, 4),
        (3, {"pp": 4, "dp": 1}, 3),  # fewer micro-batches than stages
        (16, {"pp": 1, "dp": 1}, 1),
        # Korthikanti et al., sec. 4.2.3: 1 + (p - 1) / (p v) of what 1F1B holds
        (16, {"pp": 4, "dp": 1, "vpp": 2}, 4 * (1 + 3 / 8)),
        (16, {"pp": 2, "dp": 1, "vpp": 4}, 2 * (1 + 1 / 8)),
        (4, {"pp": 4, "dp": 1, "vpp": 2}, 4),  # there are no more
    ],
)
def test_the_first_stage_holds_as_many_micro_batches_as_are_before_the_end(
    global_batch: int, at: dict[str, Any], in_flight: float
) -> None:
    run = a_run(global_batch=global_batch, gpus=at["pp"])
    assert kept_bytes(run, **at) == pytest.approx(in_flight * 8 / at["pp"] * 34 * S * H)


def interleaved_in_flight(pp: int, vpp: int, rank: int) -> float:
    """Micro-batches that a rank holds, counted chunk by chunk through Megatron-core's interleaved schedule."""
    held, most = 0, 0
    warm_up = 2 * (pp - rank - 1) + (vpp - 1) * pp
    for chunk in range(4 * pp * vpp):
        held += 1
        most = max(most, held)
        held -= chunk >= warm_up
    return most / vpp


@pytest.mark.parametrize(("pp", "vpp"), [(2, 2), (4, 2), (4, 4), (8, 2)])
def test_an_interleaved_last_stage_holds_nearly_as_many_micro_batches_as_the_first(pp: int, vpp: int) -> None:
    model = {**SMALL, "layers": 16}

    def in_flight(vocab: int) -> float:
        run = a_run({**model, "vocab": vocab}, gpus=pp, global_batch=64)
        return kept_bytes(run, pp=pp, vpp=vpp) / (16 / pp * 34 * S * H)

    assert in_flight(512) == pytest.approx(interleaved_in_flight(pp, vpp, 0))
    last = in_flight(4_000_000)  # a vocabulary so large that the last stage is the worst
    assert last == pytest.approx(interleaved_in_flight(pp, vpp, pp - 1))
    assert last > 1  # naive: one micro-batch, as without interleaving


def test_logits_make_the_last_stage_the_worst_and_micro_batches_in_flight_the_first() -> None:
    small, large = a_run(global_batch=16, gpus=4), a_run({**SMALL, "vocab": 256000}, global_batch=16, gpus=4)
    first, last = memory(small, pp=4), memory(large, pp=4)
    layer = 34 * S * H
    assert first["logits"] == 0
    assert GIB * sum(first[name] for name in KEPT) == pytest.approx(4 * 2 * layer)
    assert last["logits"] * GIB == pytest.approx(10 * S * 256000)  # 16 bits, fp32 and its gradient
    assert GIB * sum(last[name] for name in KEPT) == pytest.approx(1 * 2 * layer)
    # naive: either stage alone for both models
    embeddings = {name: last[name] for name in (*STATES, "buffers", "runtime")}
    on_first = sum(np.exp(PRIORS[name].mean) * part for name, part in (first | embeddings).items())
    assert float(peak_gib(large, pp=4)) > 1.2 * on_first


def test_a_single_stage_has_logits_and_all_layers() -> None:
    parts = memory(a_run(gpus=1))
    assert parts["logits"] * GIB == pytest.approx(10 * S * 512)
    assert memory(a_run(), tp=8)["logits"] == pytest.approx(parts["logits"] / 8)
    assert GIB * sum(parts[name] for name in KEPT) == pytest.approx(8 * 34 * S * H)


# ---- buffers


def test_stage_3_has_two_whole_layers_at_hand_and_stage_1_a_bucket() -> None:
    run = a_run({**SMALL, "vocab": 50304})
    dense = memory(run)["weights"] * GIB / 2
    assert memory(run, zero_stage=0)["buffers"] == 0
    assert memory(run, zero_stage=1)["buffers"] * GIB == pytest.approx(0.5 * dense)
    assert memory(run, zero_stage=3)["buffers"] * GIB == pytest.approx(2 * 2 * 12 * H**2)
    assert memory(a_run(MIXTRAL_8X7B), ep=4, zero_stage=3)["buffers"] * GIB == pytest.approx(
        4 * (2.5 * 4096**2 + 8 / 4 * 3 * 4096 * 14336)
    )


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_single_card_gathers_nothing(stage: int) -> None:
    assert memory(a_run(gpus=1), zero_stage=stage) == memory(a_run(gpus=1))


# ---- laws


@settings(max_examples=150)
@given(RUNS, SOME_SETTINGS)
def test_components_are_finite_and_nonnegative_with_a_positive_sum(
    run: TransformerWorkload, at: dict[str, Any]
) -> None:
    parts = memory_components(at, run)
    assert set(parts) == set(PRIORS)
    assert all(np.isfinite(part) and part >= 0 for part in parts.values())
    assert float(peak_gib(run, **at)) > 0


@settings(max_examples=25)
@given(RUNS, st.lists(LAYOUTS, min_size=1, max_size=6), st.sets(st.sampled_from(["tp", "dp", "recompute", "kernel"])))
def test_a_table_at_once_is_the_same_as_row_by_row(
    run: TransformerWorkload, rows: list[dict[str, Any]], held: set[str]
) -> None:
    """Also where some settings are one value for the whole table."""
    rows = [{**row, **{name: rows[0][name] for name in held}} for row in rows]
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0] if name not in held}
    table = memory_components(columns | {name: rows[0][name] for name in held}, run)
    for name, part in table.items():
        alone = [float(memory_components(row, run)[name]) for row in rows]
        np.testing.assert_allclose(np.broadcast_to(part, len(rows)), alone)


@settings(max_examples=150)
@given(RUNS, LAYOUTS)
def test_memory_never_falls_with_the_micro_batch(run: TransformerWorkload, at: dict[str, Any]) -> None:
    peaks = peak_gib(run, **{**at, "micro_batch": np.array([1, 2, 4, 8, 16, 32])})
    assert (np.diff(peaks) >= -1e-9 * peaks[:-1]).all()


@settings(max_examples=150)
@given(RUNS, LAYOUTS)
def test_memory_never_rises_with_the_stage_of_sharding(run: TransformerWorkload, at: dict[str, Any]) -> None:
    peaks = peak_gib(run, **{**at, "zero_stage": np.arange(4)})
    assert (np.diff(peaks) <= 1e-9 * peaks[:-1]).all()


@settings(max_examples=150)
@given(RUNS, LAYOUTS, st.sampled_from([1, 2, 3]))
def test_more_sharding_ranks_never_need_more_memory(run: TransformerWorkload, at: dict[str, Any], stage: int) -> None:
    """At the same micro-batch."""
    ranks = np.array([1, 2, 4, 16, 128])
    peaks = peak_gib(run, **{**at, "dp": ranks, "zero_stage": stage})
    assert (np.diff(peaks) <= 1e-9 * peaks[:-1]).all()


@pytest.mark.parametrize("dp", [1, 2, 16])
def test_without_sharding_more_ranks_save_no_states(dp: int) -> None:
    assert state_bytes(a_run(), dp=dp, zero_stage=0) == state_bytes(a_run(), dp=1, zero_stage=0)


@settings(max_examples=150)
@given(RUNS, LAYOUTS)
def test_recompute_never_needs_more_memory(run: TransformerWorkload, at: dict[str, Any]) -> None:
    words = np.array(["full", "selective", "none"])
    full, selective, none = peak_gib(run, **{**at, "recompute": words})
    assert full <= none * (1 + 1e-9)
    assert selective <= none * (1 + 1e-9)


@settings(max_examples=60)
@given(RUNS, LAYOUTS)
def test_no_more_than_every_micro_batch_is_in_flight(run: TransformerWorkload, at: dict[str, Any]) -> None:
    layout = layout_of(at, run)
    at = {**at, "recompute": "none", "kernel": "flash"}
    held = memory(run, **at)["activations"] * float(layout.tp) / float(layout.tokens) / float(layout.stage_layers)
    a_layer = (4 + 4 * run.model.kv_share) * run.model.hidden
    a_layer += 2 * (3 if run.model.gated_mlp else 2) * run.model.ffn * run.model.active_experts
    assert held * GIB / a_layer <= max(float(layout.num_micro), 1) * (1 + 1e-9)


def test_columns_of_the_search_are_understood() -> None:
    """Words come as numpy text and numbers as floats."""
    word = column(Knob(values=("none", "full"), baseline="none", flag="--recompute"), ["none", "full"])
    parts = memory_components({"recompute": word, "micro_batch": np.array([1.0, 2.0])}, a_run())
    assert parts["activations_whole"].shape == (2,)
