"""Site profiles as TOML text: written with remarks beside the values, and the line where a field stands.

tomllib names lines for broken syntax alone; a wrong value is found after parsing, so its line is looked up here again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tomlkit
from tomlkit.items import AoT, Table

from infrarsi_hpc.domain.site import SCHEMA_VERSION, SiteProfile

_HEADER = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.\s\"'-]+?)\s*\]\]?\s*(?:#.*)?\Z")
_KEY = re.compile(r"\s*([A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')\s*(?:\.|=)")


def profile_toml(
    profile: SiteProfile,
    *,
    heading: Sequence[str] = (),
    remarks: Mapping[str, str] | None = None,
    with_user: bool = False,
) -> str:
    """A profile as TOML, without what is at its default.

    `heading` are comment lines at the top. `remarks` stand behind the value of their field (`partition.0.gpu_type`)
    as `# remark`; a field that a remark names is written even at its default.
    """
    value = profile.model_dump(exclude_none=True)
    plain = profile.model_dump(exclude_none=True, exclude_defaults=True)
    wanted = set(remarks or ())
    if not with_user:
        value.pop("user", None)
    document = tomlkit.document()
    for line in heading:
        document.add(tomlkit.comment(_one_line(line)))
    for key in ("schema_version", "name"):
        document.add(key, value.pop(key))
    _fill(document, value, plain, "", wanted, remarks or {})
    return tomlkit.dumps(document)


def user_toml(user: Mapping[str, Any]) -> str:
    """The second file: what is the user's own, and nothing else."""
    document = tomlkit.document()
    document.add(tomlkit.comment("What is yours alone: read by infrarsi, never exported. Keep its mode at 0600."))
    document.add("schema_version", SCHEMA_VERSION)
    table = tomlkit.table()
    for key, value in user.items():
        table.add(key, value)
    document.add("user", table)
    return tomlkit.dumps(document)


def _fill(
    table: Any,
    value: Mapping[str, Any],
    plain: Mapping[str, Any],
    at: str,
    wanted: set[str],
    remarks: Mapping[str, str],
) -> None:
    """Scalars first, as TOML wants them before the tables that follow."""
    for key, item in sorted(value.items(), key=lambda pair: _is_table(pair[1])):
        field = f"{at}.{key}" if at else key
        is_wanted = any(name == field or name.startswith(f"{field}.") for name in wanted)
        if key not in plain and not is_wanted:
            continue
        if isinstance(item, Mapping):
            inner = tomlkit.table()
            _fill(inner, item, _inside(plain.get(key)), field, wanted, remarks)
            table.add(key, inner)
        elif _is_table(item):
            array: AoT = tomlkit.aot()
            rows = plain.get(key, ())
            for number, row in enumerate(item):
                entry: Table = tomlkit.table()
                _fill(entry, row, rows[number] if number < len(rows) else {}, f"{field}.{number}", wanted, remarks)
                array.append(entry)
            table.add(key, array)
        else:
            written = tomlkit.item(list(item) if isinstance(item, tuple) else item)
            if field in remarks:
                written.comment(_one_line(remarks[field]))
            table.add(key, written)


def _one_line(text: str) -> str:
    """A remark that cannot leave its line: some of its words are a scheduler's."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))[:300]


def _inside(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, tuple | list) and any(isinstance(x, Mapping) for x in value)
    )


def line_of(text: str, place: Sequence[str | int]) -> int | None:
    """The line, counted from 1, of the field at `place` in a TOML text; of its table where the field is missing.

    Follows headers and plain keys. Inline tables and lists give the line of the key that they belong to.
    """
    best: tuple[int, int] | None = None
    header: tuple[str | int, ...] = ()
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        found = _HEADER.match(line)
        if found:
            parts = tuple(part.strip().strip("\"'") for part in found.group(2).split("."))
            name = ".".join(parts)
            if found.group(1) == "[[":
                counts[name] = counts.get(name, -1) + 1
            header = _numbered(parts, counts)
            here = header
        elif key := _KEY.match(line):
            here = (*header, key.group(1).strip("\"'"))
        else:
            continue
        depth = len(here)
        if depth <= len(place) and here == tuple(place[:depth]) and (best is None or depth > best[0]):
            best = (depth, number)
    return best[1] if best else None


def _numbered(parts: tuple[str, ...], counts: Mapping[str, int]) -> tuple[str | int, ...]:
    numbered: list[str | int] = []
    for depth, part in enumerate(parts, start=1):
        numbered.append(part)
        name = ".".join(parts[:depth])
        if name in counts:
            numbered.append(counts[name])
    return tuple(numbered)
