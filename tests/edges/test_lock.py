"""Locks that outlive their holders are recognised; those of the living are respected."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from infrarsi_hpc.edges import lock
from infrarsi_hpc.errors import SiteError


def _write(path: Path, **changes: object) -> None:
    me = lock.this_process()
    content = {"schema_version": 1, "host": me.host, "pid": me.pid, "started": me.started, **changes}
    path.write_text(json.dumps(content))


def test_a_lock_is_there_for_the_block_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock.held(path):
        assert lock.read_holder(path) == lock.this_process()
    assert list(tmp_path.iterdir()) == []


def test_a_living_holder_is_respected_and_named(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock.held(path), pytest.raises(SiteError, match=f"process {os.getpid()}"), lock.held(path, wait_seconds=0):
        pass


def test_a_killed_holders_lock_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import pathlib, sys, signal\n"
        "from infrarsi_hpc.edges import lock\n"
        "with lock.held(pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True); signal.pause()\n"
    )
    child = subprocess.Popen([sys.executable, "-B", "-c", code, path], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    with pytest.raises(SiteError), lock.held(path, wait_seconds=0):
        pass
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with lock.held(path, wait_seconds=0):
        assert lock.read_holder(path) == lock.this_process()
    assert list(tmp_path.iterdir()) == []


def test_a_reused_process_number_is_not_the_holder(tmp_path: Path) -> None:
    # the naive answer asks whether the number is alive: here it is, since it is our own
    path = tmp_path / "lock"
    _write(path, started="another-boot:12345")
    with lock.held(path, wait_seconds=0):
        pass


@pytest.mark.parametrize("content", ["", "{", '{"host": "elsewhere", "pid": 7, "started": "x:1"}', "[]"])
def test_another_hosts_or_an_unreadable_lock_is_respected_until_it_is_old(tmp_path: Path, content: str) -> None:
    path = tmp_path / "lock"
    path.write_text(content)
    with pytest.raises(SiteError), lock.held(path, wait_seconds=0):
        pass
    old = path.stat().st_mtime - lock.STALE_SECONDS - 1
    os.utime(path, (old, old))
    with lock.held(path, wait_seconds=0):
        pass


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="cannot write"), lock.held(tmp_path / "none" / "lock"):
        pass
