"""Causal attention over (batch, heads, sequence, head width)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional


def attend(q: Tensor, k: Tensor, v: Tensor, kernel: str = "math") -> Tensor:
    """Every position looks at itself and what came before; `kernel` is `math` or `sdpa`."""
    if kernel == "sdpa":
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return masked_softmax_attention(q, k, v)


def masked_softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention with all scores in memory, softmax in 32 bits."""
    length = q.size(-2)
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    scores = q @ k.transpose(-2, -1)
    scores = scores / math.sqrt(q.size(-1))
    mask = torch.tril(torch.ones(length, length, dtype=torch.bool, device=q.device))
    scores = scores.masked_fill(~mask, float("-inf"))
    weights = torch.softmax(scores.float(), dim=-1).to(v.dtype)
    return (weights @ v).contiguous()
