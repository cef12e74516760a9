"""Whole files or none: what a killed process, a full disk or a lost quota leaves is the old content or the new.

The new content goes to a temporary file in the same folder, is flushed to the disk, takes the old one's name in one
rename, and the folder is flushed too, so that the name survives a power cut as well.

Does not cover: two writers of the same file (the last rename wins; who must not, takes a lock), a temporary file
after SIGKILL (hidden, ends in `.tmp`, never read), and links: a symbolic link is replaced, not followed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import time
from pathlib import Path
from typing import Any

from infrarsi_hpc.errors import DiskFull, SiteError

_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the limit on a file's size is reached",
}
_DENIED = {
    errno.EROFS: "the file system is mounted read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "not permitted",
}


def write_bytes(path: Path, data: bytes) -> None:
    """Give `path` this content, wholly or not at all; an existing file keeps its permissions.

    Raises
    ------
    DiskFull
        No space or quota left; the old content stands.
    SiteError
        The folder is missing or may not be written; the old content stands.
    """
    temporary = path.with_name(f".{path.name[:200]}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        try:
            _write_aside(temporary, data, mode=_mode_of(path))
            os.rename(temporary, path)  # noqa: PTH104 (Path.rename says the same; the pair with fsync reads better)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _flush_folder(path.parent)
    except OSError as error:
        raise site_error(path, error) from error


def age_seconds(path: Path) -> float | None:
    """Seconds since a file was written, none where there is none.

    By the clock of the file system that both times come from, as a probe beside the file shows it: the hosts' clocks
    may differ. Where no probe may be written (somebody else's campaign), by this host's clock.
    """
    probe = path.with_name(f".{path.name[:200]}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        written_at = path.stat().st_mtime
        try:
            probe.touch()
            return probe.stat().st_mtime - written_at
        except FileNotFoundError:
            return None
        except OSError:
            return time.time() - written_at
        finally:
            with contextlib.suppress(OSError):
                probe.unlink(missing_ok=True)
    except OSError:
        return None


def write_text(path: Path, text: str) -> None:
    """Give `path` this text as UTF-8, wholly or not at all; line ends are kept as they are."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Give `path` this value as JSON, wholly or not at all. NaN and infinities are refused with `ValueError`."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def site_error(path: Path, error: OSError) -> SiteError:
    """The error a user sees when a file cannot be written: what, why, and what to do about it."""
    if error.errno in _FULL:
        return DiskFull(
            f"cannot write {path}",
            why=_FULL[error.errno],
            fix=f"free some space or quota under {path.parent}, then run the same command again: nothing was lost",
        )
    if error.errno in _DENIED:
        return SiteError(
            f"cannot write {path}",
            why=_DENIED[error.errno],
            fix=f"make {path.parent} writable, or choose a folder that is",
        )
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return SiteError(
            f"cannot write {path}",
            why=f"the folder {path.parent} does not exist",
            fix=f"mkdir -p {path.parent}",
        )
    return SiteError(
        f"cannot write {path}",
        why=error.strerror or str(error),
        fix="look at the file system, then run the same command again",
    )


def _mode_of(path: Path) -> int | None:
    try:
        return path.lstat().st_mode & 0o777 if not path.is_symlink() else None
    except FileNotFoundError:
        return None


def _write_aside(temporary: Path, data: bytes, *, mode: int | None) -> None:
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        if mode is not None:
            os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        # close may bring the error of a late write (NFS, quota): it must be seen before the rename
        os.close(descriptor)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # some network file systems cannot flush a folder; the rename is then as durable as they make it
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
