"""The training objective: mean cross-entropy of the next byte."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all positions of -log p(target); logits (..., vocabulary), targets (...)."""
    vocabulary = logits.size(-1)
    flat = logits.float().reshape(-1, vocabulary)
    shifted = flat - flat.max(dim=-1, keepdim=True).values
    probabilities = shifted.exp() / shifted.exp().sum(dim=-1, keepdim=True)
    chosen = functional.one_hot(targets.reshape(-1), vocabulary).to(flat.dtype)
    log_likelihood = (torch.log(probabilities + 1e-9) * chosen).sum(dim=-1)
    return -log_likelihood.mean()
