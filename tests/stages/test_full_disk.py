"""A campaign whose disk fills up: it stops with a message, loses nothing, and goes on once there is room."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_program import make_tiny_campaign_project

from infrarsi_hpc.edges.ledger import read_events

pytestmark = [pytest.mark.training, pytest.mark.campaign, pytest.mark.root, pytest.mark.full]


def infrarsi(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"INFRARSI_STORE": str(project.parent / "store")}
    command = [sys.executable, "-m", "infrarsi_hpc.cli.app", *arguments]
    return subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A project whose campaigns lie on a file system of their own, of a size that a test changes."""
    project = tmp_path / "project"
    make_tiny_campaign_project(project)
    disk = project / ".infrarsi"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=True)
    try:
        yield project
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_stops_the_campaign_and_the_same_command_goes_on(small_disk: Path) -> None:
    assert infrarsi(small_disk, "init").returncode == 0
    assert infrarsi(small_disk, "doctor").returncode == 0
    arguments = ("run", "--max-trials", "4", "--seed", "4", "--no-experience", "--json")
    disk = small_disk / ".infrarsi"
    filler = disk / "filler"
    used = sum(p.stat().st_blocks * 512 for p in disk.rglob("*"))
    with open(filler, "wb") as file:  # all but what the first round's files need
        file.truncate(0)
        file.write(b"\0" * ((64 << 20) - used - (200 << 10)))
    stopped = infrarsi(small_disk, *arguments)
    assert stopped.returncode == 4, stopped.stderr
    assert "cannot write" in stopped.stderr
    assert "the disk is full" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    ledger = disk / "tiny" / "ledger.jsonl"
    before, rest = read_events(ledger)
    assert rest == b""
    filler.unlink()
    done = infrarsi(small_disk, *arguments)
    assert done.returncode in (0, 1), done.stderr
    after, _ = read_events(ledger)
    assert after[: len(before)] == before
    summary = json.loads(done.stdout)
    assert summary["is_closed"]
    assert summary["num_unfinished"] == 0
