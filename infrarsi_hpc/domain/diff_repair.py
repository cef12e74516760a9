"""Diffs as people and models write them, brought into the strict form; every change is said.

A diff that is strict already comes back byte for byte. What cannot be repaired without a guess about its meaning is
refused: a repair never drops a line that could be part of the change.

Covers: prose and fences around the diff, CR LF, a byte order mark, a missing last line end, wrong or missing counts
and line numbers, context lines without their space, paths without a/ and b/, hunks without context (given the files).
Does not cover: lines whose mark is lost, several alternatives in one answer, patches for another version of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from infrarsi_hpc.domain.diff import FileChange, Hunk, parse_diff, render_diff
from infrarsi_hpc.domain.diff_apply import apply_diff, with_context
from infrarsi_hpc.errors import PatchError

_FENCE = re.compile(r"\s{0,3}(```|~~~)")
_NUMBERS = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_HUNK_START = re.compile(r"@@(?: |\Z)")
_GIT_ONLY = re.compile(r"(rename|copy|new file|deleted file|old|new) ")
_MNEMONIC = {"i/", "w/", "c/", "o/"}


@dataclass(frozen=True)
class Repaired:
    """A strict diff and what was changed to make it so (nothing: it was strict already)."""

    text: str
    notes: tuple[str, ...] = ()


def repair_diff(text: str, files: Mapping[str, str] | None = None) -> Repaired:
    """Bring a diff into the form that `parse_diff` and git read alike.

    `files`, the text of the files at the baseline commit by path, lets wrong line numbers and missing context be
    repaired as well, and shows that the diff applies.

    Raises
    ------
    PatchError
        There is no diff in the text, it cannot be repaired without guessing, or it does not fit the files.
    """
    notes: list[str] = []
    try:
        diff = parse_diff(text)
        strict = text
    except PatchError:
        strict = _Repair(_plain_lines(text, notes), notes).text()
        diff = parse_diff(strict)
    if files is not None and not any(change.is_binary for change in diff.files):
        _, moved = apply_diff(files, diff)
        bare = [
            change.path
            for change in diff.files
            for hunk in change.hunks
            if change.kind == "modify"
            if not hunk.has_context or _is_taken_for_the_end(hunk, files, change)
        ]
        if moved or bare:
            diff, _ = with_context(files, diff)
            strict = render_diff(diff)
            notes += moved + [f"{path}: context lines were added" for path in dict.fromkeys(bare)]
    return Repaired(strict, tuple(notes))


def _is_taken_for_the_end(hunk: Hunk, files: Mapping[str, str], change: FileChange) -> bool:
    """Whether git would look for it at the file's end alone: no unchanged line follows, though the file goes on."""
    last = next(line for line in reversed(hunk.lines) if not line.startswith("\\"))
    text = files.get(change.old_path or "", "")
    return not last.startswith(" ") and hunk.old_start + hunk.old_count - 1 < len(text.splitlines())


def _plain_lines(text: str, notes: list[str]) -> list[str]:
    """Lines without byte order mark, CR LF ends and fences."""
    if text.startswith("\ufeff"):
        text = text[1:]
        notes.append("the byte order mark was removed")
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    elif lines:
        notes.append("the last line was given its end")
    if any(line.endswith("\r") and line.startswith(("--- ", "+++ ", "@@ ")) for line in lines):
        lines = [line.removesuffix("\r") for line in lines]
        notes.append("CR LF line ends became LF")
    return _unfenced(lines, notes)


def _unfenced(lines: list[str], notes: list[str]) -> list[str]:
    """The lines inside fences that hold a diff; all of them where there is no fence."""
    blocks: list[list[str]] = []
    block: list[str] | None = None
    for line in lines:
        if _FENCE.match(line):
            if block is not None:
                blocks.append(block)
            block = [] if block is None else None
        elif block is not None:
            block.append(line)
    if block is not None:
        blocks.append(block)
    holding = [b for b in blocks if any(line.startswith(("--- ", "diff --git ")) for line in b)]
    if not holding:
        return lines
    if len(holding) > 1:
        notes.append(f"{len(holding)} fenced blocks were joined")
    notes.append("the fence and the text around it were left out")
    return [line for b in holding for line in b]


@dataclass
class _Repair:
    """A tolerant reader that writes the strict form as it goes."""

    lines: list[str]
    notes: list[str]
    at: int = 0
    drift: int = 0
    out: list[str] = field(default_factory=list)

    def text(self) -> str:
        num_prose = 0
        while self.at < len(self.lines):
            if self._starts_section():
                self._section()
            else:
                num_prose += bool(self.lines[self.at].strip())
                self.at += 1
        if num_prose:
            self.notes.append(f"{num_prose} lines that belong to no file's section were left out")
        if not self.out:
            raise PatchError("there is no diff in this text", fix="give a unified diff, from `--- a/FILE` on")
        return "".join(line + "\n" for line in self.out)

    def _peek(self, ahead: int = 0) -> str:
        return self.lines[self.at + ahead] if self.at + ahead < len(self.lines) else ""

    def _starts_section(self, ahead: int = 0) -> bool:
        here = self._peek(ahead)
        return here.startswith("diff --git ") or (here.startswith("--- ") and self._peek(ahead + 1).startswith("+++ "))

    def _section(self) -> None:
        head: list[str] = []
        if self._peek().startswith("diff --git "):
            head.append(self.lines[self.at])
            self.at += 1
            while self.at < len(self.lines) and not self._starts_section() and not self._peek().startswith("@@"):
                if not self._peek().strip():
                    break
                head.append(self.lines[self.at])
                self.at += 1
        if not self._peek().startswith("--- "):
            self.out += head
            return
        old, new = self._prefixed(self._peek()[4:].split("\t")[0], self._peek(1)[4:].split("\t")[0])
        self.at += 2
        self.drift = 0
        hunks: list[str] = []
        name = (new if new != "/dev/null" else old)[2:]
        number = 0
        while _HUNK_START.match(self._peek()):
            number += 1
            hunks += self._hunk(f"{name}: hunk {number}", is_new=old == "/dev/null")
        if not hunks:
            raise PatchError(f"the diff of {name} changes nothing", fix="give the lines to remove and to add")
        # a first line with other prefixes would contradict the repaired paths; git does not need it
        if head and (head[0] == f"diff --git {old} {new}" or any(_GIT_ONLY.match(line) for line in head)):
            self.out += head
        self.out += [f"--- {old}", f"+++ {new}", *hunks]

    def _prefixed(self, old: str, new: str) -> tuple[str, str]:
        """Paths with a/ and b/."""
        given = (old, new)
        if old[:2] in _MNEMONIC and new[:2] in _MNEMONIC and old[:2] != new[:2] and old[2:] == new[2:]:
            old, new = "a/" + old[2:], "b/" + new[2:]
        bare_old, bare_new = old.removeprefix("a/"), new.removeprefix("b/")
        is_plain = not (old.startswith("/") or new.startswith("/"))
        if is_plain and bare_old == bare_new:
            old, new = "a/" + bare_old, "b/" + bare_new
        elif old == "/dev/null" and not new.startswith(("/", "b/")):
            new = "b/" + new
        elif new == "/dev/null" and not old.startswith(("/", "a/")):
            old = "a/" + old
        if (old, new) != given:
            self.notes.append(f"{given[0]} and {given[1]} became {old} and {new}")
        return old, new

    def _hunk(self, who: str, *, is_new: bool) -> list[str]:
        header = self.lines[self.at]
        self.at += 1
        match = _NUMBERS.match(header)
        stated = None
        if match is not None:
            stated = (int(match[2] or 1), int(match[4] or 1))
        body = self._body_as_stated(stated) if stated is not None else None
        if body is None:
            body = self._body(who, stated)
        num_old = sum(line[:1] in (" ", "-") for line in body)
        num_new = sum(line[:1] in (" ", "+") for line in body)
        if not any(line[:1] in ("+", "-") for line in body):
            self.notes.append(f"{who} changes nothing and was left out")
            return []
        if stated is None:
            self.notes.append(f"{who} has no line numbers")
        elif stated != (num_old, num_new):
            said = f"instead of {stated[0]} and {stated[1]}"
            self.notes.append(f"{who}: recounted, {num_old} old and {num_new} new lines {said}")
        start = 0 if is_new else int(match[1]) if match is not None else 1
        if not is_new and num_old and start == 0:
            start = 1
        new_start = start + self.drift + (1 if num_old == 0 else 0) - (1 if num_new == 0 else 0)
        self.drift += num_new - num_old
        tail = header[match.end() :] if match is not None else ""
        return [f"@@ -{start},{num_old} +{max(0, new_start)},{num_new} @@{tail}", *body]

    def _body_as_stated(self, stated: tuple[int, int]) -> list[str] | None:
        """The body by the stated counts, or none where they do not fit."""
        old, new = stated
        body: list[str] = []
        ahead = 0
        while old > 0 or new > 0:
            line = self._peek(ahead)
            if self.at + ahead >= len(self.lines) or line[:1] not in (" ", "+", "-", "\\"):
                return None
            old -= line[0] in " -"
            new -= line[0] in " +"
            body.append(line)
            ahead += 1
        if self._peek(ahead).startswith("\\"):
            body.append(self._peek(ahead))
            ahead += 1
        # "-- " alone begins a mail's signature, as `git format-patch` writes it
        is_over = self._is_boundary(ahead) or self._peek(ahead).strip() in ("", "--")
        if old < 0 or new < 0 or not is_over:
            return None
        self.at += ahead
        return body

    def _is_boundary(self, ahead: int) -> bool:
        return self._starts_section(ahead) or _HUNK_START.match(self._peek(ahead)) is not None

    def _body(self, who: str, stated: tuple[int, int] | None) -> list[str]:
        """The body by its marks, up to the next hunk, section or text."""
        body: list[str] = []
        num_bare = 0
        while self.at < len(self.lines) and not self._is_boundary(0):
            line = self.lines[self.at]
            if line[:1] in (" ", "+", "-", "\\"):
                body.append(line)
            elif line == "" and any(True for _ in self._rest_of_body()):
                body.append(" ")
                num_bare += 1
            else:
                break
            self.at += 1
        if num_bare:
            self.notes.append(f"{who}: {num_bare} empty lines were given their space")
        self._refuse_lost_marks(who, body, stated)
        return body

    def _rest_of_body(self) -> Iterator[str]:
        """Marked lines after the empty ones here, before anything else."""
        ahead = 0
        while self.at + ahead < len(self.lines) and self._peek(ahead) == "":
            ahead += 1
        if self.at + ahead < len(self.lines) and not self._is_boundary(ahead) and self._peek(ahead)[0] in " +-\\":
            yield self._peek(ahead)

    def _refuse_lost_marks(self, who: str, body: list[str], stated: tuple[int, int] | None) -> None:
        """Text right after a body that is shorter than stated may be a line of it that lost its mark."""
        if self.at >= len(self.lines) or self._is_boundary(0) or not self._peek().strip():
            return
        old = sum(line[:1] in (" ", "-") for line in body)
        new = sum(line[:1] in (" ", "+") for line in body)
        follows_marked = any(line[:1] in ("+", "-") for line in self._until_boundary())
        if stated is None or old < stated[0] or new < stated[1] or follows_marked:
            raise PatchError(
                f"{who}: the line {self._peek()[:60]!r} has no mark",
                why="every line of a hunk begins with a space, + or -",
                fix="give the diff again with every line marked",
            )

    def _until_boundary(self) -> Iterator[str]:
        ahead = 0
        while self.at + ahead < len(self.lines) and not self._is_boundary(ahead):
            yield self._peek(ahead)
            ahead += 1
