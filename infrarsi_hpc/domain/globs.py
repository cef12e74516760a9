"""Globs over paths relative to the project: what a contract's scope is written in."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from infrarsi_hpc.errors import ContractError


def matches(path: str, globs: Iterable[str]) -> bool:
    """Whether any of the globs covers a path; both with `/` between folders.

    `*` and `?` stay inside one folder, `**` stands for any number of folders, `[...]` for one character; a glob that
    ends in `/` covers everything below. Letter case counts.

    Raises
    ------
    ContractError
        A glob cannot be understood.
    """
    return any(_expression(glob).match(path) is not None for glob in globs)


@lru_cache(maxsize=1024)
def _expression(glob: str) -> re.Pattern[str]:
    """The glob as a regular expression over whole paths."""
    parts = (glob + "**" if glob.endswith("/") else glob).split("/")
    text = ""
    for index, part in enumerate(parts):
        is_last = index == len(parts) - 1
        if part == "**":
            text += ".+" if is_last else "(?:[^/]+/)*"
        else:
            text += _segment(part) + ("" if is_last else "/")
    try:
        return re.compile(text + r"\Z", re.DOTALL)
    except re.error as error:
        raise ContractError(f"{glob!r} is not a glob", why=str(error), fix="use *, **, ? and [abc]") from error


def _segment(part: str) -> str:
    """One folder's or file's part of a glob; a bracket that never closes is a plain character."""
    text = ""
    at = 0
    while at < len(part):
        mark = part[at]
        if mark == "*":
            text += "[^/]*"
        elif mark == "?":
            text += "[^/]"
        elif mark == "[" and (end := part.find("]", at + 2)) > 0:
            inside = part[at + 1 : end].replace("\\", r"\\").replace("[", r"\[")
            is_negated = inside.startswith(("!", "^"))
            text += "(?!/)[" + ("^" + inside[1:] if is_negated else inside) + "]"
            at = end
        else:
            text += re.escape(mark)
        at += 1
    return text
