"""A GPT: learned positions, pre-norm blocks, the output projection tied to the embedding."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from train import attention
from train.config import Config


def build(config: Config) -> nn.Module:
    """The model with its initial weights, which depend on the seed alone."""
    torch.manual_seed(config.seed)
    return GPT(config)


class Norm(nn.Module):
    """Layer normalisation, in 32 bits whatever the input is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        mean = wide.mean(dim=-1, keepdim=True)
        variance = (wide - mean).pow(2).mean(dim=-1, keepdim=True)
        normal = (wide - mean) / torch.sqrt(variance + 1e-5)
        return (normal * self.weight + self.bias).to(x.dtype)


class Attention(nn.Module):
    """Projections around `attention.attend`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.kernel = config.attention
        self.recomputes = config.recompute == "attention"
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, config.width, bias=False)
        self.value = nn.Linear(config.width, config.width, bias=False)
        self.output = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q = self.split(self.query(x))
        k = self.split(self.key(x))
        v = self.split(self.value(x))
        if self.recomputes:
            mixed = checkpoint(attention.attend, q, k, v, self.kernel, use_reentrant=False, preserve_rng_state=False)
        else:
            mixed = attention.attend(q, k, v, self.kernel)
        return self.output(mixed.transpose(1, 2).reshape(x.shape))

    def split(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) to (batch, heads, sequence, head width)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def gelu(x: Tensor) -> Tensor:
    """Gaussian error linear unit by its tanh form (Hendrycks & Gimpel, 1606.08415)."""
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


class FeedForward(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.feed_forward, bias=False)
        self.down = nn.Linear(config.feed_forward, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = Norm(config.width)
        self.attention = Attention(config)
        self.feed_forward_norm = Norm(config.width)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class GPT(nn.Module):
    """Tokens (batch, sequence) to logits (batch, sequence, vocabulary)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.recomputes = config.recompute == "full"
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.sequence_length, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = Norm(config.width)
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                # Projections back into the residual stream: smaller, as there are two of them a layer.
                is_residual = name.endswith(("output.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.layers) if is_residual else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.size(1), device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            if self.recomputes and torch.is_grad_enabled():
                x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(x)
        return functional.linear(self.norm(x), self.tokens.weight)
