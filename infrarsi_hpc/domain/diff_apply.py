"""Diffs applied to text in memory: where a hunk belongs, and the same change with the file's own lines around it.

A hunk goes where its old lines stand: at the line that it names, or else at the only place in the file that has
them. No fuzz: a line that differs is an error that says which, and two possible places are an error too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import SequenceMatcher

from infrarsi_hpc.domain.diff import NO_NEWLINE, Diff, FileChange, Hunk
from infrarsi_hpc.errors import PatchError

CONTEXT_LINES = 3


def apply_change(text: str, change: FileChange) -> tuple[str, list[str]]:
    """The file's text after the change ("" for a deleted file), and what was not where the diff said.

    Raises
    ------
    PatchError
        A hunk's old lines are not in the file, or stand in several places and not at the one that it names.
    """
    lines = _split(text)
    result: list[str] = []
    notes: list[str] = []
    taken, drift = 0, 0
    for number, hunk in enumerate(change.hunks, start=1):
        old, new = _sides(hunk)
        named = hunk.old_start - 1 if old else hunk.old_start
        at = _place(lines, old, named + drift, taken, f"hunk {number} of {change.path}")
        if at != named:
            drift = at - named
            notes.append(f"{change.path}: hunk {number} belongs to line {at + 1}, not {named + 1}")
        result += lines[taken:at] + new
        taken = at + len(old)
    return "".join(result + lines[taken:]), notes


def apply_diff(files: Mapping[str, str], diff: Diff) -> tuple[dict[str, str | None], list[str]]:
    """Every touched file's text after the diff (none: deleted), and notes as of `apply_change`.

    `files` has the text of every file that the diff reads, by path; more is ignored.

    Raises
    ------
    PatchError
        As for `apply_change`; or a file is missing, already there, or binary.
    """
    after: dict[str, str | None] = {}
    notes: list[str] = []
    for change in diff.files:
        if change.is_binary:
            raise PatchError(f"{change.path} is changed by a binary patch", fix="give its change as text")
        before = _text_before(files, after, change)
        new, said = apply_change(before, change)
        notes += said
        if change.kind in ("delete", "rename") and change.old_path is not None:
            after[change.old_path] = None
        if change.kind == "delete" and new:
            raise PatchError(f"{change.path} has more lines than the diff deletes", fix="delete all of them, or none")
        if change.new_path is not None:
            after[change.new_path] = new
    return after, notes


def with_context(files: Mapping[str, str], diff: Diff) -> tuple[Diff, list[str]]:
    """The same change, with right line numbers and three lines of the file around every hunk.

    git applies such a diff anywhere without options; it refuses hunks without context where they do not begin and
    end the file.

    Raises
    ------
    PatchError
        As for `apply_diff`; or two sections change the same file.
    """
    if len({change.path for change in diff.files}) < len(diff.files):
        raise PatchError("two sections of the diff change the same file", fix="join them into one")
    after, notes = apply_diff(files, diff)
    changes = []
    for change in diff.files:
        old = files[change.old_path] if change.old_path is not None else ""
        new = after[change.new_path] or "" if change.new_path is not None else ""
        changes.append(replace(change, hunks=tuple(hunks_between(old, new))))
    return Diff(tuple(changes)), notes


def hunks_between(old: str, new: str) -> Iterator[Hunk]:
    """The hunks that turn one text into the other."""
    before, after = _split(old), _split(new)
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    for group in matcher.get_grouped_opcodes(CONTEXT_LINES):
        lines: list[str] = []
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                lines += _marked(" ", before[i1:i2])
                continue
            lines += _marked("-", before[i1:i2])
            lines += _marked("+", after[j1:j2])
        (_, old_from, _, new_from, _), (_, _, old_to, _, new_to) = group[0], group[-1]
        num_old, num_new = old_to - old_from, new_to - new_from
        # an empty side is named by the line before it
        yield Hunk(old_from + (num_old > 0), num_old, new_from + (num_new > 0), num_new, tuple(lines))


def _text_before(files: Mapping[str, str], after: Mapping[str, str | None], change: FileChange) -> str:
    known = {**files, **after}
    if change.kind == "add":
        if known.get(change.path) is not None:
            raise PatchError(
                f"{change.path} is already there", why="the diff makes it as a new file", fix="give a diff of it"
            )
        return ""
    text = known.get(change.old_path or "")
    if text is None:
        raise PatchError(
            f"{change.old_path} does not exist at the baseline commit",
            why="the diff changes it",
            fix="check the path; it is relative to the project",
        )
    return text


def _split(text: str) -> list[str]:
    """Lines with their ends; only LF ends a line, as for git."""
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _sides(hunk: Hunk) -> tuple[list[str], list[str]]:
    """Old and new lines of a hunk, with their ends."""
    old: list[str] = []
    new: list[str] = []
    for index, line in enumerate(hunk.lines):
        if line.startswith("\\"):
            continue
        is_last = index + 1 < len(hunk.lines) and hunk.lines[index + 1].startswith("\\")
        content = line[1:] + ("" if is_last else "\n")
        if line[0] in " -":
            old.append(content)
        if line[0] in " +":
            new.append(content)
    return old, new


def _place(lines: list[str], old: list[str], named: int, first: int, who: str) -> int:
    """Index of the line at which the hunk's old lines stand."""
    if not old:
        if not first <= named <= len(lines):
            raise PatchError(
                f"{who} adds lines after line {named}; the file has {len(lines)}", fix="name a line that exists"
            )
        return named
    found = [at for at in range(first, len(lines) - len(old) + 1) if lines[at : at + len(old)] == old]
    if named in found:
        return named
    if len(found) == 1:
        return found[0]
    if found:
        where = ", ".join(str(at + 1) for at in found[:5])
        raise PatchError(
            f"{who} fits in {len(found)} places: lines {where}",
            why=f"it does not fit at line {named + 1}, which it names",
            fix="give more lines around the change, or the right line number",
        )
    present = set(lines)
    missing = next((line for line in old if line not in present), None)
    why = "its lines are there, but do not stand together" if missing is None else f"no line is {missing[:100]!r}"
    raise PatchError(f"{who} does not fit the file", why=why, fix="make the diff against the baseline commit's text")


def _marked(mark: str, lines: list[str]) -> Iterator[str]:
    for line in lines:
        yield mark + line.removesuffix("\n")
        if not line.endswith("\n"):
            yield NO_NEWLINE
