"""A process's data memory, seen and limited from outside.

The quantity is VmData: what RLIMIT_DATA limits (Linux proc(5), getrlimit(2)), so peaks and limits lie on one axis.
The kernel keeps a high-water mark of all mapped memory (VmPeak) but none of VmData; what is mapped and is not data
(code, files, stacks) hardly moves after set-up, so the difference of the two gives the data's own peak exactly, however
short it was. Samples are the fallback where set-up itself had mapped more than training does.

Does not cover: memory of a rank's own child processes (data workers).
"""

from __future__ import annotations

import contextlib
import os
import resource

PAGE = os.sysconf("SC_PAGE_SIZE")
GIB = 2**30
_FIELDS = (b"VmPeak:", b"VmSize:", b"VmData:", b"VmStk:")


class DataMemory:
    """The growth of one process's data memory since `mark`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._statm = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._status = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
        self._base_bytes: int | None = None
        self._mapped_peak_at_mark = 0
        self._stack_bytes = 0
        self.peak_bytes = 0

    def _read_status(self) -> tuple[int, ...]:
        """VmPeak, VmSize, VmData and VmStk in bytes."""
        found = dict.fromkeys(_FIELDS, 0)
        for line in os.pread(self._status, 4096, 0).split(b"\n"):
            name, _, value = line.partition(b"\t")
            if name in found:
                found[name] = int(value.split()[0]) * 1024
        return tuple(found.values())

    def mark(self, limit_bytes: int | None) -> None:
        """Take the present use as the base, and limit growth from here on if asked."""
        self._mapped_peak_at_mark, _, self._base_bytes, self._stack_bytes = self._read_status()
        if limit_bytes is not None:
            ceiling = self._base_bytes + limit_bytes
            resource.prlimit(self.pid, resource.RLIMIT_DATA, (ceiling, ceiling))

    def sample(self) -> None:
        """Look once at the present use. Silent when the process is gone."""
        if self._base_bytes is None:
            return
        with contextlib.suppress(OSError, IndexError):
            # statm's sixth field is data plus stack; the stack was read at the mark
            used = int(os.pread(self._statm, 200, 0).split()[5]) * PAGE - self._stack_bytes
            self.peak_bytes = max(self.peak_bytes, used - self._base_bytes)

    def settle(self) -> None:
        """Take in the peak since the mark from the kernel's own high-water mark."""
        if self._base_bytes is None:
            return
        with contextlib.suppress(OSError):
            mapped_peak, mapped, data, _ = self._read_status()
            if mapped_peak > self._mapped_peak_at_mark:
                self.peak_bytes = max(self.peak_bytes, mapped_peak - (mapped - data) - self._base_bytes)
            self.peak_bytes = max(self.peak_bytes, data - self._base_bytes)

    @property
    def peak_gib(self) -> float | None:
        """Largest growth seen, GiB; none if the process never got past its set-up."""
        return None if self._base_bytes is None else max(0, self.peak_bytes) / GIB

    def close(self) -> None:
        """Give the file descriptors back."""
        os.close(self._statm)
        os.close(self._status)
