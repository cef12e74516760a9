"""AdamW, with the gradient's norm clipped before every step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from train.config import Config


def build(parameters: Iterable[nn.Parameter], config: Config) -> torch.optim.Optimizer:
    """The optimizer; weight decay applies to matrices only."""
    trained = list(parameters)
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups,
        lr=config.learning_rate,
        betas=config.betas,
        foreach=config.optimizer == "foreach",
        fused=config.optimizer == "fused",
    )

    def clip(*_: Any) -> None:
        clip_gradients(trained, config.clip_norm)

    optimizer.register_step_pre_hook(clip)
    return optimizer


@torch.no_grad()
def clip_gradients(parameters: list[nn.Parameter], limit: float) -> None:
    """Scale all gradients so that their joint norm is at most `limit`."""
    total = 0.0
    for parameter in parameters:
        if parameter.grad is not None:
            total += parameter.grad.float().norm().item() ** 2
    scale = limit / (total**0.5 + 1e-6)
    if scale < 1.0:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(scale)
