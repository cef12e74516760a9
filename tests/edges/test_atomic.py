"""Whole files or none: full disks, denied folders and killed writers leave the old content."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from infrarsi_hpc.edges import atomic
from infrarsi_hpc.errors import DiskFull, SiteError


def test_a_file_written_twice_has_the_second_content_and_no_temporary_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    atomic.write_json(path, {"a": 1})
    atomic.write_json(path, {"a": "ä"})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": "ä"}
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]


def test_the_permissions_of_an_existing_file_stay(tmp_path: Path) -> None:
    path = tmp_path / "launch.toml"
    path.write_text("old")
    path.chmod(0o640)
    atomic.write_text(path, "new\r\n")
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.read_bytes() == b"new\r\n"


def test_a_symbolic_link_is_replaced_and_what_it_pointed_to_is_left_alone(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("precious")
    link = tmp_path / "link"
    link.symlink_to(outside)
    atomic.write_text(link, "new")
    assert outside.read_text() == "precious"
    assert not link.is_symlink()


@pytest.mark.parametrize(
    ("number", "kind", "why"),
    [
        (errno.ENOSPC, DiskFull, "disk is full"),
        (errno.EDQUOT, DiskFull, "quota"),
        (errno.EROFS, SiteError, "read-only"),
        (errno.EACCES, SiteError, "permission"),
        (errno.EIO, SiteError, "Input/output"),
    ],
)
@pytest.mark.parametrize("call", ["write", "fsync", "close", "rename"])
def test_an_error_at_any_call_leaves_the_old_content_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, kind: type[SiteError], why: str
) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    real_close = os.close

    def fail(*arguments: object) -> None:
        if call == "close":
            real_close(arguments[0])  # type: ignore[arg-type]
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(kind) as caught:
            atomic.write_text(path, "new")
    assert why in caught.value.why
    assert caught.value.fix
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_real_limit_on_file_size_is_reported_as_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    code = (
        "import resource, pathlib, sys\n"
        "from infrarsi_hpc.edges import atomic\n"
        "from infrarsi_hpc.errors import DiskFull\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))\n"
        "try: atomic.write_bytes(pathlib.Path(sys.argv[1]), b'x' * 5000)\n"
        "except DiskFull as error: print(error.why)\n"
    )
    done = subprocess.run([sys.executable, "-B", "-c", code, path], capture_output=True, text=True, check=True)
    assert "limit" in done.stdout
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="cannot write") as caught:
        atomic.write_text(tmp_path / "none" / "file", "x")
    assert "mkdir" in caught.value.fix


def test_nan_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        atomic.write_json(tmp_path / "file", {"a": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_writer_killed_at_a_random_moment_leaves_one_whole_content(tmp_path: Path) -> None:
    # two contents of different sizes in turn, until killed: a plain write would leave a part of one
    path = tmp_path / "file"
    code = (
        "import pathlib, sys\n"
        "from infrarsi_hpc.edges import atomic\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "while True:\n"
        "    atomic.write_bytes(path, b'a' * 300_000); atomic.write_bytes(path, b'b' * 700_000)\n"
    )
    for extra in range(5):
        path.unlink(missing_ok=True)
        child = subprocess.Popen([sys.executable, "-B", "-c", code, path])
        while not path.exists():
            assert child.poll() is None
        for _ in range(extra * 40):
            path.stat()
        child.send_signal(signal.SIGKILL)
        child.wait()
        content = path.read_bytes()
        assert content in (b"a" * 300_000, b"b" * 700_000)
