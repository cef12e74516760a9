"""Durations, times, memory, exit codes and node lists as Slurm prints them. Unknown is none, nonsense a ValueError."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from infrarsi_hpc.domain.site import parse_time_limit

MAX_NODES = 20_000
MAX_LENGTH = 200_000

_NOTHING = {"", "N/A", "NONE", "UNKNOWN", "(NULL)", "NULL", "NONE ASSIGNED", "INVALID", "NOT_SET", "NO_VAL"}
_NO_LIMIT = {"UNLIMITED", "INFINITE", "PARTITION_LIMIT"}
_ELAPSED = re.compile(r"(?:([0-9]{1,6})-)?(?:([0-9]{1,6}):)?([0-9]{1,6}):([0-9]{1,2})(?:\.[0-9]{1,9})?")
_MEMORY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([KMGTPE]?)(?:I?B)?([NC]?)", re.IGNORECASE)
_GIB = {"": 2.0**-30, "K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10, "P": 2.0**20, "E": 2.0**30}
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?"
)


@dataclass(frozen=True)
class Memory:
    """An amount, and what it is an amount for; 0 GiB of a request means all of the node's."""

    gib: float
    per: Literal["", "node", "cpu"] = ""


def parse_elapsed(text: str) -> int | None:
    """Whole seconds of `D-HH:MM:SS`, `HH:MM:SS`, `MM:SS.mmm` or plain seconds; none where Slurm does not know."""
    word = text.strip()
    if word.upper() in _NOTHING | _NO_LIMIT:
        return None
    if re.fullmatch(r"[0-9]{1,12}", word):
        return int(word)
    match = _ELAPSED.fullmatch(word)
    if match is None:
        raise ValueError(f"{word[:80]!r} is no duration")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    if days and match[2] is None:
        raise ValueError(f"{word[:80]!r} is no duration: days without hours")
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def parse_limit(text: str) -> int | None:
    """Seconds of a time limit, plain numbers being minutes; none for no limit, the partition's, or an invalid one."""
    word = text.strip()
    if word.upper() in _NOTHING | _NO_LIMIT:
        return None
    return parse_time_limit(word)


def duration_seconds(elapsed: int | None, started_at: float | None, ended_at: float | None) -> int | None:
    """How long it ran: Slurm's own count, else the difference of the times; none where that would be negative.

    Local times repeat in the night that daylight saving ends, so an end may stand before its start.
    """
    if elapsed is not None:
        return max(0, elapsed)
    if started_at is None or ended_at is None or ended_at < started_at:
        return None
    return int(ended_at - started_at)


def parse_memory(text: str, plain_unit: Literal["", "K", "M"] = "M") -> Memory | None:
    """`4000M`, `16Gn` (a node), `2Gc` (a CPU), `1.50T`; a plain number is in `plain_unit`, empty for bytes."""
    word = text.strip()
    if word.upper() in _NOTHING:
        return None
    match = _MEMORY.fullmatch(word)
    if match is None:
        raise ValueError(f"{word[:80]!r} is no amount of memory")
    per: Literal["", "node", "cpu"] = {"N": "node", "C": "cpu"}.get(match[3].upper(), "")  # type: ignore[assignment]
    return Memory(float(match[1]) * _GIB[match[2].upper() or plain_unit], per)


def parse_time(text: str) -> float | None:
    """Unix seconds of a local ISO time or an epoch; none for `Unknown`, `None` and 0."""
    word = text.strip()
    if word.upper() in _NOTHING:
        return None
    if re.fullmatch(r"[0-9]{1,11}", word):
        return float(word) or None
    if not _TIME.fullmatch(word):
        raise ValueError(f"{word[:80]!r} is no time")
    try:
        return datetime.fromisoformat(word).timestamp()
    except (OverflowError, OSError) as error:
        raise ValueError(f"{word[:80]!r} is no time of this clock's") from error


def parse_exit(text: str) -> tuple[int, int] | None:
    """Exit code and signal of `3:0`; none where it is empty."""
    word = text.strip()
    if word.upper() in _NOTHING:
        return None
    match = re.fullmatch(r"([0-9]{1,5})(?::([0-9]{1,5}))?", word)
    if match is None:
        raise ValueError(f"{word[:80]!r} is no exit code")
    return int(match[1]), int(match[2] or 0)


def expand_nodes(text: str) -> tuple[str, ...]:
    """Names in `g[004-005,7],h1`; empty for `None assigned` and `(null)`.

    Raises
    ------
    ValueError
        It is no node list, or names more than `MAX_NODES` nodes.
    """
    word = text.strip()
    if word.upper() in _NOTHING:
        return ()
    if len(word) > MAX_LENGTH:
        raise ValueError("a node list of unreasonable length")
    names: list[str] = []
    for part in _outside_brackets(word):
        names += _expand_name(part, MAX_NODES - len(names))
    return tuple(names)


def _outside_brackets(text: str) -> list[str]:
    """Split at commas that stand outside brackets."""
    if not re.fullmatch(r"(?:[^\[\]]|\[[^\[\]]*\])*", text):
        raise ValueError(f"{text[:80]!r} is no node list")
    return re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)


def _expand_name(text: str, room: int) -> list[str]:
    names = [""]
    for piece in re.findall(r"\[[^\]]*\]|[^\[]+", text.strip()):
        if piece.startswith("["):
            numbers = _numbers(piece[1:-1], room)
            if len(names) * len(numbers) > room:
                raise ValueError(f"more than {MAX_NODES} nodes")
            names = [name + number for name in names for number in numbers]
        elif re.fullmatch(r"[A-Za-z0-9_.-]{1,200}", piece):
            names = [name + piece for name in names]
        else:
            raise ValueError(f"{text[:80]!r} is no node's name")
    if names == [""] or len(names) > room:
        raise ValueError(f"{text[:80]!r} is no node's name" if names == [""] else f"more than {MAX_NODES} nodes")
    return names


def _numbers(text: str, room: int) -> list[str]:
    """`004-005,7` as text: a range keeps the width of its first number."""
    found: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip())
        if match is None:
            raise ValueError(f"{text[:80]!r} is no range of nodes")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or len(found) + last - first + 1 > room:
            raise ValueError(f"{part[:80]!r} is no range of at most {MAX_NODES} nodes")
        found += [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]
    return found
