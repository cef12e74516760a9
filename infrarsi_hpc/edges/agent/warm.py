"""A process that has imported the framework already and forks ranks from itself.

Run by path with the workload's own Python: `python warm.py FD MODULE...`. Importing torch takes seconds; a trial
forked from here starts in milliseconds, and every trial starts equal. One JSON datagram a request, with the
child's log, probe and control pipes as passed file descriptors; replies say `ready`, `started`, `exited`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import importlib.machinery
import importlib.util
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
import types
from collections.abc import Callable, Sequence

MAX_REQUEST = 1 << 18
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def serve(connection: socket.socket) -> None:
    """Answer requests until the other side goes away."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(connection, selectors.EVENT_READ)
    selector.register(reader, selectors.EVENT_READ)
    _reply(connection, {"event": "ready", "pid": os.getpid()})
    while True:
        for key, _ in selector.select():
            if key.fileobj is connection:
                request, fds, _, _ = socket.recv_fds(connection, MAX_REQUEST, 3)
                if not request:
                    return
                _start(connection, json.loads(request), fds)
            else:
                with contextlib.suppress(BlockingIOError):
                    os.read(reader, 4096)
                _reap(connection)


def _reply(connection: socket.socket, message: dict[str, object]) -> None:
    connection.send(json.dumps(message).encode())


def _reap(connection: socket.socket) -> None:
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        used = {"cpu": usage.ru_utime + usage.ru_stime, "preempted": usage.ru_nivcsw}
        _reply(connection, {"event": "exited", "pid": pid, "code": code, **used})


def _start(connection: socket.socket, request: dict[str, object], fds: list[int]) -> None:
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            code = _child(connection, request, fds)
        finally:
            os._exit(code)
    for fd in fds:
        os.close(fd)
    _reply(connection, {"event": "started", "pid": pid})


def _child(connection: socket.socket, request: dict, fds: list[int]) -> int:  # type: ignore[type-arg]
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return 71
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    connection.close()
    log, probe, control = fds
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    # the server's own streams may be closed or shared: give the program fresh ones
    sys.stdout = open(1, "w", buffering=1, closefd=False, encoding="utf-8", errors="replace")
    sys.stderr = open(2, "w", buffering=1, closefd=False, encoding="utf-8", errors="replace")
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path[:] = [request["folder"], *(p for p in sys.path if p)]
    try:
        if request.get("probe"):
            install = _load_probe(request["probe_file"]).install
            _when_torch_is_there(lambda: install(probe, control, request["probe"]))
        return _run(request["argv"])
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BaseException):
                stream.flush()


def _when_torch_is_there(install: Callable[[], None]) -> None:
    """Install the probe now if torch is imported already, else right after its import: it takes seconds."""
    if "torch" in sys.modules:
        install()
    else:
        sys.meta_path.insert(0, _AfterImport(install))


class _AfterImport:
    """Finds torch as usual, once, and lets its loader call `install` at its end."""

    def __init__(self, install: Callable[[], None]) -> None:
        self.install = install

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_install(module: types.ModuleType) -> None:
                execute(module)
                self.install()

            spec.loader.exec_module = execute_and_install  # type: ignore[method-assign]
        return spec


def _load_probe(path: str):  # type: ignore[no-untyped-def]
    spec = importlib.util.spec_from_file_location("infrarsi_probe", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # torch.compile looks the modules of hooks up by their names
    spec.loader.exec_module(module)
    return module


def _run(argv: list[str]) -> int:
    """Run `-m MODULE ARGS...` or `FILE ARGS...` as the main program."""
    if argv[0] == "-m":
        sys.argv = [argv[1], *argv[2:]]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(argv)
        runpy.run_path(argv[0], run_name="__main__")
    return 0


def main() -> None:
    """Import what was named, then serve."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is not needed before the fork
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != here]  # noqa: PTH100
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # whatever a rank starts stays below this process, where the agent finds it
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for name in sys.argv[2:]:
        try:
            importlib.import_module(name)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            _reply(connection, {"event": "failed", "module": name, "text": text[:2000]})
            return
    with contextlib.suppress(ConnectionError):
        serve(connection)


if __name__ == "__main__":
    main()
