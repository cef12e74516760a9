"""Follow a ledger that another process writes: only its new bytes are read; nothing is locked, nothing changed.

Whatever does not simply continue what is known (a line cut off by a dead head, a restored backup, damage) has the
whole file read again by `ledger.load_state`, which alone says what is wrong with a ledger.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from infrarsi_hpc.domain.campaign import SCHEMA_VERSION, CampaignState, apply_event
from infrarsi_hpc.edges.ledger import load_state


class LedgerTail:
    """The state of a campaign as far as its ledger was read; `poll` reads on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = CampaignState()
        self._offset = 0
        self._inode = 0

    def poll(self) -> bool:
        """Take in what is new; gives whether anything was. A line that is being written is left for the next time.

        Raises
        ------
        LedgerError
            The ledger is damaged or cannot be read.
        """
        try:
            with open(self.path, "rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._inode or found.st_size < self._offset:
                    return self._start_over(found.st_ino)
                file.seek(self._offset)
                new = file.read()
        except OSError:
            return self._start_over(0)  # which says what is wrong
        for line in new.split(b"\n")[:-1]:
            if not self._take(line):
                return self._start_over(self._inode)
            self._offset += len(line) + 1
        return b"\n" in new

    def _take(self, line: bytes) -> bool:
        try:
            event = json.loads(line)
            if event["schema_version"] > SCHEMA_VERSION or event["seq"] != self.state.last_seq + 1:
                return False
            apply_event(self.state, event)
        except (KeyError, ValueError, TypeError):
            return False
        return True

    def _start_over(self, inode: int) -> bool:
        before = self.state.last_seq
        self.state, self._offset, self._inode = CampaignState(), 0, 0  # where it is damaged, until it is mended
        self.state = load_state(self.path)
        # events are numbered from one, a line each; what was appended since only follows them
        lines = self.path.read_bytes().split(b"\n")[: self.state.last_seq] if self.path.exists() else []
        self._offset, self._inode = sum(len(line) + 1 for line in lines), inode
        return self.state.last_seq != before
