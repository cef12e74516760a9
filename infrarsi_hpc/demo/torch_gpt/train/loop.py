"""The training loop of one rank: set up, then step after step."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from train import data, loss, model, optimizer
from train.config import Config

# Parameters of glibc's mallopt(3).
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
#: The largest threshold that glibc takes on 64 bits.
_LARGEST_MMAP_THRESHOLD = 32 * 1024 * 1024


def train(config: Config) -> None:
    """Train one rank to the end. Rank 0 prints each step's loss (mean over all ranks) and seconds."""
    rank = int(os.environ.get("RANK", "0"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    torch.set_num_threads(config.threads)
    if config.allocator == "retain":
        keep_freed_memory()
    device = torch.device("cuda", local_rank) if config.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if config.ranks > 1:
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, timeout=timedelta(minutes=5))
    network = model.build(config).to(device)
    if config.compile == "on":
        compile_blocks(network, config, device)
    if config.ranks > 1:
        network = DistributedDataParallel(
            network, device_ids=[device] if device.type == "cuda" else None, bucket_cap_mb=config.bucket_mib
        )
    updates = optimizer.build(network.parameters(), config)
    run_steps(network, updates, config, rank, device)
    if config.ranks > 1:
        # The reducer holds the process group. Were it the last to let go, it would wait for the group's threads with
        # Python's lock held, and they wait for that lock to free the last tensor they reduced (torch 2.13, gloo).
        del network, updates
        gc.collect()
        distributed.destroy_process_group()


def run_steps(
    network: nn.Module, updates: torch.optim.Optimizer, config: Config, rank: int, device: torch.device
) -> None:
    """All optimizer steps. A step's loss is divided before `backward`, so that its gradient is the mean's."""
    micro_batches = data.batches(config, rank, config.ranks)
    for step in range(1, config.steps + 1):
        started = time.perf_counter()
        step_loss = torch.zeros((), device=device)
        for part in range(config.accumulation):
            tokens, targets = next(micro_batches)
            tokens, targets = tokens.to(device), targets.to(device)
            with synchronisation(network, config, is_last=part == config.accumulation - 1):
                with autocast(config):
                    logits = network(tokens)
                    part_loss = loss.loss(logits, targets) / config.accumulation
                part_loss.backward()
            step_loss += part_loss.detach()
        updates.step()
        updates.zero_grad(set_to_none=True)
        if config.ranks > 1:
            distributed.all_reduce(step_loss)
        if rank == 0:
            mean = step_loss.item() / config.ranks
            print(f"step {step} loss {mean:.6f} seconds {time.perf_counter() - started:.4f}", flush=True)


def autocast(config: Config) -> AbstractContextManager[object]:
    """Matrix products in bfloat16 where the settings say so."""
    if config.precision == "bf16":
        return torch.autocast(config.device, dtype=torch.bfloat16)
    return nullcontext()


def synchronisation(network: nn.Module, config: Config, is_last: bool) -> AbstractContextManager[object]:
    """Gradients are averaged over ranks after every micro-batch, or only after the step's last."""
    if isinstance(network, DistributedDataParallel) and config.gradient_sync == "last" and not is_last:
        return network.no_sync()
    return nullcontext()


def compile_blocks(network: nn.Module, config: Config, device: torch.device) -> None:
    """Compile the block that all layers share, now, so that no step waits for it."""
    x = torch.zeros(config.micro_batch, config.sequence_length, config.width, device=device, requires_grad=True)
    for block in network.blocks:
        block.compile()
    with autocast(config):
        y = network.blocks[0](x)
    y.sum().backward()
    network.zero_grad(set_to_none=True)


def keep_freed_memory() -> None:
    """Have malloc keep freed memory instead of giving it back: no page faults to get it again every step."""
    libc = ctypes.CDLL(None)
    mallopt = getattr(libc, "mallopt", None)
    if mallopt is None:
        print("allocator retain: this C library has no mallopt, left as it is", flush=True)
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
