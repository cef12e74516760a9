"""What an allocator's message says about memory: how much was needed, and whether our own use met the limit.

Covers: every wording of torch 1.x and 2.x on CUDA, ROCm, XPU and MPS; caps; other processes on the card, also where a
container hides which of the listed processes is our own; figures that contradict each other.
Does not cover: two ranks of one job put on the same card by mistake; they look like a foreign process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

UNITS_GIB = {"bytes": 2**-30, "KiB": 2**-20, "MiB": 2**-10, "GiB": 1.0, "TiB": 2.0**10}
# MPS and DeepSpeed write GB and mean 2**30 bytes
UNITS_GIB |= {"KB": 2**-20, "MB": 2**-10, "GB": 1.0, "TB": 2.0**10}
SIZE = r"(\d{1,15}(?:\.\d{0,6})?) ?(bytes|[KMGT]i?B)"

#: A foreign process below this share of the card (a desktop, a monitor) is part of what the card is.
FOREIGN_SHARE = 0.02
#: Memory that nobody accounts for is a hidden process's only above this: contexts and NCCL's buffers are ours.
HIDDEN_SHARE = 0.15
HIDDEN_GIB = 2.0
#: Free memory above a request is no paradox while it is less than this share of the card: the card was full.
ROUNDING_SHARE = 0.01

#: No tensor of a training run is as large as this, a pebibyte.
ABSURD_GIB = 2.0**20

_REQUEST = re.compile(rf"\b(CUDA|HIP|[A-Z]{{3}}|MPS backend) out of memory\b.{{0,200}}?Tried to allocate {SIZE}")
_TOTAL = re.compile(rf"total capaci?ty of {SIZE}|{SIZE} total capacity")  # torch 2.1 wrote "capacty"
_FREE = re.compile(rf"of which {SIZE} is free|{SIZE} free")
_ALLOCATED = re.compile(rf"{SIZE} is allocated by PyTorch|{SIZE} already allocated|MPS allocated: {SIZE}")
_UNALLOCATED = re.compile(rf"{SIZE} is reserved by PyTorch but unallocated|{SIZE} cached")
_RESERVED = re.compile(rf"{SIZE} reserved in total by PyTorch")
_CAP = re.compile(rf"{SIZE} allowed\b")
_OWN = re.compile(rf"this process has {SIZE} memory in use")
_OTHER = re.compile(rf"Process \d{{1,10}} has {SIZE} memory in use")

_PEAKS = (
    # Megatron: MB there are 2**20 bytes
    re.compile(r"\bmax reserved: (\d{1,9}(?:\.\d{0,9})?)()"),
    re.compile(rf"\bMax_CA {SIZE}"),
    re.compile(r"\bmemory: +(\d{1,6}\.\d{1,4})(GiB)\(\d"),
    re.compile(rf"(?i:\bpeak (?:\w{{1,12}} ){{0,3}}(?:memory|mem|vram)(?: \w{{1,12}}){{0,3}} ?[:=]? ?){SIZE}"),
)


@dataclass(frozen=True)
class Allocation:
    """A failed allocation (GiB).

    `foreign_gib` is what others held of the card, where that decided; `is_paradox`: the request should have fitted.
    """

    backend: str
    requested_gib: float
    allocated_gib: float | None
    cap_gib: float | None
    foreign_gib: float | None
    is_paradox: bool
    free_gib: float | None
    total_gib: float | None = None

    @property
    def is_absurd(self) -> bool:
        """Whether no setting asks for so much: a size that was read from memory which something else has written."""
        return self.requested_gib >= ABSURD_GIB


def read_allocation(text: str) -> Allocation | None:
    """The allocator's message in a text, if there is one with a request that failed."""
    request = _REQUEST.search(text)
    if request is None:
        return None
    text = text[request.start() :]
    requested = to_gib(request[2], request[3])
    total, free, allocated, cap = (_first(p, text) for p in (_TOTAL, _FREE, _ALLOCATED, _CAP))
    reserved = _first(_RESERVED, text)
    if reserved is None and allocated is not None:
        reserved = allocated + (_first(_UNALLOCATED, text) or 0.0)
    segment = _segment_gib(requested)
    if cap is not None and free is not None and free < requested and reserved is not None and reserved + segment < cap:
        cap = None  # there was a cap, and yet it was the card that was full
    is_paradox = (
        cap is None
        and free is not None
        and (
            (total is not None and free > total)
            or (free >= 2 * segment and free - segment >= ROUNDING_SHARE * (total if total is not None else 25.0))
        )
    )
    foreign = None
    if cap is None and not is_paradox and total is not None:
        foreign = _foreign(text, total, free, reserved)
        if foreign is not None and (free or 0.0) + foreign < requested:
            foreign = None  # alone on the card it would not have fitted either
    return Allocation(request[1], requested, allocated, cap, foreign, is_paradox, free, total)


def read_peak(text: str) -> float | None:
    """The peak that a line says its rank has reached (GiB): Megatron, DeepSpeed, torchtitan and plain words."""
    if "max reserved: " not in text and "Max_CA " not in text and "memory: " not in text and "eak" not in text:
        return None
    for number, pattern in enumerate(_PEAKS):
        if (match := pattern.search(text)) is not None:
            gib = to_gib(match[1], match[2] or "MiB")
            # in plain words GB may mean 1e9 bytes; a bound must not be above the truth
            return gib * (1e9 / 2**30 if number == len(_PEAKS) - 1 and "i" not in match[2] else 1.0)
    return None


def to_gib(number: str, unit: str) -> float:
    """A printed size in GiB."""
    return float(number) * UNITS_GIB[unit]


def _first(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    if match is None:
        return None
    number, unit = (group for group in match.groups() if group is not None)
    return to_gib(number, unit)


def _foreign(text: str, total: float, free: float | None, reserved: float | None) -> float | None:
    """What other processes held of the card, where that is more than a desktop or a monitor would."""
    own = _first(_OWN, text)
    others = [to_gib(m[1], m[2]) for m in _OTHER.finditer(text)]
    slack = max(HIDDEN_GIB, HIDDEN_SHARE * total)
    if own is None and reserved is not None:
        # inside a container we do not know our own number: ours is the process that holds a little more than torch does
        own = min((size for size in others if 0.99 * reserved <= size <= reserved + slack), default=None)
        if own is not None:
            others.remove(own)
    if sum(others) > FOREIGN_SHARE * total:
        return sum(others)
    held = own or reserved  # "0 bytes" stands there where the driver does not tell
    if free is not None and held is not None and (hidden := total - free - held) > slack:
        return hidden
    return None


def _segment_gib(requested_gib: float) -> float:
    """What the allocator asks the driver for: 2 MiB for the smallest, 20 MiB up to 10 MiB, else steps of 2 MiB."""
    mib = requested_gib * 1024
    return (2.0 if mib <= 1 else 20.0 if mib < 10 else 2.0 * -(-mib // 2)) / 1024
