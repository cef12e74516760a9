"""A log's lines as their program wrote them: without colours and labels, with the rank and the time that these named.

Launchers put a rank, a host or a time before every line, in any order and more than one of them. Progress bars end
their lines with a carriage return. A line has no upper length: long ones are cut into pieces that overlap.

Does not cover: two ranks' texts mixed inside one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

#: Longer lines come in pieces; they overlap by more than any text that is looked for is long.
MAX_LINE = 8192
_OVERLAP = 1024
#: Labels before a line: launcher, agent, logger and program may each have added one.
_MAX_LABELS = 8

_COLOUR = re.compile(r"\x1b(?:\[[0-9;?]{0,32}[A-Za-z]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[()][A-Z0-9])|\x08|\x00")
_RANK = re.compile(
    r"\s*(?:\[(?:[Rr]ank|RANK|default)?:?\s?(\d{1,6})\](?::\s?|(?=\[)|\s)"  # [rank3]:  [default0]:  [Rank 3]  [3]
    r"|\[\d+,(\d{1,6})\]<std(?:out|err)>:\s?"  # mpirun --tag-output
    r"|(?:[Rr]ank\s?|RANK\s?)?(\d{1,6}):\s)"  # srun --label
)
# a host's name has a digit; `train2.py: error: ...` is an argument parser speaking
_HOST = re.compile(r"\s*(?=[a-z-]{0,40}\d)[a-z][a-z0-9-]{0,62}(?:\.(?!py:)[a-z0-9-]{1,62}){0,5}:\s(?!error:)")
_STAMPS = (
    (
        "date",
        re.compile(
            r"\s*\[?(\d{4}[-/]\d\d[-/]\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)(?:Z|[+-]\d\d:?\d\d)?\]?"
            r"(?:\s-)?[:,]?(?:\s+|\Z|(?=\[))"
        ),
    ),
    (
        "month",  # glog and torch: E0501 12:00:01.123456 77 file.py:9], [E501 12:00:01.123456789 File.cpp:632]
        re.compile(r"\s*\[?[IWEF](\d{3,4} \d\d:\d\d:\d\d\.\d{1,9})\s+(?:\d+\s)?(?:[\w./-]{1,200}:\d+\])?\s*"),
    ),
    ("clock", re.compile(r"\s*\[?(\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)\]?\s+")),
    ("syslog", re.compile(r"\s*([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) [\w.-]{1,100} (?=\S)")),
    ("uptime", re.compile(r"\s*\[\s{0,8}(\d{1,12}\.\d{3,6})\]\s")),
)


class Line(NamedTuple):
    """A line or a piece of one. Times are `(kind, key)`: keys of one kind sort by time within a log."""

    text: str
    rank: int | None = None
    time: tuple[str, str] | None = None


def raw_lines(text: str) -> list[str]:
    """The lines as they stand, labels and all."""
    return re.split(r"[\r\n]+", text)


def read_line(raw: str) -> Iterator[Line]:
    """A raw line, cleaned; nothing if it is blank."""
    line = _unlabelled(_COLOUR.sub("", raw) if "\x1b" in raw or "\x00" in raw or "\x08" in raw else raw)
    if len(line.text) <= MAX_LINE:
        if line.text:
            yield line
        return
    for start in range(0, len(line.text) - _OVERLAP, MAX_LINE - _OVERLAP):
        yield line._replace(text=line.text[start : start + MAX_LINE])


def lines_of(text: str) -> Iterator[tuple[int | None, str]]:
    """A log's lines with the rank that their label names; labels and colours are taken off."""
    for raw in raw_lines(text):
        for line in read_line(raw):
            yield line.rank, line.text


def _unlabelled(text: str) -> Line:
    rank: int | None = None
    time: tuple[str, str] | None = None
    position = 0
    for _ in range(_MAX_LABELS):
        if (label := _RANK.match(text, position)) is not None:
            # the inner label is nearer to the program: torchrun's stands behind srun's
            rank = int(label[1] or label[2] or label[3])
            position = label.end()
        elif (stamped := _stamp(text, position)) is not None:
            time, position = time or stamped[0], stamped[1]
        elif (host := _HOST.match(text, position)) is not None:
            position = host.end()
        else:
            break
    return Line(text[position:].strip(), rank, time)


def _stamp(text: str, position: int) -> tuple[tuple[str, str], int] | None:
    for kind, pattern in _STAMPS:
        if (match := pattern.match(text, position)) is not None:
            key = re.sub(r"[T_/,]", lambda sign: {"T": " ", "_": " ", "/": "-", ",": "."}[sign[0]], match[1])
            if kind == "month":
                key = key.zfill(len("0501") + len(key) - key.index(" "))
            elif kind == "uptime":
                key = key.zfill(20)
            elif kind == "syslog":
                key = key[4:]
            return (kind, key), match.end()
    return None
