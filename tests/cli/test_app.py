"""The command line's manners: quick help, exit codes, messages instead of traces, clean output."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from tiny_program import make_tiny_campaign_project

from infrarsi_hpc.cli import app as cli
from infrarsi_hpc.cli.output import clean, table
from infrarsi_hpc.cli.until import parse_until
from infrarsi_hpc.errors import UsageError


def infrarsi(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "infrarsi_hpc.cli.app", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, timeout=300)


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['infrarsi', '--help']\n"
        "from infrarsi_hpc.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'scipy', 'h5py', 'numpy', 'plotly', 'pydantic', 'submitit'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"
    for verb in ("init", "doctor", "run", "report", "apply"):
        assert verb in done.stdout


def test_the_head_never_imports_torch() -> None:
    code = (
        "import sys\n"
        "import infrarsi_hpc.stages.run.loop, infrarsi_hpc.stages.finished, infrarsi_hpc.stages.attempt\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--no-such-option"], 2, "No such option"),
        (["run", "--max-trials", "none"], 2, "Invalid value"),
        (["run", "--until", "25:99"], 2, "is not a time"),
        (["run", "--budget", "0"], 2, "must be above 0"),
        (["run", "--fix", "delay"], 2, "for example: --fix"),
        (["run", "--fix", "speed=1"], 2, "no knob 'speed'"),
        (["run", "--contract", "none.toml"], 3, "does not exist"),
        (["status"], 4, "there is no campaign"),
        (["report"], 4, "there is no campaign"),
        (["explain", "--kind", "dream", "x"], 2, "no kind 'dream'"),
        (["explain", "--kind", "log", "none.txt"], 3, "cannot be read"),
        (["demo", "."], 3, "not empty"),
        (["init", "nowhere"], 3, ""),
    ],
)
def test_wrong_use_and_bad_input_get_a_message_and_their_exit_code(
    tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    project = tmp_path / "project"
    make_tiny_campaign_project(project)
    assert infrarsi("init", cwd=project).returncode == 0
    done = infrarsi(*arguments, cwd=project)
    assert done.returncode == code, done.stderr + done.stdout
    assert words in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_an_explained_contract_is_one_json_object(tmp_path: Path) -> None:
    make_tiny_campaign_project(tmp_path / "p")
    good = infrarsi("explain", "--kind", "contract", "infrarsi.toml", "--json", cwd=tmp_path / "p")
    assert json.loads(good.stdout)["outcome"] == "ok"
    (tmp_path / "bad.toml").write_text("schema_version = 1\nname = 3\n")
    bad = infrarsi("explain", "--kind", "contract", str(tmp_path / "bad.toml"), "--json")
    explained = json.loads(bad.stdout)
    assert bad.returncode == 3
    assert explained["outcome"] == "refused"
    assert any("name" in finding for finding in explained["findings"])


@pytest.mark.parametrize(
    ("text", "outcome", "detail"),
    [
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
            "you tried to allocate 1048576 bytes. Error code 12 (Cannot allocate memory)\n",
            "host_oom",
            "allocator",
        ),
        ("step 1 loss 2.0\nstep 2 loss 1.9\n", "unknown", None),
        ("", "unknown", None),
        ("\x00\xff\x1b[31mbinary", "unknown", None),
    ],
)
def test_an_explained_log_says_what_the_campaign_would_make_of_it(
    tmp_path: Path, text: str, outcome: str, detail: str | None
) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(text.encode("latin-1"))
    done = infrarsi("explain", str(path), "--json")
    explained = json.loads(done.stdout)
    assert (explained["outcome"], explained["detail"]) == (outcome, detail)


def test_a_file_that_is_no_store_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    path.write_text("<html>503</html>")
    done = infrarsi("explain", "--kind", "store", str(path), "--json")
    assert json.loads(done.stdout)["outcome"] == "refused"


def test_a_defect_is_a_message_with_a_file_not_a_trace(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def broken() -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(cli, "app", broken)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err
    assert ended.value.code == 1
    assert "a defect of this program: RuntimeError: unforeseen" in said
    assert "Traceback" not in said


def test_a_full_disk_anywhere_is_said_as_such(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/x")

    monkeypatch.setattr(cli, "app", full)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 4
    assert "the disk is full" in capsys.readouterr().err


NOW = datetime(2030, 1, 31, 22, 0)


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("07:00", datetime(2030, 2, 1, 7, 0)),
        ("23:30", datetime(2030, 1, 31, 23, 30)),
        ("+90m", datetime(2030, 1, 31, 23, 30)),
        ("+2h", datetime(2030, 2, 1, 0, 0)),
        ("2030-02-03T04:05", datetime(2030, 2, 3, 4, 5)),
    ],
)
def test_points_in_time_as_people_write_them(text: str, then: datetime) -> None:
    assert parse_until(text, NOW) == then.timestamp()


@pytest.mark.parametrize("text", ["soon", "24:00", "7", "+1d", "2029-01-01T00:00"])
def test_what_is_no_time_to_come_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_until(text, NOW)


def test_escapes_from_a_log_do_not_reach_the_terminal() -> None:
    assert clean("a\x1b[31mred\x1b[0m\x07\r\nb") == "ared\nb"


def test_numbers_are_aligned_to_the_right() -> None:
    assert table(("name", "n"), [("a", "1"), ("bb", "22")]).splitlines()[2:] == ["a      1", "bb    22"]
