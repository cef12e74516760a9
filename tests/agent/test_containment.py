"""What a trial starts ends with it, and all the memory that it holds counts: tiny programs that try otherwise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_program import commit_all, git, make_tiny_project, run_specs, spec

from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.domain.trial import TrialResult, TrialSpec
from infrarsi_hpc.edges.agent import host_load, processes, ranks, trial
from infrarsi_hpc.edges.agent.host_load import HostLoad, Load
from infrarsi_hpc.edges.agent.processes import cpu_seconds, descendants, descendants_now, end_survivors
from infrarsi_hpc.verify.ending import classify

pytestmark = [pytest.mark.training, pytest.mark.campaign]

#: Put into the training loop of the tiny program, before its first step or into every step.
BURNERS = {
    "in a session of its own": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open({pid!r}, "w").write(str(os.getpid()))
        while True: pass
    os._exit(0)
""",
    "that hangs up on nobody and has other files": """
import subprocess
subprocess.Popen([sys.executable, "-c", "import os, signal\\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\\n"
    "open({pid!r}, 'w').write(str(os.getpid()))\\nwhile True: pass"], start_new_session=True, close_fds=True,
    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
""",
    "that begins anew when it is found": """
if os.fork() == 0:
    os.setsid()
    open({pid!r}, "w").write(str(os.getpid()))
    while True:
        if os.fork():
            os._exit(0)
        time.sleep(0.001)
""",
}


def changed(home: Path, anchor: str, code: str) -> tuple[Path, str]:
    """A project of the tiny program with `code` put before the line that is `anchor`, at its depth."""
    folder = home / "project"
    make_tiny_project(folder)
    program = folder / "prog" / "__main__.py"
    lines = program.read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.strip() == anchor)
    depth = len(lines[at]) - len(lines[at].lstrip())
    lines[at:at] = [" " * depth + line for line in code.strip("\n").splitlines()]
    program.write_text("\n".join(lines) + "\n")
    commit_all(folder)
    return folder, git(folder, "rev-parse", "HEAD")


def ending_of(result: TrialResult, described: dict[str, Any]) -> Any:
    return classify(result, TrialSpec.model_validate(described))


@pytest.mark.parametrize("code", BURNERS.values(), ids=BURNERS.keys())
def test_a_process_that_outlives_its_program_is_ended_and_the_trial_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(processes, "LEAVING_SECONDS", 1.0)
    monkeypatch.setattr("infrarsi_hpc.edges.agent.ranks.LEAVING_SECONDS", 1.0)
    note = tmp_path / "pid"
    project = changed(tmp_path, "for step in range(args.steps):", code.format(pid=str(note)))
    described = spec(*project, lengths=[3, 6])
    [result] = run_specs(tmp_path / "batch", described)
    assert len(result.runs) == 1, "what comes next would be slowed by it"
    [run] = result.runs
    assert run.exit_codes == (0,)
    assert run.survivors
    ending = ending_of(result, described)
    assert ending.outcome is Outcome.REFUSED, "naive: ok"
    assert "outlived the program and had to be ended" in ending.evidence
    assert set(descendants(os.getpid())) == set(descendants_now(os.getpid()))
    assert not Path(f"/proc/{note.read_text()}").exists()


def test_helpers_that_leave_by_themselves_are_nothing(tmp_path: Path) -> None:
    code = 'import subprocess\nsubprocess.Popen(["sleep", "0.3"], start_new_session=True)'
    project = changed(tmp_path, "for step in range(args.steps):", code)
    [result] = run_specs(tmp_path / "batch", spec(*project, lengths=[3]))
    assert result.runs[0].survivors == ()


def test_a_program_that_kills_what_holds_it_hides_nothing_from_the_agent(tmp_path: Path) -> None:
    """Without its parent, the forked process is the agent's: it is a subreaper too."""
    note = tmp_path / "pid"
    code = BURNERS["in a session of its own"].format(pid=str(note))
    code += f"while not os.path.exists({str(note)!r}): pass\nos.kill(os.getppid(), 9)\ntime.sleep(600)\n"
    project = changed(tmp_path, "for step in range(args.steps):", code)
    described = spec(*project, lengths=[3])
    home = tmp_path / "batch"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiny_program.run_task", _as_a_process)
        [result] = run_specs(home, described)
    assert result.runs[0].exit_codes == (-9,)
    assert not Path(f"/proc/{note.read_text()}").exists()


def _as_a_process(folder: str, attempt: int) -> str:
    command = [sys.executable, "-m", "infrarsi_hpc.edges.agent.main", folder, str(attempt), "0"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_what_is_below_a_process_is_found_and_ended_whatever_its_depth() -> None:
    nested = "import subprocess, sys, time\n"
    nested += "subprocess.Popen([sys.executable, '-c', 'print(1, flush=True); import time; time.sleep(600)'])\n"
    with subprocess.Popen([sys.executable, "-c", nested + "time.sleep(600)"], stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout is not None
            parent.stdout.readline()
            below = descendants(parent.pid)
            assert len(below) == 1
            assert descendants_now(parent.pid) == below
            assert cpu_seconds(below[0]) >= 0
            [said] = end_survivors(parent.pid, [], leaving=1)
            assert "time.sleep(600)" in said
            assert descendants(parent.pid) == []
        finally:
            parent.kill()


# ---- memory

MIB = 2**20
#: 32 MiB held in each of these ways, from the second step on.
HIDEOUTS = {
    "private": "held = bytearray({size})",
    "shared": "held = torch.empty({size} // 8).share_memory_().fill_(1)",
    "an anonymous shared mapping": (
        "import mmap; held = mmap.mmap(-1, {size}); [held.write(b'x' * 2**20) for _ in range({size} >> 20)]"
    ),
    "a file without a name": "held = os.memfd_create('x'); [os.write(held, b'x' * 2**20) for _ in range({size} >> 20)]",
    "a file in memory that is open": (
        "held = open('/dev/shm/infrarsi-test', 'wb', 0); [held.write(b'x' * 2**20) for _ in range({size} >> 20)]"
    ),
    "a file in memory that is closed": (
        "held = open('/dev/shm/infrarsi-test', 'wb', 0); [held.write(b'x' * 2**20) for _ in range({size} >> 20)]; "
        "held.close()"
    ),
    "a file in memory by another name": (
        "os.symlink('/dev/shm', 'elsewhere'); held = open('elsewhere/infrarsi-test', 'wb', 0); "
        "[held.write(b'x' * 2**20) for _ in range({size} >> 20)]; held.close()"
    ),
    "a mapped file in memory": "held = torch.from_file('/dev/shm/infrarsi-test', True, {size} // 4); held.fill_(1)",
    "a child process": (
        "import subprocess; child = subprocess.Popen([sys.executable, '-S', '-c', \"held = b'x' * {size}; "
        'print(1, flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE); child.stdout.readline()'
    ),
}


@pytest.fixture(autouse=True)
def clean_memory_files() -> Any:
    yield
    Path("/dev/shm/infrarsi-test").unlink(missing_ok=True)


@pytest.fixture
def until_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Code that waits until the agent has looked three times: whatever is held then has been seen."""
    looks = tmp_path / "looks"
    looks.touch()
    look = ranks._Watch._look_outside

    def looked(watch: ranks._Watch) -> None:
        look(watch)
        with open(looks, "ab") as file:
            file.write(b".")

    monkeypatch.setattr(ranks._Watch, "_look_outside", looked)
    path = str(looks)
    return f"seen = os.path.getsize({path!r}) + 3\nwhile os.path.getsize({path!r}) < seen: time.sleep(0.01)"


@pytest.mark.parametrize("code", HIDEOUTS.values(), ids=HIDEOUTS.keys())
def test_memory_counts_wherever_it_is_held(tmp_path: Path, until_seen: str, code: str) -> None:
    size = 32 * MIB
    code = f"if step == 1: {code.format(size=size)}\n{until_seen}"
    project = changed(tmp_path, "optimizer.step()", code)
    plain = make_tiny_project(tmp_path / "plain")
    limits = {"memory_gib": 24 / 1024, "memory_set_by": "harness"}
    held, limited, free = (
        spec(*project, trial="t1", lengths=[4]),
        spec(*project, trial="t2", lengths=[4], limits=limits),
        spec(tmp_path / "plain", plain, trial="t3", lengths=[4], limits=limits),
    )
    first, second, third = run_specs(tmp_path / "batch", held, limited, free)
    without = third.runs[0].peak_gib[0]
    assert (third.runs[0].exit_codes, third.runs[0].stopped) == ((0,), None)
    assert first.runs[0].peak_gib[0] == pytest.approx(without + size / 2**30, rel=0.2)  # to be shared, half is copied
    ending = ending_of(second, limited)
    assert (ending.outcome, ending.detail) == (Outcome.DEVICE_OOM, "limit"), "naive: it fits, only RLIMIT_DATA counts"
    assert ending.bound_gib >= 24 / 1024


def test_what_others_put_into_memory_file_systems_is_theirs(tmp_path: Path, until_seen: str) -> None:
    """Another job of the same user: seen when a file that a test filled stopped every trial beside it."""
    project = changed(tmp_path, "optimizer.step()", until_seen)
    looks, other = tmp_path / "looks", Path("/dev/shm/infrarsi-test")
    limits = {"memory_gib": 24 / 1024, "memory_set_by": "harness"}
    write = f"import os, time\nwhile os.path.getsize({str(looks)!r}) < 2: time.sleep(0.01)\n"
    write += f"open({str(other)!r}, 'wb').write(b'x' * {64 * MIB})"
    with subprocess.Popen([sys.executable, "-c", write]) as writer:
        [result] = run_specs(tmp_path / "batch", spec(*project, lengths=[12], limits=limits))
        assert writer.wait(timeout=300) == 0
    assert (result.runs[0].exit_codes, result.runs[0].stopped) == ((0,), None), "naive: over its limit"
    assert result.runs[0].peak_gib[0] < 24 / 1024


def test_the_smallest_limit_that_passes_is_the_peak_with_shared_memory_too(tmp_path: Path, until_seen: str) -> None:
    code = f"if step == 1: held = torch.empty(64 * 2**20 // 4).share_memory_().fill_(1)\n{until_seen}"
    project = changed(tmp_path, "optimizer.step()", code)
    free = [spec(*project, trial=f"f{k}", lengths=[4]) for k in range(3)]
    peaks = [max(result.runs[0].peak_gib) for result in run_specs(tmp_path / "free", *free)]
    low, high = 0.5 * min(peaks), 1.5 * max(peaks)
    for k in range(6):
        middle = (low + high) / 2
        limits = {"memory_gib": middle, "memory_set_by": "harness"}
        tries = [spec(*project, trial=f"b{i}", lengths=[4], limits=limits) for i in range(2)]
        results = run_specs(tmp_path / str(k), *tries)
        fits = any(r.runs[0].exit_codes == (0,) and r.runs[0].stopped is None for r in results)
        low, high = (low, middle) if fits else (middle, high)
    assert 0.95 * min(peaks) <= high <= 1.05 * max(peaks)


def test_compilers_before_and_in_the_first_step_are_no_part_of_training(tmp_path: Path) -> None:
    code = (
        "import subprocess\n"
        "if step == 0: subprocess.run([sys.executable, '-c', \"held = b'x' * (64 << 20); import time; time.sleep(1)\"])"
    )
    project = changed(tmp_path, "optimizer.step()", code)
    limits = {"memory_gib": 24 / 1024, "memory_set_by": "harness"}
    [result] = run_specs(tmp_path / "batch", spec(*project, lengths=[4], limits=limits))
    assert (result.runs[0].exit_codes, result.runs[0].stopped) == ((0,), None)


# ---- others' load


def test_load_that_is_not_ours_is_seen(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = f"import os\nif os.fork() == 0:\n os.setsid()\n open({str(note)!r}, 'w').write(str(os.getpid()))"
    code += "\n while 1: pass"
    load = HostLoad()
    subprocess.run([sys.executable, "-c", code], check=True)  # its child is nobody's, as a daemon is
    try:
        while not (note.exists() and note.read_text() and cpu_seconds(int(note.read_text())) > 0.5):
            sum(range(1000))
        seen = load.so_far()
    finally:
        os.kill(int(note.read_text()), signal.SIGKILL)
    assert seen is not None
    assert seen.foreign_cores > 0.02
    assert Load(0.1, 0.1).is_quiet
    assert not Load(0.0, 0.9).is_quiet


def test_our_own_work_is_no_load_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([(10.0, 100.0, 5.0, 50.0), (12.0, 103.0, 5.5, 52.0)])
    monkeypatch.setattr(host_load, "_look", lambda: next(looks))
    assert HostLoad().so_far() == Load(foreign_cores=0.5, stolen_cores=0.25), "naive: 1.5 processors were busy"


def test_a_busy_host_is_waited_for_once_a_batch_and_only_before_runs_that_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(HostLoad, "so_far", lambda self: Load(1.0, 0.0))
    monkeypatch.setattr(trial, "wait_until_quiet", lambda seconds, _: waits.append(seconds) or Load(1.0, 0.0))
    project = tmp_path / "project"
    commit = make_tiny_project(project)
    purposes = ["search", "verify", "verify"]
    results = run_specs(
        tmp_path / "batch",
        *[spec(project, commit, trial=f"t{n}", purpose=purpose, lengths=[3]) for n, purpose in enumerate(purposes)],
    )
    assert waits == [trial.WAIT_SECONDS]
    assert [result.foreign_cores_before for result in results] == [1.0, 1.0, 1.0]
    assert {result.runs[0].foreign_cores for result in results} == {1.0}
