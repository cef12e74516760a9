"""A rank's memory, seen and limited from outside: its own data, and what it has mapped of shared memory.

The quantity is VmData, which RLIMIT_DATA limits (Linux proc(5), getrlimit(2)), so peaks and limits lie on one axis;
shared memory, which that limit passes by, is added. The kernel keeps a high-water mark of all mapped memory (VmPeak)
but none of VmData; what is mapped and is neither (code, files, stacks) hardly moves after set-up, so the difference
gives the peak of both together exactly, however short it was. Samples are the fallback where set-up itself had mapped
more than training does. What lies outside a rank (files in memory, its child processes) is handed in by who counts it.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
GIB = 2**30
_FIELDS = (b"VmPeak:", b"VmSize:", b"VmData:", b"VmStk:")


class RankMemory:
    """The growth of one process's memory since `mark`.

    Attributes
    ----------
    shared_bytes
        Shared memory that it has mapped now.
    outside_bytes
        Its part of what the run holds outside its ranks' own memory now: files in memory, child processes.
    apart_bytes
        The part of `outside_bytes` that no rank has ever had mapped, so that it is in none's high-water mark.

    All three are counted by `shared_memory` and set by `ranks`.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._statm = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._status = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
        self._base_bytes: int | None = None
        self._mapped_peak_at_mark = 0
        self._stack_bytes = 0
        self.shared_bytes = self.outside_bytes = self.apart_bytes = 0
        self._shared_at_mark = self._outside_at_mark = self._apart_at_mark = 0
        self.peak_bytes = 0

    def _read_status(self) -> tuple[int, ...]:
        """VmPeak, VmSize, VmData and VmStk in bytes."""
        found = dict.fromkeys(_FIELDS, 0)
        for line in os.pread(self._status, 4096, 0).split(b"\n"):
            name, _, value = line.partition(b"\t")
            if name in found:
                found[name] = int(value.split()[0]) * 1024
        return tuple(found.values())

    def _read_data(self) -> int:
        # statm's sixth field is data plus stack; the stack was read at the mark
        return int(os.pread(self._statm, 200, 0).split()[5]) * PAGE - self._stack_bytes

    def mark(self, limit_bytes: int | None) -> None:
        """Take the present use as the base, and limit growth from here on if asked."""
        self._mapped_peak_at_mark, _, self._base_bytes, self._stack_bytes = self._read_status()
        self._shared_at_mark, self._outside_at_mark = self.shared_bytes, self.outside_bytes
        self._apart_at_mark = self.apart_bytes
        if limit_bytes is not None:
            ceiling = self._base_bytes + limit_bytes
            resource.prlimit(self.pid, resource.RLIMIT_DATA, (ceiling, ceiling))

    def sample(self, look: Callable[[], None] = lambda: None) -> None:
        """Look once at the present use; `look` counts what is not its own data. Silent when the process is gone."""
        if self._base_bytes is None:
            return
        with contextlib.suppress(OSError, IndexError):
            before = self._read_data()
            look()
            # what was freed during the look and taken again as the other kind must not count twice
            self._take(min(before, self._read_data()))

    def settle(self, look: Callable[[], None] = lambda: None) -> None:
        """Take in the peak since the mark from the kernel's own high-water mark."""
        if self._base_bytes is None:
            look()
            return
        with contextlib.suppress(OSError):
            for _ in range(3):
                before = self._read_status()
                look()
                mapped_peak, mapped, data, _ = after = self._read_status()
                if before[1:3] == after[1:3]:  # else the look was of another moment than the figures
                    if mapped_peak > self._mapped_peak_at_mark:
                        neither = mapped - data - self.shared_bytes
                        grown = mapped_peak - neither - self._base_bytes - self._shared_at_mark
                        self.peak_bytes = max(self.peak_bytes, grown + self.apart_bytes - self._apart_at_mark)
                    self._take(data)
                    return

    def _take(self, data: int) -> None:
        assert self._base_bytes is not None
        self.peak_bytes = max(self.peak_bytes, data - self._base_bytes + self.beside_bytes)

    @property
    def beside_bytes(self) -> int:
        """Growth, since the mark, of what the kernel's limit does not count."""
        return self.shared_bytes + self.outside_bytes - self._shared_at_mark - self._outside_at_mark

    def is_over(self, limit_bytes: int) -> bool:
        """Whether it uses more than the limit with the help of what the kernel does not count against it."""
        return self._base_bytes is not None and self.beside_bytes > 0 and self.peak_bytes > limit_bytes

    @property
    def peak_gib(self) -> float | None:
        """Largest growth seen, GiB; none if the process never got past its set-up."""
        return None if self._base_bytes is None else max(0, self.peak_bytes) / GIB

    def close(self) -> None:
        """Give the file descriptors back."""
        os.close(self._statm)
        os.close(self._status)


def host_oom_kills() -> int:
    """How many processes of this one's memory cgroup, and below, the kernel has killed for memory so far.

    Linux, Control Group v2, memory.events; v1, memory.oom_control. Zero where neither can be read.
    """
    try:
        rows = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return 0
    for _, controllers, path in rows:
        if controllers == "":
            found = _oom_kills(Path(f"/sys/fs/cgroup{path}/memory.events"))
        elif "memory" in controllers.split(","):
            found = _oom_kills(Path(f"/sys/fs/cgroup/memory{path}/memory.oom_control"))
        else:
            continue
        if found is not None:
            return found
    return 0


def _oom_kills(path: Path) -> int | None:
    try:
        for line in path.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    except (OSError, ValueError):
        pass
    return None
