"""The ledger: append-only JSON lines, the truth about a campaign. One writer, whoever reads.

A line is written whole and fsynced before anything that depends on it happens. A head killed inside a write leaves
half a last line: it is moved aside and reported, and the campaign goes on from the line before.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infrarsi_hpc.domain.campaign import SCHEMA_VERSION, CampaignState, apply_event, replay
from infrarsi_hpc.edges.atomic import site_error
from infrarsi_hpc.edges.lock import held, read_holder, this_process
from infrarsi_hpc.errors import LedgerError, SiteError

#: The lock's time is renewed so often; others take a lock for left behind after ten minutes.
TOUCH_SECONDS = 60.0
#: Beside the ledger: who writes it now.
HEAD_LOCK = "head.lock"


def read_events(path: Path) -> tuple[list[dict[str, Any]], bytes]:
    """All whole events of a ledger, and the half-written rest behind the last of them (empty if none).

    Raises
    ------
    LedgerError
        A line before the last is not an event of a schema that this version reads, or numbers are out of order.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], b""
    except OSError as error:
        raise LedgerError(f"{path} cannot be read", why=str(error.strerror), fix="check its permissions") from error
    *lines, rest = data.split(b"\n")
    events: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        event = _parse(line)
        if event is None:
            if number == len(lines) and not rest:
                return events, line + b"\n"  # the last line came to the disk in part, its end included
            raise LedgerError(
                f"{path}, line {number} is not a ledger event",
                why="the file was damaged or edited; what follows cannot be trusted",
                fix=f"restore it from a backup, or keep the first {number - 1} lines: head -n {number - 1} {path}",
            )
        if event["schema_version"] > SCHEMA_VERSION:
            raise LedgerError(
                f"{path}, line {number} has schema {event['schema_version']}; this version reads {SCHEMA_VERSION}",
                why="a newer infrarsi wrote it",
                fix="pip install -U infrarsi-hpc",
            )
        if event["seq"] != len(events) + 1:
            raise LedgerError(
                f"{path}, line {number} has number {event['seq']} where {len(events) + 1} is due",
                why="lines are missing, doubled or out of order",
                fix="restore the file from a backup",
            )
        events.append(event)
    return events, rest


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    if not isinstance(event, dict):
        return None
    named = (("schema_version", int), ("seq", int), ("time", (int, float)), ("event", str))
    return event if all(isinstance(event.get(name), kind) for name, kind in named) else None


def load_state(path: Path) -> CampaignState:
    """Replay a ledger for reading; a half-written last line is left where it is."""
    return _replay(path, read_events(path)[0])


def _replay(path: Path, events: list[dict[str, Any]]) -> CampaignState:
    try:
        return replay(events)
    except (KeyError, ValueError, TypeError) as error:
        raise LedgerError(
            f"{path} holds an event that cannot be understood",
            why=f"{type(error).__name__}: {str(error)[:300]}",
            fix="if it was edited by hand, restore it; otherwise report this with the file",
        ) from error


class Ledger:
    """The one writer of a campaign's ledger. Holds a lock on it while open."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise site_error(path.parent, error) from error
        self._locked = contextlib.ExitStack()
        self._lock, self._touched = path.with_name(HEAD_LOCK), time.monotonic()
        self._take_lock(self._lock)
        try:
            self._open()
        except BaseException:
            self._locked.close()
            raise

    def _take_lock(self, lock: Path) -> None:
        try:
            self._locked.enter_context(held(lock, wait_seconds=0.0))
        except SiteError as error:
            raise SiteError(
                f"another infrarsi runs this campaign ({read_holder(lock) or 'unknown process'})",
                why="two heads would plan and count the same trials twice",
                fix="wait for it, stop it with Ctrl-C, or start another campaign with --campaign NAME",
            ) from error

    def _open(self) -> None:
        path = self.path
        events, rest = read_events(path)
        self.kept_aside: Path | None = None
        if rest:
            self.kept_aside = path.with_name(f"{path.name}.half-{len(events) + 1}")
            self.kept_aside.write_bytes(rest)
            os.truncate(path, path.stat().st_size - len(rest))
        self.state = _replay(path, events)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def append(self, event: str, **fields: Any) -> None:
        """Write one event through to the disk, then into the state.

        Raises
        ------
        DiskFull
            Nothing was added; the ledger still ends with the event before.
        """
        record = {
            "schema_version": SCHEMA_VERSION,
            "seq": self.state.last_seq + 1,
            "time": self._clock(),
            "event": event,
            **fields,
        }
        line = json.dumps(record, separators=(",", ":"), allow_nan=True).encode() + b"\n"
        self._expect_lock()
        # Ctrl-C between the line and the state would have the next line take the same number
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1})
        try:
            self._write(line)
            apply_event(self.state, record)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def keep_alive(self) -> None:
        """Show other hosts that the lock's holder lives; asked often, done at most once a minute."""
        now = time.monotonic()
        if now - self._touched > TOUCH_SECONDS:
            self._touched = now
            with contextlib.suppress(OSError):
                os.utime(self._lock)

    def _expect_lock(self) -> None:
        if read_holder(self._lock) != this_process():
            raise SiteError(
                "this campaign's lock was taken by another infrarsi",
                why=f"{self._lock} names {read_holder(self._lock) or 'nobody'}: this process was silent for too long",
                fix="let the other one go on; `infrarsi status` shows where it stands",
            )
        self.keep_alive()

    def _write(self, line: bytes) -> None:
        size = os.fstat(self._fd).st_size
        try:
            written = os.write(self._fd, line)
            if written != len(line):
                raise OSError(28, "No space left on device")
            os.fsync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, size)
            raise site_error(self.path, error) from error

    def close(self) -> None:
        """Release the file and the lock."""
        os.close(self._fd)
        self._locked.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
