"""The order, lengths and seeds of a promotion's runs, drawn so that no program and no drift can prepare for them.

Both arms of a pair run at the same two lengths under the same seeds, next to each other in time: the baseline arm is
then the reference for the candidate's evidence, and what drifts more slowly than a pair cancels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Arm = Literal["baseline", "candidate"]
_ORDERS: tuple[tuple[Arm, Arm], ...] = (("baseline", "candidate"), ("candidate", "baseline"))
#: Lengths vary by up to this share around what the contract says.
_LENGTH_SPREAD = 0.25


@dataclass(frozen=True)
class Pair:
    """One baseline run and one candidate run."""

    order: tuple[Arm, Arm]
    #: Steps of the runs of either arm; both lengths, in random order.
    lengths: tuple[int, int]
    seed: int
    evaluation_seed: int


def schedule(num_pairs: int, short_steps: int, long_steps: int, rng: np.random.Generator) -> list[Pair]:
    """Draw a block of pairs.

    Each arm comes first in half of the pairs (for an odd number, one of them once more, at random), in random order:
    who runs second finds warm files and a warmer machine. Lengths lie within a quarter of `short_steps` and
    `long_steps`, and the long one is at least twice the short one.
    """
    firsts = [index % 2 for index in range(num_pairs - num_pairs % 2)]
    firsts += [int(rng.integers(2))] * (num_pairs % 2)
    pairs = []
    for first in rng.permutation(firsts):
        short = _around(short_steps, rng)
        long = max(2 * short, _around(long_steps, rng))
        lengths = (short, long) if rng.integers(2) else (long, short)
        seed, evaluation_seed = (int(value) for value in rng.integers(2**31, size=2))
        pairs.append(Pair(_ORDERS[int(first)], lengths, seed, evaluation_seed))
    return pairs


def _around(steps: int, rng: np.random.Generator) -> int:
    reach = int(_LENGTH_SPREAD * steps)
    return max(2, int(rng.integers(steps - reach, steps + reach, endpoint=True)))
