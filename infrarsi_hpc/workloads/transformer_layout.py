"""How a transformer is spread over cards: columns of settings turned into sizes that memory and time are counted from.

Settings that a table or contract leaves out follow from the others: data-parallel ranks are what is left of the cards,
the stage of sharding is the optimizer's (the knob's where its value names one, else the workload's). Words are
understood by what they contain, so that `flash_attention2`, `flash-attn` and `flash` are all the kernel that keeps no
scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from infrarsi_hpc.models.basis import BoolArray, FloatArray, Settings
from infrarsi_hpc.workloads.settings import number, words_with
from infrarsi_hpc.workloads.transformer_workload import TransformerModel, TransformerWorkload

#: What these knobs stand at where they are left out; others (dp, zero_stage) follow from the workload.
DEFAULTS: dict[str, Any] = {
    "tp": 1, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch": 1, "sequence_parallel": 0,
    "recompute": "none", "recompute_layers": 0, "kernel": "flash", "optimizer": "", "gradient_dtype": "bf16",
}  # fmt: skip
#: Frameworks that differ: nanotron reduces and scatters under tensor parallelism (its `tp_mode`) and, as Megatron-core
#: does with bf16, adds gradients up in fp32.
_OF_FRAMEWORKS: dict[str, dict[str, Any]] = {
    "nanotron": {"sequence_parallel": 1, "gradient_dtype": "fp32"},
    "megatron": {"gradient_dtype": "fp32"},
}
#: Bytes a parameter of fp32 weights and states, by the optimizer's name; others keep two fp32 states as Adam does (12).
#: One state of a byte each where 8 bits, one fp32 state where there is momentum alone, none to speak of.
_OPTIMIZER_BYTES = {6.0: ("8bit",), 8.0: ("lion", "muon"), 4.0: ("sgd", "adafactor")}
#: Stages of sharding by what an optimizer's name contains.
_SHARDING = {
    3.0: ("zero3", "zero-3", "zero_3", "fsdp"),
    2.0: ("zero2", "zero-2", "zero_2"),
    1.0: ("zero1", "zero-1", "zero_1", "distributed"),
}
#: Knobs that the formulas know.
KNOWN = frozenset({*DEFAULTS, "dp", "zero_stage", "attention"})


@dataclass(frozen=True)
class Layout:
    """One column of each size; shapes broadcast.

    Attributes
    ----------
    num_micro
        Micro-batches a replica and step (a fraction where they do not divide the batch: no such layout can run).
    tokens
        Tokens of one micro-batch on one card: the sequence is split by context parallelism.
    stage_layers
        Layers of the fullest pipeline stage.
    zero
        Stage of sharding over data-parallel ranks, 0 to 3.
    sequence_shards
        Ranks that share what tensor parallelism alone would keep whole: tp with sequence parallelism, else 1.
    is_full, is_selective
        Recompute of whole layers, or of attention alone. `full_layers`: how many layers of a stage are.
    keeps_scores
        The attention kernel writes scores of every head to memory.
    gradient_bytes, optimizer_bytes
        A parameter.
    """

    tp: FloatArray
    pp: FloatArray
    dp: FloatArray
    cp: FloatArray
    ep: FloatArray
    vpp: FloatArray
    micro_batch: FloatArray
    num_micro: FloatArray
    tokens: FloatArray
    stage_layers: FloatArray
    zero: FloatArray
    sequence_shards: FloatArray
    is_full: BoolArray
    is_selective: BoolArray
    full_layers: FloatArray
    keeps_scores: BoolArray
    has_fused_norm: BoolArray
    gradient_bytes: FloatArray
    optimizer_bytes: FloatArray

    @property
    def model_ranks(self) -> FloatArray:
        """Cards of one replica."""
        return self.tp * self.pp * self.cp

    @property
    def dense_ranks(self) -> FloatArray:
        """Cards that hold the same dense parameters."""
        return self.dp * self.cp

    @property
    def expert_ranks(self) -> FloatArray:
        """Cards that hold the same experts."""
        ranks: FloatArray = np.maximum(self.dense_ranks / self.ep, 1.0)
        return ranks

    @property
    def expert_tp(self) -> FloatArray:
        """Cards that one expert is split over: where experts need tensor-parallel ranks as well, less than tp."""
        shards: FloatArray = self.tp * np.minimum(self.dense_ranks / self.ep, 1.0)
        return shards


def parameters_held(at: Layout, model: TransformerModel) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Parameters a card, before sharding, on the fullest stage that has an embedding: of layers, embeddings, experts.

    A dense model's feed-forward parts are among its layers. Embedding and output projection lie on the first and last
    stage; on a single stage they are one matrix where they are tied.
    """
    num_embeddings = np.where((at.pp == 1) & (not model.tied_embeddings), 2.0, 1.0)
    shared = model.attention_parameters + model.shared_experts * model.expert_parameters
    split = model.expert_parameters * model.experts / at.ep
    dense, routed = (shared + split, 0.0 * split) if model.experts == 1 else (shared + 0.0 * split, split)
    return (
        at.stage_layers * dense / at.tp,
        num_embeddings * model.embedding_parameters / at.tp,
        at.stage_layers * routed / at.expert_tp,
    )


def layout_of(settings: Settings, workload: TransformerWorkload) -> Layout:
    """Sizes for columns of settings.

    Raises
    ------
    InputRefused
        A knob that the formulas take a number of has words.
    """
    tp, pp, cp, ep = (np.maximum(number(settings, name, DEFAULTS), 1.0) for name in ("tp", "pp", "cp", "ep"))
    left = np.maximum(workload.gpus / (tp * pp * cp), 1e-9)
    dp = np.maximum(number(settings, "dp", {"dp": left}), 1e-9)
    micro_batch = np.maximum(number(settings, "micro_batch", DEFAULTS), 1e-9)
    zero = number(settings, "zero_stage", {"zero_stage": _zero_of(settings, workload.optimizer)})
    stage_layers = np.ceil(workload.model.layers / pp)
    is_full = words_with(settings, "recompute", ("full", "every", "block", "uniform"), DEFAULTS)
    some = number(settings, "recompute_layers", DEFAULTS)
    kernel = "attention" if "attention" in settings and "kernel" not in settings else "kernel"
    is_flash = words_with(settings, kernel, ("flash", "sdpa", "cudnn", "xformers", "efficient"), {kernel: "flash"})
    optimizer = {"optimizer": workload.optimizer}
    usual = DEFAULTS | _OF_FRAMEWORKS.get(workload.framework.partition("-")[0].lower(), {})
    is_bf16 = words_with(settings, "gradient_dtype", ("bf16", "fp16", "half"), usual)
    sequence_parallel = _is_on(settings, "sequence_parallel", usual)
    return Layout(
        tp=tp, pp=pp, dp=dp, cp=cp, ep=ep,
        vpp=np.maximum(number(settings, "vpp", DEFAULTS), 1.0),
        micro_batch=micro_batch,
        num_micro=workload.global_batch / (dp * micro_batch),
        tokens=micro_batch * workload.seq_len / cp,
        stage_layers=stage_layers,
        zero=zero,
        sequence_shards=np.where(sequence_parallel, tp, 1.0),
        is_full=is_full,
        is_selective=words_with(settings, "recompute", ("select", "attention", "core"), DEFAULTS),
        full_layers=np.where(is_full, np.where(some > 0, np.minimum(some, stage_layers), stage_layers), 0.0),
        keeps_scores=~is_flash,
        has_fused_norm=words_with(settings, kernel, ("rms", "norm"), {kernel: ""}),
        gradient_bytes=np.where(is_bf16, 2.0, 4.0),
        optimizer_bytes=np.select(
            [words_with(settings, "optimizer", words, optimizer) for words in _OPTIMIZER_BYTES.values()],
            list(_OPTIMIZER_BYTES),
            12.0,
        ),
    )  # fmt: skip


def _zero_of(settings: Settings, optimizer: str) -> FloatArray:
    """The stage of sharding that an optimizer's name says; a distributed optimizer shards as stage 1."""

    def stage(of: Settings) -> FloatArray:
        found = [words_with(of, "optimizer", words, {"optimizer": ""}) for words in _SHARDING.values()]
        stages: FloatArray = np.select(found, list(_SHARDING), 0.0)
        return stages

    own = stage(settings)
    return np.where(own > 0, own, stage({"optimizer": optimizer}))


def _is_on(settings: Settings, name: str, defaults: Mapping[str, Any]) -> BoolArray:
    values = np.asarray(settings.get(name, defaults[name]))
    if values.dtype.kind in "iufb":
        is_nonzero: BoolArray = values.astype(float) != 0
        return is_nonzero
    on: BoolArray = np.isin(np.char.lower(values.astype(str)), ("1", "on", "true", "yes"))
    return on


def broken_rules(settings: Settings, workload: TransformerWorkload) -> list[tuple[BoolArray, str]]:
    """For each rule, where it is broken and why that cannot run.

    Divisions as every framework checks them (of heads of keys and values: unless each is on several cards); at least
    as many micro-batches as stages less one (nanotron's 1F1B engine asserts it, Megatron-core's interleaved one asks
    for more); groups of cards as Narayanan et al. (2104.04473, sec. 3). Experts may lie across all cards of a stage
    (Megatron-core's parallel folding, 2504.14960).
    """
    at, model = layout_of(settings, workload), workload.model
    kv_heads = model.kv_heads or model.heads
    whole = np.round(at.num_micro)
    divides = (np.abs(at.num_micro - whole) < 1e-6) & (whole >= 1)
    ranks = at.model_ranks * at.dp
    return [
        (np.abs(ranks - workload.gpus) > 1e-6, f"tp x pp x cp x dp is not the {workload.gpus} cards"),
        (~divides, f"dp x micro_batch does not divide the global batch of {workload.global_batch}"),
        (divides & (whole < at.pp - 1), "there are fewer micro-batches than pipeline stages less one"),
        (at.pp * at.vpp > model.layers, f"there are more pipeline stages than the {model.layers} layers"),
        (model.heads % at.tp != 0, f"tp does not divide the {model.heads} heads"),
        (
            (kv_heads < model.heads) & (kv_heads % at.tp != 0) & (at.tp % kv_heads != 0),
            f"tp does not divide the {kv_heads} key and value heads",
        ),
        (model.ffn % at.tp != 0, f"tp does not divide the feed-forward width of {model.ffn}"),
        (model.experts % at.ep != 0, f"ep does not divide the {model.experts} experts"),
        (at.tp * at.cp * at.dp % at.ep != 0, "ep does not divide tp x cp x dp"),
        ((at.cp > 1) & (workload.seq_len % (2 * at.cp) != 0), "2 x cp does not divide the sequence"),
        ((at.vpp > 1) & (whole % at.pp != 0), "interleaved stages need micro-batches in multiples of pp"),
    ]
