"""A lock file that says who holds it: host, process and that process's start time.

The kernel's and HDF5's own locks fail or lie on NFS and Lustre, so that a lock here is a file made with O_EXCL. A
holder that was killed leaves it behind; it is recognised as stale when its process is gone, or is another one with
the same number (the start times differ). What another host holds cannot be looked at: it is stale once it is older
than `STALE_SECONDS` by the file system's own clock, which no append comes near.

Does not cover: a holder on another host that is suspended for longer than that and then goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from infrarsi_hpc.edges.atomic import age_seconds, site_error
from infrarsi_hpc.errors import SiteError

STALE_SECONDS = 600.0


@dataclass(frozen=True)
class Holder:
    """Who holds a lock. `started` is the process's start in clock ticks since boot, with the boot's id before it."""

    host: str
    pid: int
    started: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def this_process() -> Holder:
    """The holder that this process would be."""
    return holder_of(os.getpid())


def holder_of(pid: int) -> Holder:
    """A process of this host as a holder; one that is gone has no start time."""
    return Holder(socket.gethostname(), pid, _started(pid) or "")


def is_running(holder: Holder) -> bool:
    """Whether this very process still runs; a process of another host is taken to run, since it cannot be seen."""
    if holder.host != socket.gethostname():
        return True
    return bool(holder.started) and _started(holder.pid) == holder.started


@contextlib.contextmanager
def held(path: Path, *, wait_seconds: float = 60.0) -> Iterator[None]:
    """Hold the lock at `path` for the block; a stale lock is taken over.

    Raises
    ------
    SiteError
        Somebody else holds it for longer than `wait_seconds`, or the folder cannot be written.
    """
    deadline = time.monotonic() + wait_seconds
    pause = 0.02
    while not _take(path):
        holder = read_holder(path)
        if _is_stale(path, holder):
            _break(path, holder)
            continue
        if time.monotonic() >= deadline:
            raise SiteError(
                f"{path.parent} is in use by {holder or 'another process'}",
                why=f"it holds {path.name}, and only one process may write at a time",
                fix=f"wait for it to end; if it is surely gone, remove {path}",
            )
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(2 * pause, 1.0)
    try:
        yield
    finally:
        if read_holder(path) == this_process():
            path.unlink(missing_ok=True)


def read_holder(path: Path) -> Holder | None:
    """Who holds the lock; none where there is no lock, or one that says nothing (its writer died while writing)."""
    try:
        value = json.loads(path.read_text(encoding="utf-8")[:4096])
        return Holder(str(value["host"]), int(value["pid"]), str(value["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _take(path: Path) -> bool:
    """Make the lock file, whole: written aside and linked into place, so that no one reads a half-written one."""
    me = this_process()
    aside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    content = {"schema_version": 1, "host": me.host, "pid": me.pid, "started": me.started}
    try:
        aside.write_text(json.dumps(content) + "\n", encoding="utf-8")
        try:
            os.link(aside, path)
        finally:
            aside.unlink(missing_ok=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise site_error(path, error) from error
    return True


def _is_stale(path: Path, holder: Holder | None) -> bool:
    if holder is not None and holder.started and holder.host == socket.gethostname():
        return not is_running(holder)
    return (age_seconds(path) or 0.0) > STALE_SECONDS


def _break(path: Path, stale: Holder | None) -> None:
    """Take a stale lock away; if somebody else was quicker and holds it anew, give theirs back."""
    aside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    except OSError as error:
        raise site_error(path, error) from error
    if read_holder(aside) != stale:
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
    aside.unlink(missing_ok=True)


def _started(pid: int) -> str | None:
    """When a process of this host started: boot id and clock ticks since boot; none where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    # the name in parentheses may itself hold blanks and parentheses; start time is the 20th field after it
    fields = stat.rpartition(")")[2].split()
    if fields[0] == "Z":
        return None
    return f"{boot}:{fields[19]}"
