"""What a folder takes of a quota: bytes on the disk and inodes, which shared file systems count as well."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

BLOCK_BYTES = 512


@dataclass(frozen=True)
class DiskUsage:
    """Bytes on the disk (blocks, not lengths) and inodes."""

    num_bytes: int = 0
    num_inodes: int = 0

    @property
    def mib(self) -> float:
        """The bytes in MiB."""
        return self.num_bytes / 2**20

    def __add__(self, other: DiskUsage) -> DiskUsage:
        return DiskUsage(self.num_bytes + other.num_bytes, self.num_inodes + other.num_inodes)


def disk_usage(folder: Path) -> DiskUsage:
    """What `folder` and all below it takes; links are not followed, and what vanishes meanwhile does not count."""
    blocks: dict[tuple[int, int], int] = {}  # by device and inode: a file with two names counts once
    for path in _all_below(folder):
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            blocks[found.st_dev, found.st_ino] = found.st_blocks
    return DiskUsage(BLOCK_BYTES * sum(blocks.values()), len(blocks))


def last_change(folder: Path) -> float:
    """When anything in `folder` was last changed, Unix seconds."""
    times = [0.0]
    for path in _all_below(folder):
        with contextlib.suppress(OSError):
            times.append(os.lstat(path).st_mtime)
    return max(times)


def _all_below(folder: Path) -> list[str]:
    paths = [str(folder)]
    for where, folders, files in os.walk(folder):
        paths += [os.path.join(where, name) for name in (*folders, *files)]  # noqa: PTH118 (many files: plain text)
    return paths
