"""A transformer training run as data: model, batch, cluster and card. What must stay the same while knobs move."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1, le=10**9)]

#: Memory bandwidth, and links to cards of the same node and of other nodes, bytes a second and direction, by what the
#: card's name contains. Vendors' data sheets; between nodes one adapter a card of the card's generation.
_CARDS: tuple[tuple[str, float, float, float], ...] = (
    ("B200", 8.0e12, 900e9, 50e9),
    ("GH200", 4.9e12, 450e9, 25e9),  # before H200, whose name it contains
    ("H200", 4.8e12, 450e9, 50e9),
    ("H100", 3.35e12, 450e9, 50e9),
    ("H800", 3.35e12, 200e9, 50e9),
    ("MI300", 5.3e12, 448e9, 50e9),
    ("MI250", 1.6e12, 150e9, 25e9),
    ("A100", 2.0e12, 300e9, 25e9),
    ("A800", 2.0e12, 200e9, 25e9),
    ("V100", 0.9e12, 150e9, 12.5e9),
)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=False)


class TransformerModel(_Part):
    """Sizes of the model; experts are those of every layer, 1 for a dense one.

    Attributes
    ----------
    ffn
        Width of the feed-forward part, of one expert where there are several.
    shared_experts
        Experts that every token passes beside the routed ones.
    """

    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count | None = None
    ffn: Count
    vocab: Annotated[int, Field(ge=2, le=10**8)]
    gated_mlp: bool = True
    tied_embeddings: bool = False
    experts: Count = 1
    experts_per_token: Count = 1
    shared_experts: Annotated[int, Field(ge=0, le=10**4)] = 0

    @property
    def attention_parameters(self) -> float:
        """Matrices of one layer's attention: query and output, and keys and values of their own number of heads."""
        return self.hidden**2 * (2 + 2 * self.kv_share)

    @property
    def kv_share(self) -> float:
        """Heads of keys and values, as a share of those of queries."""
        return (self.kv_heads or self.heads) / self.heads

    @property
    def active_experts(self) -> int:
        """Feed-forward parts that a token passes in one layer."""
        return self.experts_per_token + self.shared_experts if self.experts > 1 else 1

    @property
    def expert_parameters(self) -> float:
        """Matrices of one feed-forward part: two, and a third where it is gated."""
        return float((3 if self.gated_mlp else 2) * self.hidden * self.ffn)

    @property
    def embedding_parameters(self) -> float:
        """Of the embedding, and as many of the output projection."""
        return float(self.vocab * self.hidden)


class Card(_Part):
    """One accelerator. `memory_gib` is its nominal size."""

    name: Annotated[str, Field(max_length=200)] = ""
    memory_gib: Annotated[float, Field(gt=0, le=10**5, allow_inf_nan=False)]
    peak_tflops_bf16: Annotated[float, Field(gt=0, le=10**6, allow_inf_nan=False)]

    @property
    def peak_flops(self) -> float:
        """FLOP/s of dense bf16 matrix products."""
        return 1e12 * self.peak_tflops_bf16

    @property
    def bandwidths(self) -> tuple[float, float, float]:
        """Memory, links inside a node, link between nodes: bytes a second; of an unknown card by its FLOP/s."""
        for name, *found in _CARDS:
            if re.search(rf"{name}(?!\d)", self.name, re.I):  # an RTX A1000 is no A100
                return (found[0], found[1], found[2])
        return (self.peak_flops / 200, self.peak_flops / 1500, self.peak_flops / 15000)


class TransformerWorkload(_Part):
    """A transformer, its batch and the cards that it is trained on.

    `optimizer` may name a stage of sharding (`zero1-adamw`): what every configuration has whose own knobs do not say.
    """

    model: TransformerModel
    seq_len: Count
    global_batch: Count
    gpus: Count
    gpus_per_node: Count = 8
    gpu: Card
    optimizer: Annotated[str, Field(max_length=100)] = "adamw"
    framework: Annotated[str, Field(max_length=100)] = ""

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step consumes over all cards."""
        return self.global_batch * self.seq_len
