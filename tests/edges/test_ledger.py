"""The ledger under honest use, half-written lines, damage, a full disk and a second head."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infrarsi_hpc.edges.ledger import Ledger, load_state, read_events
from infrarsi_hpc.errors import DiskFull, LedgerError, SiteError


def opened(path: Path) -> Ledger:
    return Ledger(path, clock=lambda: 1000.0)


def test_what_was_written_is_read_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "c" / "ledger.jsonl"
    with opened(path) as ledger:
        ledger.append("noted", text="one")
        ledger.append("noted", text="two")
    assert load_state(path).notes == ["one", "two"]
    assert [e["seq"] for e in read_events(path)[0]] == [1, 2]


@pytest.mark.parametrize("rest", [b'{"schema_version":1,"se', b"\x00\x00\x00", b'{"half": tr\n', b"{}\n"])
def test_a_half_written_last_line_is_kept_aside_and_the_rest_goes_on(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    with opened(path) as ledger:
        ledger.append("noted", text="whole")
    with open(path, "ab") as file:
        file.write(rest)
    assert load_state(path).notes == ["whole"]
    with opened(path) as ledger:
        assert ledger.kept_aside is not None
        assert ledger.kept_aside.read_bytes() == rest
        ledger.append("noted", text="next")
    assert load_state(path).notes == ["whole", "next"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda lines: [lines[0], b"garbage", lines[2]], "line 2 is not a ledger event"),
        (lambda lines: [lines[0], lines[2]], "has number 3 where 2 is due"),
        (lambda lines: [lines[0], lines[0], lines[1]], "has number 1 where 2 is due"),
        (
            lambda lines: [lines[0].replace(b'"schema_version":1', b'"schema_version":9'), *lines[1:]],
            "has schema 9; this version reads 1",
        ),
    ],
)
def test_damage_in_the_middle_is_named_with_its_line(tmp_path: Path, damage, words: str) -> None:
    path = tmp_path / "ledger.jsonl"
    with opened(path) as ledger:
        for text in ("a", "b", "c"):
            ledger.append("noted", text=text)
    before = path.read_bytes()
    path.write_bytes(b"\n".join(damage(before.splitlines())) + b"\n")
    damaged = path.read_bytes()
    with pytest.raises(LedgerError, match=words):
        opened(path)
    assert path.read_bytes() == damaged


def test_a_second_head_is_turned_away_and_a_dead_heads_lock_is_not_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with opened(path), pytest.raises(SiteError, match="another infrarsi runs this campaign"):
        opened(path)
    code = f"""
import os
from pathlib import Path
from infrarsi_hpc.edges.ledger import Ledger
ledger = Ledger(Path({str(path)!r}))
ledger.append("noted", text="last words")
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with opened(path) as ledger:
        assert ledger.state.notes == ["last words"]


def test_a_full_disk_leaves_the_ledger_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.jsonl"
    with opened(path) as ledger:
        ledger.append("noted", text="before")
        real = os.write

        def half(fd: int, data: bytes) -> int:
            return real(fd, data[: len(data) // 2])

        monkeypatch.setattr(os, "write", half)
        with pytest.raises(DiskFull, match="cannot write"):
            ledger.append("noted", text="does not fit")
        monkeypatch.undo()
        ledger.append("noted", text="after")
    assert load_state(path).notes == ["before", "after"]
    assert read_events(path)[1] == b""
