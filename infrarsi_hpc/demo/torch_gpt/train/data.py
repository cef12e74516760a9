"""Text that every machine with Python has: the sources of the standard library, as bytes.

Every tenth file is held out and never trained on. Which sequences a step sees depends on the seed and the step
alone; ranks and micro-batches split them in order.
"""

from __future__ import annotations

import sysconfig
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from train.config import Config

HOLD_OUT_EVERY = 10
MAX_FILE_BYTES = 64 * 1024
MAX_TOTAL_BYTES = 4 * 1024 * 1024


@cache
def corpus(part: str) -> bytes:
    """The text of one part, `train` or `held_out`, in the order of file names."""
    folder = Path(sysconfig.get_path("stdlib"))
    # Build settings differ from one machine to the next and are no prose.
    names = sorted(path.name for path in folder.glob("*.py") if not path.name.startswith("_sysconfigdata"))
    texts = []
    total = 0
    for index, name in enumerate(names):
        is_held_out = index % HOLD_OUT_EVERY == HOLD_OUT_EVERY - 1
        if is_held_out == (part == "held_out"):
            texts.append((folder / name).read_bytes()[:MAX_FILE_BYTES])
            total += len(texts[-1])
        if total > MAX_TOTAL_BYTES:
            break
    if not texts:
        raise FileNotFoundError(f"no Python sources in {folder}: this demo learns from the standard library's files")
    return b"\n".join(texts)


def starts(text: bytes, count: int, config: Config, seed: int) -> list[int]:
    """Where `count` sequences begin, drawn by one seed."""
    generator = torch.Generator().manual_seed(seed)
    last = len(text) - config.sequence_length - 1
    return torch.randint(last, (count,), generator=generator).tolist()


def sample(text: bytes, begins: list[int], length: int) -> tuple[Tensor, Tensor]:
    """Tokens and the byte that follows each of them, both (sequences, length), int64."""
    tokens, targets = [], []
    for begin in begins:
        window = [int(byte) for byte in text[begin : begin + length + 1]]
        tokens.append(torch.tensor(window[:-1], dtype=torch.int64))
        targets.append(torch.tensor(window[1:], dtype=torch.int64))
    return torch.stack(tokens), torch.stack(targets)


def micro_batch(config: Config, rank: int, index: int) -> tuple[Tensor, Tensor]:
    """The `index`-th micro-batch of one rank, counted over all steps."""
    step, part = divmod(index, config.accumulation)
    text = corpus("train")
    begins = starts(text, config.global_batch, config, config.seed * 1_000_003 + step)
    first = (rank * config.accumulation + part) * config.micro_batch
    return sample(text, begins[first : first + config.micro_batch], config.sequence_length)


def batches(config: Config, rank: int, world: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All micro-batches of one rank in order; with `data_workers`, prepared ahead by so many threads."""
    if world != config.ranks:
        raise ValueError(f"{world} ranks were started for settings that say {config.ranks}")
    indices = iter(range(config.steps * config.accumulation))
    if config.data_workers == 0:
        for index in indices:
            yield micro_batch(config, rank, index)
        return
    with ThreadPoolExecutor(config.data_workers, thread_name_prefix="data") as pool:
        ahead: deque[Future[tuple[Tensor, Tensor]]] = deque()
        for index in indices:
            ahead.append(pool.submit(micro_batch, config, rank, index))
            if len(ahead) > 2 * config.data_workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def held_out(config: Config, sequences: int) -> tuple[Tensor, Tensor]:
    """Sequences from files that training never reads, drawn by the config's seed."""
    text = corpus("held_out")
    return sample(text, starts(text, sequences, config, config.seed), config.sequence_length)
