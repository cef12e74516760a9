"""The end of a file that may be large: where logs say how they ended."""

from __future__ import annotations

from pathlib import Path


def read_end(path: Path, limit: int) -> str:
    """The last `limit` bytes as text, what is no UTF-8 replaced.

    Raises
    ------
    OSError
        It cannot be read.
    """
    with open(path, "rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - limit))
        return file.read(limit).decode("utf-8", "replace")
