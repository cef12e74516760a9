"""Slurm's tables as rows by column name: separated by pipes, or in fixed columns above a line of dashes.

What stands before the header (a site's banner) is left out, and so is a header that comes again.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

MAX_ROWS = 500_000
_SEPARATORS = ("|", "\t", ";", "^")
#: Columns in which people write what they like, separators included.
_FREE = ("jobname", "name", "comment", "admincomment", "workdir", "submitline")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(frozen=True)
class Table:
    """`columns` in lower case; every row has as many cells, stripped. `lines` are the rows as they were written."""

    columns: tuple[str, ...]
    rows: tuple[dict[str, str], ...]
    lines: tuple[str, ...] = ()
    is_fixed_width: bool = False


def clean_lines(text: str) -> list[str]:
    """Lines without control characters, colours and trailing blanks."""
    return [_CONTROL.sub("", line).rstrip() for line in text.replace("\r", "\n").split("\n")]


def read_table(text: str, needed: Collection[str]) -> Table | None:
    """The table whose header has all the `needed` columns (lower case); none where there is no such header."""
    lines = clean_lines(text)
    wanted = set(needed)
    for at, line in enumerate(lines):
        for separator in _SEPARATORS:
            columns = _names(line.split(separator))
            if separator in line and wanted <= set(columns):
                return _separated(lines[at + 1 :], line, separator, columns)
        if at + 1 < len(lines) and re.fullmatch(r"-+( +-+)*", lines[at + 1].strip()):
            spans = [match.span() for match in re.finditer(r"-+", lines[at + 1])]
            columns = _names(_cells(line, spans))
            if wanted <= set(columns):
                return _fixed(lines[at + 2 :], spans, columns)
        if wanted == {*_names([line])}:  # one column alone has no separator
            return _separated(lines[at + 1 :], line, "|", _names([line]))
    return None


def _names(cells: list[str]) -> tuple[str, ...]:
    names = [cell.strip().partition("%")[0].lower() for cell in cells]
    while names and not names[-1]:  # --parsable ends its lines with a separator
        names.pop()
    return tuple(names)


def _separated(lines: list[str], header: str, separator: str, columns: tuple[str, ...]) -> Table:
    free = [at for at, name in enumerate(columns) if name in _FREE]
    rows, kept = [], []
    for line in lines[:MAX_ROWS]:
        if not line.strip() or line == header:
            continue
        cells = line.split(separator)
        if header.endswith(separator) and cells[-1] == "":
            cells.pop()
        surplus = len(cells) - len(columns)
        if surplus > 0 and len(free) == 1:
            at = free[0]
            cells[at : at + surplus + 1] = [separator.join(cells[at : at + surplus + 1])]
        rows.append(_row(columns, cells))
        kept.append(line)
    return Table(columns, tuple(rows), tuple(kept))


def _fixed(lines: list[str], spans: list[tuple[int, int]], columns: tuple[str, ...]) -> Table:
    kept = [line for line in lines[:MAX_ROWS] if line.strip() and not re.fullmatch(r"[- ]+", line)]
    kept = [line for line in kept if _names(_cells(line, spans)) != columns]
    rows = tuple(_row(columns, _cells(line, spans)) for line in kept)
    return Table(columns, rows, tuple(kept), is_fixed_width=True)


def _cells(line: str, spans: list[tuple[int, int]]) -> list[str]:
    return [line[start : None if at == len(spans) - 1 else end].strip() for at, (start, end) in enumerate(spans)]


def _row(columns: tuple[str, ...], cells: list[str]) -> dict[str, str]:
    padded = cells + [""] * (len(columns) - len(cells))
    return {name: cell.strip() for name, cell in zip(columns, padded, strict=False)}
