"""One experience file as bytes: three tables of typed, compressed columns in HDF5, with a checksum and an end mark.

A file is written in memory and read column by column. Whoever reads one has it from somebody else, so that nothing in
it is followed, unpickled or believed: links, references, virtual and external storage, filters other than gzip, types
outside the schema and sizes that the file cannot hold are refused before a byte of data is read.

Does not cover: flaws in the HDF5 library itself (a file made to attack its parser).
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infrarsi_hpc.edges.store.rows import TABLES, Column, Table
from infrarsi_hpc.errors import StoreError

FORMAT = "infrarsi-experience"
SCHEMA_VERSION = 1
SUFFIX = ".h5"
END_MARK = "end"

MAX_FILE_BYTES = 64 * 2**20
MAX_COLUMN_BYTES = 64 * 2**20
MAX_TOTAL_BYTES = 256 * 2**20
MAX_ROWS = 200_000
MAX_TEXT_BYTES = 4 * 2**20
MAX_OBJECTS = 1000
#: gzip cannot pack tighter than 1032:1, so that a column that claims more than this times what it stores lies.
MAX_PACKING = 1040

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
#: Other names could hide something when printed, or mean a place when joined to a path.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z")
_ROOT_ATTRIBUTES = {"format", "schema_version", "device_key", "sha256", "end_mark"}
_ELEMENT_ATTRIBUTES = {"schema_version", "unit"}
#: What h5py raises on a damaged file, depending on where the damage is.
H5PY_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError, AttributeError)


class SegmentRefused(StoreError):
    """An experience file that is not used. `code` is its kind in one word."""

    def __init__(self, code: str, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(what, why=why, fix=fix)
        self.code = code


@dataclass(frozen=True)
class Fault:
    """Something in a file that is not allowed: its kind, the object's path in the file, and the words for it."""

    code: str
    where: str
    text: str


@dataclass(frozen=True)
class Segment:
    """A file's content, its checksum verified; values are not judged yet (`store_rows` does)."""

    device_key: str
    sha256: str
    tables: dict[str, Table]


def digest(device_key: str, tables: Mapping[str, Table]) -> str:
    """SHA-256 over the columns' content, independent of how HDF5 lays them out. Floats count bit by bit."""
    import numpy as np

    running = hashlib.sha256(f"{FORMAT} {SCHEMA_VERSION} {device_key}\n".encode())
    for table, columns in TABLES.items():
        for name, column in columns.items():
            values = tables[table][name]
            running.update(f"{table}/{name} {column.kind} {len(values)}\n".encode())
            if column.kind == "text":
                running.update(json.dumps(values, ensure_ascii=True).encode())
            else:
                running.update(np.asarray(values, dtype=_numpy_type(column)).tobytes())
    return running.hexdigest()


def encode(device_key: str, tables: Mapping[str, Table]) -> bytes:
    """The file for these tables. The same tables give the same digest, and with one version of HDF5 the same bytes."""
    import h5py
    import numpy as np

    content = io.BytesIO()
    # v110: its index for a single chunk takes 20 bytes where the older one takes 2 KiB a column
    with h5py.File(content, "w", libver=("v110", "v110")) as file:
        for table, columns in TABLES.items():
            group = file.create_group(table)
            group.attrs["schema_version"] = np.int64(SCHEMA_VERSION)
            for name, column in columns.items():
                data = _as_array(f"{table}/{name}", column, tables[table][name])
                packing: dict[str, Any] = {}
                if len(data):
                    rows = max(1, min(len(data), 2**20 // data.dtype.itemsize))
                    packing = {"chunks": (rows,), "compression": "gzip", "shuffle": True, "fletcher32": True}
                dataset = group.create_dataset(name, data=data, **packing)
                dataset.attrs["schema_version"] = np.int64(SCHEMA_VERSION)
                dataset.attrs["unit"] = np.bytes_(column.unit.encode())
        file.attrs["format"] = np.bytes_(FORMAT.encode())
        file.attrs["schema_version"] = np.int64(SCHEMA_VERSION)
        file.attrs["device_key"] = np.bytes_(device_key.encode())
        file.attrs["sha256"] = np.bytes_(digest(device_key, tables).encode())
        file.attrs["end_mark"] = np.bytes_(END_MARK.encode())
    data_bytes = content.getvalue()
    if len(data_bytes) > MAX_FILE_BYTES:
        raise _too_large(f"{len(data_bytes)} bytes")
    return data_bytes


def read(path: Path) -> Segment:
    """Read one file, or say why not.

    Raises
    ------
    SegmentRefused
        With `code` and reason, for anything that is not exactly a whole file of this schema.
    """
    import h5py

    refuse_what_is_no_hdf5(path)
    try:
        with h5py.File(path, "r", locking=False) as file:
            return _read_open(path, file)
    except SegmentRefused:
        raise
    except H5PY_ERRORS as error:
        raise opening_refused(path, error) from error


def read_trial_ids(path: Path) -> set[tuple[str, str]]:
    """Campaign and trial id of a file's trials, for a quick look at a file of our own; its checksum is not verified."""
    import h5py

    refuse_what_is_no_hdf5(path)
    try:
        with h5py.File(path, "r", locking=False) as file:
            wanted = ("/trials/campaign", "/trials/trial")
            if any(not isinstance(file.get(name, getlink=True), h5py.HardLink) for name in ("/trials", *wanted)):
                raise SegmentRefused("foreign_layout", f"{path.name} has no table of trials")
            opened = {name: file[name] for name in wanted}
            for fault in (fault for name in wanted for fault in dataset_faults(name, opened[name])):
                raise SegmentRefused(fault.code, f"{path.name}: {fault.where}: {fault.text}")
            text = Column("text")
            return set(zip(*(_read_column(path, name, opened, text) for name in wanted), strict=True))
    except SegmentRefused:
        raise
    except H5PY_ERRORS as error:
        raise opening_refused(path, error) from error


def refuse_what_is_no_hdf5(path: Path) -> None:
    """Look at a file's size and first bytes, and refuse it with what it is instead."""
    name = path.name
    if path.is_symlink() or not path.is_file():
        raise SegmentRefused("not_a_file", f"{name} is not a plain file", fix="give the file itself")
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(512)
    except OSError as error:
        raise SegmentRefused("unreadable", f"{name} cannot be read", why=error.strerror or str(error)) from error
    fix = "fetch it again, or ask its owner for `infrarsi store export`"
    if size == 0:
        raise SegmentRefused("empty", f"{name} is empty", why="it has zero bytes: a copy that never finished", fix=fix)
    if head.startswith(b"version https://git-lfs"):
        raise SegmentRefused("pointer", f"{name} is a git-lfs pointer", fix=f"git lfs pull -I {name}")
    if b"annex/objects" in head and size < 4096:
        raise SegmentRefused("pointer", f"{name} is a git-annex pointer", fix=f"git annex get {name}")
    if head.lstrip()[:1] == b"<":
        raise SegmentRefused("html", f"{name} is a web page, not HDF5", why="a download link gave a page", fix=fix)
    if not head.startswith(_SIGNATURE):
        raise SegmentRefused("not_hdf5", f"{name} is not HDF5", why="its first bytes are not HDF5's signature", fix=fix)
    if size > MAX_FILE_BYTES:
        raise SegmentRefused("too_large", f"{name} has {size} bytes", why=f"files up to {MAX_FILE_BYTES} are read")


def opening_refused(path: Path, error: Exception) -> SegmentRefused:
    """What HDF5's own message about a file that it cannot read means."""
    text = " ".join(str(error).split())[:300]
    fix = "fetch it again; what is in the other files is still used"
    if "truncated" in text:
        return SegmentRefused("truncated", f"{path.name} is cut off", why="it is shorter than it says", fix=fix)
    if "already open for" in text:
        return SegmentRefused(
            "open_for_write",
            f"{path.name} was never closed by its writer",
            why="the flag of an unfinished write is set, and nobody knows what is missing",
            fix=f"fetch it again, or repair a copy with `h5clear -s {path.name}` and check that",
        )
    return SegmentRefused("damaged", f"{path.name} is damaged", why=text, fix=fix)


def faults(file: Any, opened: dict[str, Any] | None = None) -> Iterator[Fault]:
    """Everything in an open file that could lead out of it, break out of bounds or hide something. Follows no link.

    Objects that were looked at are left in `opened` by their path, so that nobody opens them again.
    """
    import h5py

    pending = [("", file)]
    seen = 0
    while pending:
        prefix, group = pending.pop()
        for raw in group:
            seen += 1
            if seen > MAX_OBJECTS:
                yield Fault("too_large", prefix or "/", f"more than {MAX_OBJECTS} objects")
                return
            name = raw if isinstance(raw, str) else raw.decode("utf-8", "backslashreplace")
            where = f"{prefix}/{name}"
            link = group.get(raw, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                yield Fault("external_link", where, f"a link into another file, {link.filename!r}: not followed")
                continue
            if not isinstance(link, h5py.HardLink):
                yield Fault("soft_link", where, "a link to another place: not followed")
                continue
            if not _PLAIN_NAME.match(name):
                yield Fault("odd_name", where, f"the name {name!r} is not made of letters, digits and _ . - alone")
            item = group[raw]
            if opened is not None:
                opened[where] = item
            if isinstance(item, h5py.Group):
                # a hard link may lead back up; the bound on objects ends such a ring
                pending.append((where, item))
            elif isinstance(item, h5py.Dataset):
                yield from dataset_faults(where, item)
            else:
                yield Fault("odd_type", where, "a named type, which the schema does not have")


def dataset_faults(where: str, dataset: Any) -> Iterator[Fault]:
    """What is wrong with how a dataset is stored, without reading any of it."""
    import h5py

    kind = dataset.id.get_type()
    if kind.detect_class(h5py.h5t.REFERENCE):
        yield Fault("object_reference", where, "holds references to other objects")
    elif isinstance(kind, h5py.h5t.TypeStringID) and kind.is_variable_str():
        yield Fault("odd_type", where, "holds text of variable length; the schema has fixed lengths alone")
    elif not isinstance(kind, h5py.h5t.TypeStringID | h5py.h5t.TypeFloatID | h5py.h5t.TypeIntegerID):
        yield Fault(
            "odd_type", where, f"holds {type(kind).__name__.removeprefix('Type').removesuffix('ID').lower()} data"
        )
    properties = dataset.id.get_create_plist()
    if properties.get_layout() == h5py.h5d.VIRTUAL or properties.get_external_count():
        yield Fault("external_link", where, "keeps its data in another file: not followed")
        return
    allowed = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
    if not {properties.get_filter(i)[0] for i in range(properties.get_nfilters())} <= allowed:
        yield Fault("odd_type", where, "is packed by a filter other than gzip")
    item = max(1, kind.get_size())
    claimed, stored = item, dataset.id.get_storage_size()
    for length in dataset.shape or ():
        claimed *= length
    chunk = item
    for length in dataset.chunks or ():
        chunk *= length
    if claimed > MAX_COLUMN_BYTES or chunk > MAX_COLUMN_BYTES:
        yield Fault("claimed_size", where, f"claims {max(claimed, chunk)} bytes; {MAX_COLUMN_BYTES} are read at most")
    elif claimed > MAX_PACKING * max(stored, 0) and dataset.shape is not None:
        yield Fault("claimed_size", where, f"claims {claimed} bytes, and the file holds {stored} of it")


def _read_open(path: Path, file: Any) -> Segment:
    root = attributes(file)
    version = root.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise SegmentRefused(
            "newer_schema",
            f"{path.name} was written by schema {version}; this version reads up to {SCHEMA_VERSION}",
            why="a newer infrarsi wrote it",
            fix=f"pip install -U infrarsi-hpc, or ask its owner for `infrarsi store export --schema {SCHEMA_VERSION}`",
        )
    is_ours = root.get("format") == FORMAT
    opened: dict[str, Any] = {}
    # in a file of another making, odd types are the smallest of its differences
    for fault in (fault for fault in faults(file, opened) if is_ours or fault.code != "odd_type"):
        raise SegmentRefused(
            fault.code, f"{path.name}: {fault.where}: {fault.text}", why="received files are not trusted"
        )
    if not is_ours:
        raise SegmentRefused(
            "foreign_layout",
            f"{path.name} is HDF5, but not an experience file",
            why=f"it does not name itself {FORMAT!r}; its columns and units are unknown",
            fix="ask its owner for `infrarsi store export`",
        )
    if version != SCHEMA_VERSION:
        raise SegmentRefused("foreign_layout", f"{path.name} names no schema version that this version knows")
    if root.get("end_mark") != END_MARK:
        raise SegmentRefused("incomplete", f"{path.name} has no end mark", why="its writer did not finish it")
    _expect_names(path, "/@", root, _ROOT_ATTRIBUTES)
    expected = {f"/{table}" for table in TABLES} | {f"/{t}/{name}" for t, columns in TABLES.items() for name in columns}
    _expect_names(path, "the file", opened, expected)
    _expect_bounded(path, opened)
    tables = {
        table: {name: _read_column(path, f"/{table}/{name}", opened, column) for name, column in columns.items()}
        for table, columns in TABLES.items()
    }
    for table, columns in tables.items():
        _expect_names(path, f"/{table}@", attributes(opened[f"/{table}"]), {"schema_version"})
        if len({len(values) for values in columns.values()}) != 1:
            raise SegmentRefused("incomplete", f"{path.name}: columns of {table} have different lengths")
    device_key, stated = str(root["device_key"]), str(root["sha256"])
    if digest(device_key, tables) != stated:
        raise SegmentRefused(
            "checksum", f"{path.name}: its columns are not what its checksum says", why="it was damaged or edited"
        )
    return Segment(device_key, stated, tables)


def _expect_names(path: Path, where: str, found: Iterable[str], expected: set[str]) -> None:
    strange, missing = sorted(set(found) - expected), sorted(expected - set(found))
    if strange:
        raise SegmentRefused("unknown_name", f"{path.name}: {where} holds {strange[0]!r}, which the schema lacks")
    if missing:
        raise SegmentRefused("incomplete", f"{path.name}: {where} lacks {missing[0]!r}")


def _expect_bounded(path: Path, opened: Mapping[str, Any]) -> None:
    import h5py

    columns = [item for item in opened.values() if isinstance(item, h5py.Dataset)]
    if sum(column.id.get_type().get_size() * (column.size or 0) for column in columns) > MAX_TOTAL_BYTES:
        raise SegmentRefused("claimed_size", f"{path.name} claims more than {MAX_TOTAL_BYTES} bytes in all")


def _read_column(path: Path, where: str, opened: Mapping[str, Any], column: Column) -> list[Any]:
    import h5py

    dataset = opened[where]
    kind = dataset.id.get_type() if isinstance(dataset, h5py.Dataset) else None
    expected = {"real": h5py.h5t.IEEE_F64LE, "count": h5py.h5t.STD_I64LE, "flag": h5py.h5t.STD_U8LE}
    is_text = isinstance(kind, h5py.h5t.TypeStringID)
    if kind is None or not (is_text if column.kind == "text" else kind.equal(expected[column.kind])):
        raise SegmentRefused("odd_type", f"{path.name}: {where} is not a {column.kind} column")
    if len(dataset.shape or ()) != 1 or dataset.shape[0] > MAX_ROWS:
        raise SegmentRefused("claimed_size", f"{path.name}: {where} is not one column of at most {MAX_ROWS} rows")
    stated = attributes(dataset)
    _expect_names(path, f"{where}@", stated, _ELEMENT_ATTRIBUTES)
    if stated["schema_version"] != SCHEMA_VERSION:
        raise SegmentRefused("newer_schema", f"{path.name}: {where} is of another schema than its file")
    if stated["unit"] != column.unit:
        raise SegmentRefused("wrong_unit", f"{path.name}: {where} is in {stated['unit']!r}, not in {column.unit!r}")
    values: list[Any] = dataset[()].tolist()
    if column.kind == "text":
        values = [_text(path, where, value) for value in values]
    elif column.kind == "flag" and not set(values) <= {0, 1}:
        raise SegmentRefused("odd_type", f"{path.name}: {where} holds flags other than 0 and 1")
    return values


def _text(path: Path, where: str, value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SegmentRefused("odd_type", f"{path.name}: {where} is not UTF-8") from error


def attributes(element: Any) -> dict[str, str | int | None]:
    """An element's attributes: texts of fixed length and integers, none for what is of another type or too long."""
    import h5py
    import numpy as np

    found: dict[str, str | int | None] = {}
    for index in range(min(h5py.h5a.get_num_attrs(element.id), MAX_OBJECTS)):
        attribute = h5py.h5a.open(element.id, index=index)
        name = attribute.name.decode("utf-8", "backslashreplace")
        kind = attribute.get_type()
        found[name] = None
        if attribute.shape != () or kind.get_size() > 4096:
            continue
        if isinstance(kind, h5py.h5t.TypeIntegerID):
            number = np.zeros((), dtype="<i8")
            attribute.read(number)
            found[name] = int(number)
        elif isinstance(kind, h5py.h5t.TypeStringID) and not kind.is_variable_str():
            text = np.zeros((), dtype=f"S{kind.get_size()}")
            attribute.read(text)
            found[name] = bytes(text[()]).decode("utf-8", "replace")
    return found


def _numpy_type(column: Column) -> str:
    return {"real": "<f8", "count": "<i8", "flag": "u1"}[column.kind]


def _as_array(where: str, column: Column, values: list[Any]) -> Any:
    import h5py
    import numpy as np

    if len(values) > MAX_ROWS:
        raise _too_large(f"{len(values)} rows")
    if column.kind != "text":
        return np.asarray(values, dtype=_numpy_type(column))
    texts = [value.encode("utf-8") for value in values]
    if any(b"\0" in text for text in texts):
        raise StoreError(f"{where} holds a NUL character", why="text columns end at one", fix="leave that row out")
    width = max((len(text) for text in texts), default=1) or 1
    if width > MAX_TEXT_BYTES or width * len(texts) > MAX_COLUMN_BYTES:
        raise _too_large(f"{where}, {len(texts)} texts of up to {width} bytes")
    return np.array(texts, dtype=h5py.string_dtype("utf-8", width))


def _too_large(what: str) -> StoreError:
    return StoreError(
        f"{what} are too much for one experience file",
        why="files are kept small enough to be checked before they are read",
        fix="store fewer rows at once",
    )
