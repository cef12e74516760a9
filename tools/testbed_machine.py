"""What tools/slurm-testbed needs of the machine: packages, processes, a memory cgroup, names and ports.

Does not cover: control groups version 2, which Slurm 22.05 refuses where version 1 is mounted beside it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

PACKAGES = ("slurm-wlm", "slurmdbd", "munge", "mariadb-server")
PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "munged", "munge", "mariadbd", "mariadb", "sbatch", "srun", "sacctmgr")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOSTS = Path("/etc/hosts")
POLICY = Path("/usr/sbin/policy-rc.d")


class TestbedError(Exception):
    """What is wrong, why, and what to do, in one line."""


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TestbedError(f"gave up waiting for {what} after {seconds:.0f} s")
        time.sleep(0.05)


def stat_of(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on; None where it is gone or a zombie (some process 1 reap late)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields


def start_of(pid: int) -> str | None:
    """When a living process started, in ticks since boot."""
    stat = stat_of(pid)
    return stat[19] if stat else None


def end(pids: Iterable[int], first: signal.Signals) -> None:
    """Signal processes, give them five seconds, then SIGKILL what is left."""
    started = {pid: start for pid in pids if (start := start_of(pid))}

    def left() -> list[int]:
        return [pid for pid, start in started.items() if start_of(pid) == start]

    for sent in (first, signal.SIGKILL):
        for pid in left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sent)
        with contextlib.suppress(TestbedError):
            return wait_until(lambda: not left(), 5, "processes to end")
    raise TestbedError(f"processes {left()} do not end, not even by SIGKILL")


def make_memory_cgroup(name: str) -> str | None:
    """A version 1 memory cgroup of our own below the caller's, so that jobs stay inside what holds us; or None."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    roots = [Path(where) for _, where, kind, flags, *_ in mounts if kind == "cgroup" and "memory" in flags.split(",")]
    own = re.search(r"^\d+:memory:/(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    if os.geteuid() != 0 or not roots or own is None:
        return None
    for parent in (roots[0] / own[1], roots[0]):  # a container may see its own cgroup as the root
        with contextlib.suppress(OSError):
            (parent / name).mkdir(exist_ok=True)
            return str(parent / name)
    return None


def remove_cgroup(cgroup: Path) -> None:
    def gone() -> bool:
        for folder, _, _ in os.walk(cgroup, topdown=False):
            with contextlib.suppress(OSError):  # busy for a moment after its last process
                Path(folder).rmdir()
        return not cgroup.exists()

    wait_until(gone, 5, f"{cgroup} to be empty")


def can_have_hostnames() -> bool:
    if os.geteuid() != 0 or not os.access(HOSTS, os.W_OK):
        return False
    return subprocess.run(["unshare", "--uts", "true"], capture_output=True, check=False).returncode == 0


def edit_hosts(base: Path, lines: list[str]) -> None:
    """Make `lines` the only ones of this testbed in /etc/hosts; written in place, as containers mount that file."""
    mark = f" # slurm-testbed {base}\n"
    with HOSTS.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        before = file.read()
        before += "" if before.endswith("\n") else "\n"
        kept = [line for line in before.splitlines(keepends=True) if not line.endswith(mark)]
        after = "".join([*kept, *(line + mark for line in lines)])
        if after != before:
            file.seek(0)
            file.write(after)
            file.truncate()


def missing_programs() -> list[str]:
    return [program for program in PROGRAMS if shutil.which(program, path=SYSTEM_PATH) is None]


def install() -> None:
    """Install the packages without starting a service."""
    if not missing_programs():
        return
    if os.geteuid() != 0:
        raise TestbedError(f"only root can install {', '.join(PACKAGES)}: ask your administrator, or use a container")
    policy_is_ours = not POLICY.exists()
    if policy_is_ours:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    packages = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES)
    try:
        for command in (packages, ("apt-get", "update", "-qq"), packages):
            done = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
            if command is packages and done.returncode == 0:
                return
        raise TestbedError(f"apt-get could not install {', '.join(PACKAGES)}: {done.stderr.strip()[-500:]}")
    finally:
        if policy_is_ours:
            POLICY.unlink()


def refuse_taken_ports(ports: Iterable[int]) -> None:
    """Raise TestbedError for the first port that something else listens on."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except (OSError, OverflowError) as error:
                raise TestbedError(f"port {port} cannot be had ({error}): name another --port-base") from error
