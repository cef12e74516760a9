"""Launch a program's ranks and watch them: outside clock, memory, limits, output, and what the probe says."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infrarsi_hpc.edges.agent.capture import Capture
from infrarsi_hpc.edges.agent.host_load import HostLoad, Load, clock_mhz
from infrarsi_hpc.edges.agent.memory import RankMemory, host_oom_kills
from infrarsi_hpc.edges.agent.processes import (
    LEAVING_SECONDS,
    descendants,
    descendants_now,
    end_survivors,
)
from infrarsi_hpc.edges.agent.shared_memory import MemoryFiles, touched_shared_bytes

HERE = Path(__file__).parent
#: Memory is sampled so often; the peak itself comes from the kernel, step by step.
SAMPLE_SECONDS = 0.02
#: Looks are a tenth of a second apart; one that comes so late was of an agent that did not run.
STOOD_STILL_SECONDS = 10.0
#: Ranks that outlive a dead one for so long are waiting for it.
GRACE_SECONDS = 3.0
MAX_PROBE_LINE = 1 << 16


class WorkloadPythonError(Exception):
    """The workload's Python could not be made ready."""


class WarmPython:
    """A running `warm.py` that forks ranks on request."""

    def __init__(
        self, python: str, modules: tuple[str, ...], environment: dict[str, str], timeout: float = 180
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [python, str(HERE / "warm.py"), str(theirs.fileno()), *modules]
        try:
            self.process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise WorkloadPythonError(f"{python} cannot be started: {error.strerror}") from error
        theirs.close()
        self.socket = ours
        ours.settimeout(timeout)
        message = self.receive()
        ours.settimeout(None)
        if message.get("event") == "failed":
            self.close()
            raise WorkloadPythonError(f"{python} cannot import {message['module']}: {message['text']}")
        if message.get("event") != "ready":
            self.close()
            raise WorkloadPythonError(f"{python} did not become ready within {timeout:.0f} s")

    @property
    def is_alive(self) -> bool:
        """Whether it can still fork."""
        return self.process.poll() is None

    def receive(self) -> dict[str, Any]:
        """The next message; an empty one when the process is gone."""
        try:
            data = self.socket.recv(1 << 18)
        except (TimeoutError, ConnectionError):
            return {}
        return dict(json.loads(data)) if data else {}

    def start(self, request: dict[str, Any], fds: list[int]) -> None:
        """Ask for one rank."""
        socket.send_fds(self.socket, [json.dumps(request).encode()], fds)

    def close(self) -> None:
        """End the process and whatever it still holds."""
        self.socket.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()


@dataclass
class Rank:
    """One process of the workload."""

    index: int
    log_fd: int
    probe_fd: int
    control_fd: int
    pid: int | None = None
    memory: RankMemory | None = None
    code: int | None = None
    step_ends: list[float] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    setup_at: float | None = None
    buffer: bytes = b""
    exited_at: float | None = None


@dataclass
class Launch:
    """What to launch, and its limits."""

    argv: list[str]
    folder: Path
    environment: dict[str, str]
    num_ranks: int
    wall_seconds: float
    idle_seconds: float
    memory_bytes: int | None
    probe: dict[str, Any] | None
    #: Whether its memory is the trial's: on a GPU the allocator's own count is.
    counts_memory: bool = False
    #: Folders whose files are the program's, and files that are the harness's own, wherever they lie.
    own_folders: tuple[str, ...] = ()
    is_ours: Callable[[str], bool] = lambda _: False
    #: Asked now and then; a true answer ends the run.
    is_cancelled: Callable[[], bool] = lambda: False


@dataclass
class Watched:
    """What was seen of one run."""

    ranks: list[Rank]
    wall_seconds: float
    started: float
    stopped: str | None
    log_tail: str
    log_bytes: int
    #: Processes that outlived the ranks, and were ended.
    survivors: list[str]
    load: Load | None
    clock_mhz: float | None
    host_oom_kills: int


def watch(warm: WarmPython, launch: Launch, log: Path) -> Watched:
    """Run the ranks to their end, or to a limit."""
    return _Watch(warm, launch, log).run()


class _Watch:
    def __init__(self, warm: WarmPython, launch: Launch, log: Path) -> None:
        self.warm, self.launch = warm, launch
        self.capture = Capture(log)
        self.selector = selectors.DefaultSelector()
        self.ranks: list[Rank] = []
        self.stopped: str | None = None
        self.started = 0.0
        self.last_sign = 0.0
        self._pending: list[Rank] = []
        self._files = MemoryFiles(launch.own_folders, launch.is_ours)
        self._ever_mapped: set[int] = set()
        #: The agent's own helpers: all that comes to its processes later is the program's.
        self._before = descendants(os.getpid())

    def run(self) -> Watched:
        self.selector.register(self.warm.socket, selectors.EVENT_READ, ("warm", None))
        port = _free_port()
        load, kills = HostLoad(), host_oom_kills()
        self.started = self.last_sign = time.monotonic()
        for index in range(self.launch.num_ranks):
            self._start(index, port)
        next_sample = next_check = last_look = self.started
        while any(rank.code is None for rank in self.ranks):
            now = time.monotonic()
            if now - last_look > STOOD_STILL_SECONDS:
                # a suspended job: its clock went on, and whatever was measured across it is worth nothing
                self.stopped = self.stopped or "suspended"
                next_check = now
            last_look = now
            if now >= next_sample:
                self._sample()
                next_sample = now + SAMPLE_SECONDS
            if now >= next_check:
                self._check_limits(now)
                next_check = now + 0.1
            for key, _ in self.selector.select(max(0.0, min(next_sample, next_check) - time.monotonic())):
                kind, rank = key.data
                if kind == "warm":
                    self._take_message()
                elif kind == "log":
                    self._take_log(rank)
                else:
                    self._take_probe(rank)
        wall = max(rank.exited_at or 0.0 for rank in self.ranks) - self.started
        seen, clock = load.so_far(), clock_mhz()
        self._drain()
        # what we stopped had no time to end its helpers
        leaving = 0.0 if self.stopped is not None else LEAVING_SECONDS
        survivors = end_survivors(os.getpid(), self._before, leaving=leaving)
        tail = self.capture.finish()
        return Watched(
            ranks=self.ranks,
            wall_seconds=wall,
            started=self.started,
            stopped=self.stopped,
            log_tail=tail,
            log_bytes=self.capture.num_bytes,
            survivors=survivors,
            load=seen,
            clock_mhz=clock,
            host_oom_kills=max(0, host_oom_kills() - kills),
        )

    def _start(self, index: int, port: int) -> None:
        log_read, log_write = os.pipe()
        probe_read, probe_write = os.pipe()
        control_read, control_write = os.pipe()
        world = str(self.launch.num_ranks)
        environment = {
            **self.launch.environment,
            "RANK": str(index),
            "LOCAL_RANK": str(index),
            "WORLD_SIZE": world,
            "LOCAL_WORLD_SIZE": world,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        request = {
            "argv": self.launch.argv,
            "folder": str(self.launch.folder),
            "environment": environment,
            "probe": {**self.launch.probe, "rank": index} if self.launch.probe is not None else None,
            "probe_file": str(HERE / "probe.py"),
        }
        rank = Rank(index, log_read, probe_read, control_write)
        try:
            self.warm.start(request, [log_write, probe_write, control_read])
        except OSError:
            rank.code, rank.exited_at = 70, time.monotonic()
        else:
            self._pending.append(rank)
        for fd in (log_write, probe_write, control_read):
            os.close(fd)
        self.ranks.append(rank)
        for fd in (log_read, probe_read):
            os.set_blocking(fd, False)
        self.selector.register(log_read, selectors.EVENT_READ, ("log", rank))
        self.selector.register(probe_read, selectors.EVENT_READ, ("probe", rank))

    # ---- what comes in

    def _take_message(self) -> None:
        message = self.warm.receive()
        now = time.monotonic()
        match message.get("event"):
            case "started":
                rank = self._pending.pop(0)
                rank.pid = int(message["pid"])
                with contextlib.suppress(OSError):
                    rank.memory = RankMemory(rank.pid)
            case "exited":
                for rank in self.ranks:
                    if rank.pid is not None and rank.pid == message["pid"]:
                        rank.code, rank.exited_at = int(message["code"]), now
                        rank.facts["cpu_seconds"], rank.facts["preempted"] = message["cpu"], message["preempted"]
                        _kill_group(rank.pid)  # whatever it left running
            case None:  # the warm process is gone, and its children with it
                for rank in self.ranks:
                    if rank.code is None:
                        rank.code, rank.exited_at = -signal.SIGKILL, now
                with contextlib.suppress(KeyError):
                    self.selector.unregister(self.warm.socket)

    def _take_log(self, rank: Rank) -> bool:
        data = _read(rank.log_fd, 1 << 18)
        if data:
            self.capture.feed(rank.index, data)
        elif data == b"":
            self._forget(rank.log_fd)
        return bool(data)

    def _take_probe(self, rank: Rank) -> bool:
        data = _read(rank.probe_fd, 1 << 16)
        now = time.monotonic()
        if data == b"":
            self._forget(rank.probe_fd)
        if not data:
            return False
        *lines, rank.buffer = (rank.buffer + data).split(b"\n")
        rank.buffer = rank.buffer[:MAX_PROBE_LINE]
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict):
                self._understand(rank, message, now)
        return True

    def _understand(self, rank: Rank, message: dict[str, Any], now: float) -> None:
        self.last_sign = now
        if self.launch.counts_memory and rank.memory is not None:
            rank.memory.settle(self._look_outside)
            self._check_memory()
        match message.get("event"):
            case "setup":
                rank.setup_at = now
                rank.facts.update({k: message.get(k) for k in ("parameters", "digest")})
                if rank.memory is not None:
                    with contextlib.suppress(OSError, ValueError):
                        rank.memory.mark(self.launch.memory_bytes)
                with contextlib.suppress(OSError):
                    os.write(rank.control_fd, b"g")
            case "file":
                self._files.claim(str(message.get("path", ""))[:4096])
            case "step":
                rank.step_ends.append(now)
                rank.steps.append(message)
            case "end":
                rank.facts.update({k: message[k] for k in ("products", "reserved_bytes", "phases") if k in message})

    # ---- limits

    def _look_outside(self) -> None:
        """What the ranks have mapped of shared memory, and what the run holds outside their own: files and children."""
        ranks = {rank.pid: rank.memory for rank in self.ranks if rank.pid is not None and rank.memory is not None}
        below = [pid for pid in descendants_now(self.warm.process.pid) if pid not in ranks and pid not in self._before]
        of_ranks: set[int] = set()
        for pid, memory in ranks.items():
            if touched_shared_bytes(pid) or memory.shared_bytes:
                mapped = self._files.mapped(pid)
                memory.shared_bytes = mapped.shared_bytes
                of_ranks |= {area.inode for area in mapped.shared}
        self._ever_mapped |= of_ranks
        of_children: set[int] = set()
        children = 0
        # what compiles before the first step or in it is no part of training
        is_training = all(rank.steps for rank in self.ranks)
        for pid in below:
            mapped = self._files.mapped(pid)
            children += mapped.private if is_training else 0
            children += sum(area.share for area in mapped.shared if area.inode not in of_ranks)
            of_children |= {area.inode for area in mapped.shared}
        files = self._files.unmapped_bytes([*ranks, *below], of_ranks | of_children)
        apart = children + sum(size for inode, size in files.items() if inode not in self._ever_mapped)
        outside = children + sum(files.values())
        for memory in ranks.values():
            memory.outside_bytes, memory.apart_bytes = outside // len(self.ranks), apart // len(self.ranks)

    def _check_memory(self) -> None:
        limit = self.launch.memory_bytes
        if limit is not None and any(r.memory is not None and r.memory.is_over(limit) for r in self.ranks):
            self.stopped = self.stopped or "memory"

    def _sample(self) -> None:
        if self.launch.counts_memory:
            self._files.note_open([rank.pid for rank in self.ranks if rank.pid is not None and rank.code is None])
        for rank in self.ranks:
            if rank.memory is not None and rank.code is None:
                rank.memory.sample(self._look_outside if rank.memory.beside_bytes else lambda: None)

    def _check_limits(self, now: float) -> None:
        dead = [rank for rank in self.ranks if rank.code not in (None, 0)]
        reason = None
        if self.launch.counts_memory:
            self._look_outside()
            self._sample()
            self._check_memory()
        if self.launch.is_cancelled():
            reason = "cancelled"
        elif dead and now - max(rank.exited_at or now for rank in dead) > GRACE_SECONDS:
            reason = "rank_died"
        elif now - self.started > self.launch.wall_seconds:
            reason = "wall"
        elif now - self.last_sign > self.launch.idle_seconds:
            reason = "idle"
        self.stopped = self.stopped or reason
        if self.stopped is not None:
            # at every look: a rank that was only being started had no process to kill the last time
            for rank in self.ranks:
                if rank.code is None and rank.pid is not None:
                    _kill_group(rank.pid)

    # ---- the end

    def _drain(self) -> None:
        for rank in self.ranks:
            while self._take_probe(rank):
                pass
            for _ in range(64):  # bounded: a left-over writer must not hold the agent
                if not self._take_log(rank):
                    break
            for fd in (rank.log_fd, rank.probe_fd):
                self._forget(fd)
                os.close(fd)
            os.close(rank.control_fd)
            if rank.memory is not None:
                rank.memory.close()
        self.selector.close()

    def _forget(self, fd: int) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(fd)


def _read(fd: int, size: int) -> bytes | None:
    """What is there: bytes, b"" at the end, none if nothing yet."""
    try:
        return os.read(fd, size)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
