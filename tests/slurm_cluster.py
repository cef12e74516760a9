"""A real Slurm for tests: submit, wait, look, break one part, and put everything back."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

TESTBED = Path(__file__).resolve().parent.parent / "tools" / "slurm-testbed"
DAEMONS = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd")
BASES = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
PREFIX = "infrarsi-test-slurm-"

T = TypeVar("T")
Finished = subprocess.CompletedProcess[str]


def what_slurm_lacks() -> str | None:
    """Why this machine cannot have the testbed; None where it can."""
    if os.geteuid() != 0:
        return "a Slurm whose nodes have names of their own: needs root"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin"
    if missing := [daemon for daemon in DAEMONS if shutil.which(daemon, path=path) is None]:
        return f"not installed: {', '.join(missing)} (tools/slurm-testbed install)"
    return None


def wait_for(condition: Callable[[], T], seconds: float = 300, what: str = "") -> T:
    """The first true answer of `condition`; fails where there is none within `seconds`."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"no {what or condition} within {seconds} s; at last: {answer!r}"
        time.sleep(0.1)
    return answer


class Cluster:
    """One testbed with a folder and ports of its own, for one process of tests.

    `conf` is its SLURM_CONF and `environment` this process's with it; `jobs` is where outputs go by default.
    """

    def __init__(self, name: str, *options: str) -> None:
        self.base = BASES / f"{PREFIX}{os.getpid()}-{name}"
        self.conf = self.base / "etc" / "slurm.conf"
        self.jobs = self.base / "jobs"
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "SQUEUE"))}
        self.environment["SLURM_CONF"] = str(self.conf)
        self.options = options
        self.port_base = 0

    def up(self) -> str:
        """Start what does not run; what the tool printed."""
        self.port_base = self.port_base or free_ports()
        printed = self.testbed("up", f"--port-base={self.port_base}", *self.options)
        self.jobs.mkdir(exist_ok=True)
        return printed

    def down(self) -> None:
        self.testbed("down", "--wipe")

    def testbed(self, command: str, *arguments: str) -> str:
        """What tools/slurm-testbed prints; fails where it fails."""
        done = self.run(sys.executable, str(TESTBED), command, f"--base={self.base}", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self) -> dict[str, Any]:
        """`healthy`, `daemons` (process id or None), `nodes` (state) and `settings`."""
        done = self.run(sys.executable, str(TESTBED), "status", "--json", f"--base={self.base}")
        status: dict[str, Any] = json.loads(done.stdout)
        return status

    def run(self, *argv: str, text: str = "", seconds: float = 300) -> Finished:
        """Any command inside this cluster; its exit code is the caller's to judge."""
        return subprocess.run(
            argv, env=self.environment, input=text, capture_output=True, text=True, timeout=seconds, check=False
        )

    # jobs

    def sbatch(self, script: str, *options: str) -> str:
        """Submit the lines of a batch script; the job's id. Its output can be read by `output`."""
        output = f"--output={self.jobs}/%A_%a.out" if any("array" in option for option in options) else None
        output = output or f"--output={self.jobs}/%j.out"
        done = self.run("sbatch", "--parsable", output, *options, text=f"#!/bin/bash\n{script}\n")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def output(self, job: str) -> str:
        """What a job has written so far, also before it began."""
        path = self.jobs / f"{job}.out"
        return path.read_text() if path.exists() else ""

    def squeue(self, *options: str) -> list[dict[str, str]]:
        """Rows of squeue with the columns JobID, State, Reason and NodeList, arrays one row a task."""
        done = self.run("squeue", "--noheader", "--array", "--format=%i|%T|%r|%N", *options)
        assert done.returncode == 0, done.stderr
        return [dict(zip(("JobID", "State", "Reason", "NodeList"), row.split("|"), strict=True)) for row in lines(done)]

    def sacct(self, job: str, *options: str) -> list[dict[str, str]]:
        """Rows of sacct: every attempt of a job and every step."""
        columns = ("JobID", "State", "ExitCode", "NodeList", "Elapsed")
        done = self.run("sacct", "-D", "-n", "-P", "-j", job, f"--format={','.join(columns)}", *options)
        assert done.returncode == 0, done.stderr
        return [dict(zip(columns, row.split("|"), strict=True)) for row in lines(done)]

    def state(self, job: str) -> str:
        """A job's state as the controller knows it; empty where it knows no such job."""
        shown = self.run("scontrol", "show", "job", "-o", job).stdout.split()
        return next((word.partition("=")[2] for word in shown if word.startswith("JobState=")), "")

    def wait_for_state(self, job: str, *states: str, seconds: float = 300) -> str:
        """The state of `states` that a job has come to."""
        wait_for(lambda: self.state(job) in states, seconds, f"{' or '.join(states)} of job {job}")
        return self.state(job)

    def wait_for_record(self, job: str, state: str, seconds: float = 300) -> dict[str, str]:
        """The first record of the job itself (not of its steps) in accounting that begins with `state`."""
        return wait_for(
            lambda: next((r for r in self.sacct(job, "-X") if r["State"].startswith(state)), {}),
            seconds, f"record {state} of job {job}",
        )  # fmt: skip

    def expire(self, job: str) -> None:
        """Let a job's time limit be over in a second; Slurm looks every 30 s."""
        self.run("scontrol", "update", f"jobid={job}", "endtime=now+1")

    def begin_again(self, job: str) -> None:
        """Let a requeued job begin in two seconds rather than ten.

        Not at once: within the second in which its credential was revoked Slurm kills it as "non-startable".
        """
        wait_for(lambda: any(row["Reason"] == "BeginTime" for row in self.squeue("--jobs", job)), what="requeued job")
        self.run("scontrol", "update", f"jobid={job}", "starttime=now+2")

    # faults

    def stop(self, daemon: str) -> None:
        """SIGTERM; a node's jobs live on."""
        self.testbed("stop", daemon)

    def start(self, daemon: str) -> None:
        """Start a daemon and wait until it serves."""
        self.testbed("start", daemon)

    def kill(self, daemon: str) -> None:
        """SIGKILL a daemon other than a node's; a controller forgets what it had not saved, jobs of seconds ago too."""
        self.testbed("kill", daemon)

    def kill_node(self, node: str) -> None:
        """A node that loses its power: slurmd and every process of its jobs."""
        self.testbed("kill", node)

    def declare_down(self, node: str) -> None:
        """What the controller finds out by itself some half a minute after a node died; its jobs end as NODE_FAIL."""
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=died")

    def revive_node(self, node: str) -> None:
        """Start a node again and resume it."""
        self.testbed("start", node)

    @contextlib.contextmanager
    def frozen(self, daemon: str) -> Iterator[None]:
        """A daemon that hangs: it holds its ports and answers nothing."""
        pid = self.status()["daemons"][daemon]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def heal_daemons(self) -> None:
        """Every daemon and node serves; jobs go on."""
        if not self.status()["healthy"]:
            self.up()

    def heal(self) -> None:
        """Every daemon and node serves, every partition is up, no job is left."""
        self.heal_daemons()
        partitions = dict(line.split() for line in lines(self.run("sinfo", "-h", "-o", "%R %a")))
        for partition in (name for name, available in partitions.items() if available != "up"):
            self.run("scontrol", "update", f"partitionname={partition}", "state=up")
        if self.squeue():
            self.run("scancel", "--user", getpass.getuser())
            wait_for(lambda: not self.squeue(), 30, "empty queue")


def lines(done: Finished) -> list[str]:
    return [line for line in done.stdout.splitlines() if line]


def free_ports() -> int:
    """The first of 14 ports that nothing listens on, below those that the kernel hands out by itself."""
    for attempt in range(500):
        first = 20_000 + (os.getpid() + attempt) * 20 % 10_000
        with contextlib.suppress(OSError), contextlib.ExitStack() as probes:
            for port in range(first, first + 14):
                probes.enter_context(socket.socket()).bind(("", port))
            return first
    raise AssertionError("no 14 free ports in a row between 20000 and 30000")


def end_leftovers() -> None:
    """End testbeds of test processes that were killed before they could do it themselves."""
    for base in BASES.glob(f"{PREFIX}*"):
        pid = base.name.removeprefix(PREFIX).partition("-")[0]
        if not Path(f"/proc/{pid}").exists():
            subprocess.run([sys.executable, str(TESTBED), "down", "--wipe", f"--base={base}"], check=False)
