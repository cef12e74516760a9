"""How things are said: to a person on a terminal, to a pipe, or as JSON. Everything untrusted is cleaned first."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from infrarsi_hpc.errors import InfrarsiError

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def clean(text: str) -> str:
    """Text without control characters and terminal escapes; line ends stay."""
    return _CONTROL.sub("", text)


def say(text: str = "") -> None:
    """One line or more to stdout."""
    print(clean(text))


def note(text: str) -> None:
    """One line to stderr: progress and remarks, which a pipe must not get."""
    with contextlib.suppress(OSError):  # a terminal that was closed must not end what runs
        print(clean(text), file=sys.stderr, flush=True)


def say_json(value: Any) -> None:
    """A value as JSON on stdout."""
    print(json.dumps(value, indent=2, default=str))


def say_error(error: InfrarsiError) -> None:
    """An error on stderr: what, why, what to do."""
    note(f"infrarsi: {error.what}")
    if error.why:
        note(f"  why: {error.why}")
    if error.fix:
        note(f"  fix: {error.fix}")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Plain aligned columns; numbers are right-aligned."""
    cells = [[clean(str(cell)) for cell in row] for row in rows]
    widths = [max(len(heading), *(len(row[i]) for row in cells), 0) for i, heading in enumerate(headings)]
    is_number = [all(re.fullmatch(r"[-+0-9.,x%–]*|-", row[i]) for row in cells) for i in range(len(headings))]

    def line(row: Sequence[str]) -> str:
        parts = (c.rjust(w) if n else c.ljust(w) for c, w, n in zip(row, widths, is_number, strict=True))
        return "  ".join(parts).rstrip()

    return "\n".join([line(list(headings)), line(["-" * w for w in widths]), *(line(row) for row in cells)])
