"""Signals while something of ours runs: SIGTERM stops like Ctrl-C, SIGUSR1 hands over, a lost terminal is nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class HandOver(BaseException):
    """This process's time is nearly up: end, and leave what was submitted to the next one."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt for SIGTERM as for SIGINT inside the block, HandOver for SIGUSR1; ignore SIGHUP."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    def hand_over(*_: object) -> None:
        raise HandOver

    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, stop),
        signal.SIGUSR1: signal.signal(signal.SIGUSR1, hand_over),
    }
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
