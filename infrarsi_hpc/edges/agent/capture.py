"""A program's output, bounded: the beginning and the end are kept, whatever a program writes in between."""

from __future__ import annotations

import contextlib
from pathlib import Path

HEAD_BYTES = 1 << 20
TAIL_BYTES = 1 << 20


class Capture:
    """Collects the output of all ranks into one log file with a rank before each line."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab", buffering=0)
        self._tail = bytearray()
        self._partial: dict[int, bytes] = {}
        self._written = 0
        self.num_bytes = 0
        self.is_disk_full = False

    def feed(self, rank: int, data: bytes) -> None:
        """Take what a rank wrote."""
        self.num_bytes += len(data)
        data = self._partial.get(rank, b"") + data
        *lines, rest = data.split(b"\n")
        if len(rest) > 8192:  # a line without an end: cut it rather than hold it
            lines.append(rest)
            rest = b""
        self._partial[rank] = rest
        if lines:
            self._put(b"".join(b"[%d] %s\n" % (rank, line) for line in lines))

    def _put(self, text: bytes) -> None:
        if self._written < HEAD_BYTES:
            room = HEAD_BYTES - self._written
            self._write(text[:room])
            self._written += len(text[:room])
        self._tail += text
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]

    def _write(self, text: bytes) -> None:
        try:
            self._file.write(text)
        except OSError:  # a full disk must not end a trial: its result matters more than its log
            self.is_disk_full = True

    def finish(self) -> str:
        """Close the log and give its last 16 KiB as text."""
        for rank, rest in self._partial.items():
            if rest:
                self._put(b"[%d] %s\n" % (rank, rest))
        self._partial.clear()
        tail = bytes(self._tail[-TAIL_BYTES:])
        if self.num_bytes > HEAD_BYTES:
            self._write(b"\n... the middle of %d bytes is left out ...\n" % self.num_bytes)
            self._write(tail)
        with contextlib.suppress(OSError):
            self._file.close()
        return tail[-16384:].decode("utf-8", "replace")
