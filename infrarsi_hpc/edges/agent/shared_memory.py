"""Memory of a trial that is no process's own data: shared, in files of a memory file system, in processes below a rank.

Whose a file in a memory file system is, nothing on it tells: other jobs of the same user write there too. It is the
trial's if one of its processes was seen with it open or mapped, if the probe saw the program open it, or if it lies in
the trial's own folders.

Does not cover: page cache of files on a disk, memory that others hold for the program, a file that a program behind the
probe's back writes and closes between two looks, and all that was there before the first forward pass.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

#: File systems whose files are memory.
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs", "hugetlbfs")
#: Entries that one look at a memory file system reads at most.
MAX_ENTRIES = 5000
#: Names of areas that are memory without a file anywhere: memfd_create(2), shared anonymous mmap(2), shmget(2).
_NAMELESS = (b"/memfd:", b"/dev/zero (deleted)", b"/SYSV")


@dataclass
class Area:
    """A mapped area of shared memory."""

    inode: int
    size: int
    #: Its resident bytes, each divided by the number of processes that map it.
    share: int = 0


@dataclass(frozen=True)
class _File:
    size: int
    written_ns: int

    @staticmethod
    def of(info: os.stat_result) -> _File:
        return _File(info.st_blocks * 512, info.st_mtime_ns)


@dataclass(frozen=True)
class Mapped:
    """What a process has mapped and touched."""

    shared: tuple[Area, ...] = ()
    #: Bytes that it alone has written, shared memory left out.
    private: int = 0

    @property
    def shared_bytes(self) -> int:
        """Size of its shared areas, each object once: as the data segment is counted, touched or not."""
        largest: dict[int, int] = {}
        for area in self.shared:
            largest[area.inode] = largest.get(area.inode, 0) + area.size
        return sum(largest.values())


class MemoryFiles:
    """Memory file systems of this host, and what files in them hold since this object was made."""

    def __init__(self, own_folders: Collection[str] = (), is_ignored: Callable[[str], bool] = lambda _: False) -> None:
        everywhere = mounts()
        self._prefixes = tuple(f"{mount.rstrip('/')}/".encode() for mount in everywhere)
        self._mounts = [mount for mount in everywhere if _is_for_everybody(mount)]
        self._own_prefixes = tuple(f"{folder.rstrip('/')}/" for folder in own_folders)
        self._is_ignored = is_ignored
        self._claimed: set[int] = set()
        self._claimed_paths: set[str] = set()
        self._before = {inode: file for inode, file, _ in self._lying()}

    def unmapped_bytes(self, pids: Collection[int], mapped: Collection[int]) -> dict[int, int]:
        """Bytes of the trial's files in memory by inode, open in one of `pids` or lying there; not the `mapped` ones.

        A file that was there before counts by its growth, or whole if it was written since.
        """
        self._claimed |= set(mapped)
        sizes = {inode: file for inode, file in self.note_open(pids).items() if inode not in mapped}
        for inode, file, path in self._lying():
            is_own = inode in self._claimed or path in self._claimed_paths or path.startswith(self._own_prefixes)
            if is_own and inode not in mapped:
                sizes.setdefault(inode, file)
        return {inode: file.size - self._standing(inode, file) for inode, file in sizes.items()}

    def note_open(self, pids: Collection[int]) -> dict[int, _File]:
        """The files in memory that these processes have open now; they are the trial's from here on."""
        found = {inode: file for pid in pids for inode, file in self._open(pid)}
        self._claimed |= set(found)
        return found

    def claim(self, path: str) -> None:
        """Take a file that the program was seen to open, and may only be making now, for the trial's."""
        self._claimed_paths.add(path)

    def _standing(self, inode: int, file: _File) -> int:
        before = self._before.get(inode)
        return min(before.size, file.size) if before is not None and before.written_ns == file.written_ns else 0

    def mapped(self, pid: int) -> Mapped:
        """What a process has mapped; nothing if it is gone."""
        shared: list[Area] = []
        private = 0
        area: Area | None = None
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps", "rb") as file:
            for line in file:
                words = line.split(None, 5)
                if not words[0].endswith(b":"):
                    area = None
                    if self._is_memory(words[5].strip() if len(words) > 5 else b""):
                        low, high = (int(end, 16) for end in words[0].split(b"-"))
                        area = Area(int(words[4]), high - low)
                        shared.append(area)
                elif area is not None and words[0] == b"Pss:":
                    area.share = int(words[1]) * 1024
                elif area is None and words[0] == b"Private_Dirty:":
                    private += int(words[1]) * 1024
        return Mapped(tuple(shared), private)

    def _is_memory(self, name: bytes) -> bool:
        return name.startswith(_NAMELESS) or (name.startswith(b"/") and name.startswith(self._prefixes))

    def _open(self, pid: int) -> Iterator[tuple[int, _File]]:
        """Inodes and sizes of files in memory that a process has open, also of those without a name any more."""
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if self._is_memory(os.readlink(entry.path).encode(errors="surrogateescape")):
                        info = os.stat(entry.path)
                        if stat.S_ISREG(info.st_mode):
                            yield info.st_ino, _File.of(info)

    def _lying(self) -> Iterator[tuple[int, _File, str]]:
        """Inodes, sizes and paths of our user's files in the memory file systems that everybody may use."""
        budget, me = MAX_ENTRIES, os.getuid()
        folders = list(self._mounts)
        while folders and budget > 0:
            with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
                for entry in entries:
                    budget -= 1
                    if budget <= 0:
                        return
                    with contextlib.suppress(OSError):
                        info = entry.stat(follow_symlinks=False)
                        if stat.S_ISDIR(info.st_mode):
                            folders.append(entry.path)
                        elif stat.S_ISREG(info.st_mode) and info.st_uid == me and not self._is_ignored(entry.path):
                            yield info.st_ino, _File.of(info), entry.path


def touched_shared_bytes(pid: int) -> int:
    """Resident shared memory of a process, read quickly: whether there is any to look at closely."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
            if line.startswith(b"RssShmem:"):
                return int(line.split()[1]) * 1024
    return 0


def mounts() -> list[str]:
    """Where memory file systems are mounted; in the table blanks are octal escapes (proc(5), mountinfo)."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            row = line.split()
            if row[row.index("-") + 1] in MEMORY_FILE_SYSTEMS:
                found.append(row[4].replace("\\040", " "))
    return list(dict.fromkeys(found))


def _is_for_everybody(path: str) -> bool:
    """Whether programs keep files there: `/dev/shm`, a `/tmp` in memory. The system's own (`/run`) is left alone."""
    with contextlib.suppress(OSError):
        info = os.stat(path)
        return bool(info.st_mode & stat.S_ISVTX) or info.st_uid == os.getuid() != 0
    return False
