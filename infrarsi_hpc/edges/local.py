"""Dispatch on this machine through submitit's local executor: one job a batch, its trials one after another.

The job ignores the terminal's signals and outlives the head, so that a head that is killed finds it again by its
process id and start time; a batch is stopped by a file named `cancel`, which works on any file system.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

from infrarsi_hpc.edges.host import node_name
from infrarsi_hpc.edges.lock import Holder, holder_of, is_running
from infrarsi_hpc.errors import SiteError

#: submitit ends a local job after this many minutes; a batch has its own limits, trial by trial.
TIMEOUT_MINUTES = 7 * 24 * 60
#: A batch that was told to stop is gone after this at the latest.
CANCEL_SECONDS = 20.0


def submit(batch_folder: Path, attempt: int = 1, *, scratch: str = "") -> dict[str, Any]:
    """Start the agent on a batch folder, with its private copies in `scratch`; gives the job as the ledger keeps it.

    Raises
    ------
    SiteError
        The process could not be started.
    """
    from submitit.local.local import LocalExecutor

    from infrarsi_hpc.edges.agent.main import run_batch

    executor = LocalExecutor(folder=batch_folder / "submitit")
    executor.update_parameters(timeout_min=TIMEOUT_MINUTES, stderr_to_stdout=True, gpus_per_node=_num_gpus())
    # children inherit ignored signals: Ctrl-C and a closed terminal reach the head alone
    before = {s: signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGHUP)}
    try:
        job = executor.submit(run_batch, str(batch_folder), attempt, scratch)
    except OSError as error:
        raise SiteError(
            "the trials' process could not be started",
            why=error.strerror or str(error),
            fix="look at this user's process and memory limits (ulimit -a), then run the same command again",
        ) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    holder = holder_of(int(job.job_id))
    return {"kind": "local", "pid": holder.pid, "host": holder.host, "started": holder.started}


def is_alive(job: dict[str, Any]) -> bool:
    """Whether the job's process is still there; another host's cannot be seen, and its heartbeat must tell."""
    return str(job["host"]) == node_name() and is_running(
        Holder(str(job["host"]), int(job["pid"]), str(job["started"]))
    )


def cancel(batch_folder: Path, job: dict[str, Any] | None, *, wait_seconds: float = CANCEL_SECONDS) -> None:
    """Ask a batch to stop and wait until its process is gone."""
    (batch_folder / "cancel").touch()
    deadline = time.monotonic() + wait_seconds
    while job is not None and is_alive(job) and time.monotonic() < deadline:
        time.sleep(0.05)


def _num_gpus() -> int:
    """NVIDIA devices of this machine, by their device files (no driver library is loaded for it)."""
    return sum(p.name.removeprefix("nvidia").isdigit() for p in Path("/dev").glob("nvidia*"))
