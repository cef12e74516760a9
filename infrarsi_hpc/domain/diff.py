"""Unified diffs as data: what a patch touches is read from it, never guessed by applying it.

Strict on purpose. Every line is accounted for and every count must be right, so that this reader and git cannot
understand the same text differently. What people and models write more loosely goes through
`domain.diff_repair` first, which says what it changed.

Covers: modified, new, deleted, renamed, copied files; modes, links, submodules and binary parts are flagged.
Does not cover: combined diffs of merges, context diffs, names with control characters, quotes or backslashes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from infrarsi_hpc.errors import PatchError

Kind = Literal["modify", "add", "delete", "rename", "copy"]

SYMLINK_MODE = "120000"
SUBMODULE_MODE = "160000"
NO_NEWLINE = "\\ No newline at end of file"
_NOWHERE = "/dev/null"
_KIND_OF: dict[str, Kind] = {
    "rename from": "rename",
    "copy from": "copy",
    "new file mode": "add",
    "deleted file mode": "delete",
}
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)\Z", re.DOTALL)
_INDEX = re.compile(r"index [0-9a-f]+\.\.[0-9a-f]+(?: (\d{6}))?\Z")
_ESCAPE = re.compile(r"\\([0-7]{3}|.)")
_UNNAMEABLE = re.compile(r"[\x00-\x1f\x7f\"\\]")


@dataclass(frozen=True)
class Hunk:
    """One hunk; every line keeps its first character (space, +, - or backslash)."""

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    lines: tuple[str, ...]
    section: str = ""

    @property
    def has_context(self) -> bool:
        """Whether any unchanged line says where the hunk belongs."""
        return any(line.startswith(" ") for line in self.lines)

    def counted(self) -> tuple[int, int]:
        """Old and new number of lines, counted from the body."""
        old = sum(line[0] in " -" for line in self.lines)
        return old, sum(line[0] in " +" for line in self.lines)


@dataclass(frozen=True)
class FileChange:
    """What a diff does to one file. Paths are as written, without the a/ and b/ of the form."""

    old_path: str | None
    new_path: str | None
    kind: Kind
    hunks: tuple[Hunk, ...] = ()
    old_mode: str | None = None
    new_mode: str | None = None
    is_binary: bool = False

    @property
    def path(self) -> str:
        """The path after the change, or before it where the file is deleted."""
        return self.new_path or self.old_path or ""

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path that it reads or writes."""
        return tuple(dict.fromkeys(p for p in (self.old_path, self.new_path) if p is not None))

    @property
    def is_symlink(self) -> bool:
        """Whether a symbolic link stands on either side."""
        return SYMLINK_MODE in (self.old_mode, self.new_mode)

    @property
    def is_submodule(self) -> bool:
        """Whether a submodule stands on either side."""
        return SUBMODULE_MODE in (self.old_mode, self.new_mode)

    @property
    def changes_mode(self) -> bool:
        """Whether an existing file gets another mode."""
        return self.kind in ("modify", "rename", "copy") and self.old_mode != self.new_mode


@dataclass(frozen=True)
class Diff:
    """A diff's files in the order in which it lists them."""

    files: tuple[FileChange, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path that the diff reads or writes, each once."""
        return tuple(dict.fromkeys(path for change in self.files for path in change.paths))

    @property
    def num_added(self) -> int:
        """Lines added."""
        return sum(line.startswith("+") for change in self.files for hunk in change.hunks for line in hunk.lines)

    @property
    def num_removed(self) -> int:
        """Lines removed."""
        return sum(line.startswith("-") for change in self.files for hunk in change.hunks for line in hunk.lines)


def parse_diff(text: str) -> Diff:
    """Read a unified diff strictly.

    Raises
    ------
    PatchError
        Naming the line: anything that is not part of a file's section, counts that do not fit the body, a hunk
        that changes nothing, a last line without its end, a path that the two headers write differently.
    """
    if not text.strip():
        raise _refuse(1, "the diff is empty")
    if not text.endswith("\n"):
        raise _refuse(text.count("\n") + 1, "the last line has no end")
    lines = _Lines(text[:-1].split("\n"))
    files = []
    while lines.here is not None:
        files.append(_read_file(lines))
    return Diff(tuple(files))


def render_diff(diff: Diff) -> str:
    """Write a diff in git's form, with prefixes a/ and b/; `parse_diff` reads back the same."""
    return "".join(line + "\n" for change in diff.files for line in _render_file(change))


# ---- reading


class _Lines:
    """The diff's lines and where the reader stands."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0

    @property
    def here(self) -> str | None:
        return self._lines[self._at] if self._at < len(self._lines) else None

    @property
    def number(self) -> int:
        return self._at + 1

    def take(self) -> str:
        line = self._lines[self._at]
        self._at += 1
        return line

    def take_after(self, start: str) -> str | None:
        """The rest of this line if it begins so, else none and the reader stays."""
        if self.here is None or not self.here.startswith(start):
            return None
        return self.take()[len(start) :]


def _refuse(number: int, what: str, why: str = "") -> PatchError:
    return PatchError(
        f"line {number} of the diff: {what}",
        why=why,
        fix="give a unified diff as `git diff` writes it; `infrarsi explain --kind patch FILE` shows how it is read",
    )


def _read_file(lines: _Lines) -> FileChange:
    start = lines.number
    header = lines.take_after("diff --git ")
    extended = _read_extended(lines) if header is not None else {}
    is_binary = _skip_binary(lines) if header is not None else False
    if lines.here is not None and lines.here.startswith("--- "):
        text_paths = _read_text_header(lines)
        hunks = tuple(_read_hunks(lines))
        # git leaves the hunk of an empty new or deleted file out
        if not hunks and not extended.keys() & {"new file mode", "deleted file mode"}:
            raise _refuse(start, "a file's section has no hunk")
        return _as_change(start, header, extended, text_paths, hunks, is_binary)
    if header is None:
        shown = (lines.here or "").rstrip("\r")[:60]
        raise _refuse(start, f"{shown!r} is not part of a diff", "neither `diff --git` nor `--- a/FILE` begins here")
    return _as_change(start, header, extended, None, (), is_binary)


def _read_extended(lines: _Lines) -> dict[str, str]:
    """git's extended headers by name; similarity figures are read over."""
    names = ("old mode", "new mode", "deleted file mode", "new file mode", "copy from", "copy to", "rename from")
    found: dict[str, str] = {}
    while (here := lines.here) is not None:
        for name in (*names, "rename to", "similarity index", "dissimilarity index"):
            if here.startswith(name + " "):
                if name in found:
                    raise _refuse(lines.number, f"`{name}` stands twice")
                found[name] = here[len(name) + 1 :]
                if name.endswith("mode") and not re.fullmatch(r"\d{6}", found[name]):
                    raise _refuse(lines.number, f"{found[name]!r} is not a file mode")
                break
        else:
            match = _INDEX.match(here)
            if match is None:
                return found
            if match[1] in (SYMLINK_MODE, SUBMODULE_MODE):
                found["index mode"] = match[1]
        lines.take()
    return found


def _skip_binary(lines: _Lines) -> bool:
    here = lines.here or ""
    if here.startswith("Binary files ") and here.endswith(" differ"):
        lines.take()
        return True
    if here != "GIT binary patch":
        return False
    while lines.here is not None and not lines.here.startswith("diff --git "):
        lines.take()
    return True


def _read_text_header(lines: _Lines) -> tuple[str, str]:
    old = lines.take()[4:]
    number = lines.number
    new = lines.take_after("+++ ")
    if new is None:
        raise _refuse(number, "`+++ b/FILE` is missing")
    for which, name in ((number - 1, old), (number, new)):
        if name.endswith("\r"):
            raise _refuse(which, "lines end in CR LF")
    return old.split("\t")[0], new.split("\t")[0]


def _read_hunks(lines: _Lines) -> Iterator[Hunk]:
    while lines.here is not None and lines.here.startswith("@@"):
        number = lines.number
        match = _HUNK.match(lines.take())
        if match is None:
            raise _refuse(number, "a hunk begins with `@@ -LINE,COUNT +LINE,COUNT @@`")
        old_start, new_start = int(match[1]), int(match[3])
        old_count = 1 if match[2] is None else int(match[2])
        new_count = 1 if match[4] is None else int(match[4])
        body = _read_body(lines, old_count, new_count, number)
        if not any(line[0] in "+-" for line in body):
            raise _refuse(number, "the hunk changes nothing")
        yield Hunk(old_start, old_count, new_start, new_count, tuple(body), match[5])


def _read_body(lines: _Lines, old: int, new: int, number: int) -> list[str]:
    body: list[str] = []
    while old > 0 or new > 0:
        here = lines.here
        mark = here[0] if here else ""
        if here is None or not (mark in (" ", "+", "-") or (mark == "\\" and body)):
            said = "an empty line" if here == "" else "the end" if here is None else repr(here[:40])
            raise _refuse(
                lines.number,
                f"the hunk of line {number} says {old} old and {new} new lines more, here is {said}",
                "the counts do not fit the body",
            )
        old -= mark in (" ", "-")
        new -= mark in (" ", "+")
        if old < 0 or new < 0:
            raise _refuse(lines.number, f"the hunk of line {number} has more lines than it says")
        body.append(lines.take())
    if lines.here is not None and lines.here.startswith("\\"):
        body.append(lines.take())
    following = lines.here
    if following is not None and following[:1] in (" ", "+", "-") and not following.startswith("--- "):
        raise _refuse(lines.number, f"the hunk of line {number} has more lines than it says")
    return body


def _as_change(
    number: int,
    header: str | None,
    extended: dict[str, str],
    text_paths: tuple[str, str] | None,
    hunks: tuple[Hunk, ...],
    is_binary: bool,
) -> FileChange:
    """Put the headers together; where two of them name the file, they must agree."""
    kind: Kind = next((kind for name, kind in _KIND_OF.items() if name in extended), "modify")
    old: str | None
    new: str | None
    if text_paths is not None:
        old, new = _side(number, text_paths[0], "a/"), _side(number, text_paths[1], "b/")
        if header is None:
            kind = "add" if old is None else "delete" if new is None else "modify"
    elif kind in ("rename", "copy"):
        old, new = (_name(number, extended.get(f"{kind} {side}", "")) for side in ("from", "to"))
    else:
        old = new = _halves(number, header or "")
        old, new = (None if kind == "add" else old), (None if kind == "delete" else new)
    if (old is None) != (kind == "add") or (new is None) != (kind == "delete"):
        raise _refuse(number, "its headers disagree on whether the file is new, deleted or changed")
    if kind == "modify" and old != new:
        raise _refuse(number, f"{old} becomes {new} without `rename from` and `rename to`")
    if header is not None:
        _check_header(number, header, old, new, kind, extended)
    unchanged = extended.get("index mode")
    old_mode = extended.get("deleted file mode", "100644") if kind == "delete" else extended.get("old mode", unchanged)
    new_mode = extended.get("new file mode", "100644") if kind == "add" else extended.get("new mode", unchanged)
    old_mode, new_mode = (None if kind == "add" else old_mode), (None if kind == "delete" else new_mode)
    if not (hunks or is_binary or kind != "modify" or old_mode != new_mode):
        raise _refuse(number, "the section changes nothing")
    return FileChange(old, new, kind, hunks, old_mode, new_mode, is_binary)


def _check_header(
    number: int, header: str, old: str | None, new: str | None, kind: Kind, extended: dict[str, str]
) -> None:
    left, right = old or new, new or old
    accepted = {f"a/{left} b/{right}"}
    if header not in accepted and _unquoted_pair(number, header) not in accepted:
        raise _refuse(number, f"`diff --git {header}` names other files than the lines below it ({left}, {right})")
    if kind in ("rename", "copy"):
        named = tuple(_name(number, extended.get(f"{kind} {side}", "")) for side in ("from", "to"))
        if named != (old, new):
            raise _refuse(number, f"`{kind} from` and `{kind} to` name other files than the lines below them")


def _side(number: int, name: str, prefix: str) -> str | None:
    """A path of `---` or `+++` without its prefix; absolute paths stay as they are, for the scope to refuse."""
    name = _unquote(number, name)
    if name == _NOWHERE:
        return None
    if name.startswith("/"):
        return _named(number, name)
    if not name.startswith(prefix):
        raise _refuse(number, f"{name!r} does not begin with {prefix}", "git would cut off the path's first folder")
    return _named(number, name[2:])


def _halves(number: int, header: str) -> str:
    """The one path of `a/PATH b/PATH`."""
    header = _unquoted_pair(number, header)
    half = (len(header) - 1) // 2
    left, right = header[:half], header[half + 1 :]
    if len(header) % 2 == 0 or left[:2] != "a/" or right[:2] != "b/" or left[2:] != right[2:]:
        raise _refuse(number, f"`diff --git {header}` does not name one file")
    return _named(number, left[2:])


def _name(number: int, text: str) -> str:
    return _named(number, _unquote(number, text))


def _named(number: int, name: str) -> str:
    if not name or _UNNAMEABLE.search(name):
        raise _refuse(
            number, f"{name!r} cannot be a path here", "control characters, quotes and backslashes are refused"
        )
    return name


def _unquoted_pair(number: int, header: str) -> str:
    if '"' not in header:
        return header
    parts = re.findall(r'"(?:[^"\\]|\\.)*"|[^" ]+', header)
    return " ".join(_unquote(number, part) for part in parts)


def _unquote(number: int, name: str) -> str:
    """A path that git put into quotes because of characters beyond ASCII."""
    if not (len(name) >= 2 and name[0] == name[-1] == '"'):
        return name
    plain = _ESCAPE.sub(lambda m: chr(int(m[1], 8)) if len(m[1]) == 3 else "\\" + m[1], name[1:-1])
    try:
        return plain.encode("latin-1").decode("utf-8")
    except UnicodeError as error:
        raise _refuse(number, f"{name} is not a UTF-8 path") from error


# ---- writing


def _render_file(change: FileChange) -> Iterator[str]:
    left, right = change.old_path or change.new_path, change.new_path or change.old_path
    yield f"diff --git a/{left} b/{right}"
    if change.kind == "add":
        yield f"new file mode {change.new_mode or '100644'}"
    elif change.kind == "delete":
        yield f"deleted file mode {change.old_mode or '100644'}"
    elif change.changes_mode:
        yield f"old mode {change.old_mode}"
        yield f"new mode {change.new_mode}"
    if change.kind in ("rename", "copy"):
        yield f"{change.kind} from {change.old_path}"
        yield f"{change.kind} to {change.new_path}"
    if change.old_mode == change.new_mode is not None:
        yield f"index 0000000..0000000 {change.new_mode}"
    if change.is_binary:
        yield f"Binary files a/{left} and b/{right} differ"
    if change.hunks:
        yield "--- " + (f"a/{change.old_path}" if change.old_path is not None else _NOWHERE)
        yield "+++ " + (f"b/{change.new_path}" if change.new_path is not None else _NOWHERE)
    for hunk in change.hunks:
        yield f"@@ -{hunk.old_start},{hunk.old_count} +{hunk.new_start},{hunk.new_count} @@{hunk.section}"
        yield from hunk.lines
