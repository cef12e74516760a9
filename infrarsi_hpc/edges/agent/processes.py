"""Every process that a trial has started, however it forked: found, counted, and ended with it.

A process that forks twice and takes a session of its own leaves its group, its session and its parent. Its ancestors it
cannot leave as long as one of them is a subreaper (Linux prctl(2), PR_SET_CHILD_SUBREAPER): it becomes that one's child
instead of init's.

Does not cover: what a program has others start for it (cron, at, systemd, a daemon that was there before). That shows
as load of the host that is not ours (host_load.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
#: Helpers of an honest program (compile workers, resource trackers) leave by themselves when it has gone.
LEAVING_SECONDS = 10.0
_TICKS = os.sysconf("SC_CLK_TCK")
_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # CONFIG_PROC_CHILDREN


def become_subreaper() -> None:
    """From now on, what descends from this process stays its descendant."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """Living processes below `pid`, nearest first; those that have ended and are not collected yet are left out."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))) is not None and fields[0] not in "ZX":
            children.setdefault(int(fields[1]), []).append(int(entry))
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def descendants_now(pid: int) -> list[int]:
    """The same in a fraction of the time, where the kernel lists children; one that forks meanwhile may be missed."""
    if not _LISTS_CHILDREN:
        return descendants(pid)
    found, queue = [], [pid]
    while queue:
        parent = queue.pop(0)
        below: list[int] = []
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{parent}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{parent}/task/{task}/children", "rb") as file:
                    below += [int(child) for child in file.read().split()]
        found += below
        queue += below
    return found


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and of those of its children that it has collected."""
    fields = _stat(pid)
    return sum(int(field) for field in fields[11:15]) / _TICKS if fields is not None else 0.0


def describe(pid: int) -> str:
    """`python burn.py (4.2 s of processor time)`."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return f"process {pid}"
    command = b" ".join(word for word in words if word).decode(errors="replace") or name
    return f"{command[:160]} ({cpu_seconds(pid):.1f} s of processor time)"


def end_survivors(
    pid: int, before: Collection[int], *, clock: Callable[[], float] = time.monotonic, leaving: float = LEAVING_SECONDS
) -> list[str]:
    """End what still runs below `pid` and was not there `before`, after time to leave by itself; describes each.

    All are stopped before any is killed, until a look finds no new one: a process that forks faster than it is found
    would get away otherwise.
    """
    deadline = clock() + leaving
    while left := set(descendants(pid)) - set(before):
        if clock() >= deadline:
            break
        time.sleep(0.02)
    said: dict[int, str] = {}
    while new := left - set(said):
        for each in new:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGSTOP)
            said[each] = describe(each)
        left = set(descendants(pid)) - set(before)
    for each in said:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(each, signal.SIGKILL)
    gone_by = clock() + leaving
    while set(descendants(pid)) & set(said) and clock() < gone_by:
        time.sleep(0.02)
    for each in said:
        with contextlib.suppress(ChildProcessError):  # one that had become ours is collected by nobody else
            os.waitpid(each, os.WNOHANG)
    return list(said.values())


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on (proc(5)); none for a process that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return None
