"""Batches on this machine: a process of its own that submitit starts, which outlives a head that is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.domain.trial import TrialSpec
from infrarsi_hpc.edges import batches
from infrarsi_hpc.edges.dispatch import Sight
from infrarsi_hpc.edges.host import node_name
from infrarsi_hpc.edges.lock import Holder, holder_of, is_running
from infrarsi_hpc.errors import SiteError

#: submitit ends a local job after this many minutes; a batch has its own limits, trial by trial.
TIMEOUT_MINUTES = 7 * 24 * 60
#: A batch that was told to stop is gone after this at the latest.
CANCEL_SECONDS = 20.0
THIS_MACHINE = SiteProfile(schema_version=1, name="local")


class LocalDispatcher:
    """One task a batch: timed trials own their host, so they are made one after another."""

    result_grace_seconds = 0.0

    def __init__(self, site: SiteProfile) -> None:
        self.kind = "local"
        self.poll_seconds = self.poll_seconds_max = site.limits.poll_seconds
        self.scratch = site.user.scratch or site.storage.scratch

    def group(self, specs: Sequence[TrialSpec], *, is_one_allocation: bool) -> list[list[TrialSpec]]:
        """All trials in one task."""
        del is_one_allocation
        return [list(specs)]

    def round_size(self, wanted: int) -> int:
        """As many as wanted: they are made one after another anyway."""
        return wanted

    def submit(self, folder: Path, attempt: int, tasks: Sequence[Sequence[TrialSpec]]) -> dict[str, Any]:
        """Start the agent on a batch folder.

        Raises
        ------
        SiteError
            The process could not be started.
        """
        from submitit.local.local import LocalExecutor

        from infrarsi_hpc.edges.agent.main import run_task

        del tasks
        executor = LocalExecutor(folder=folder / "submitit")
        executor.update_parameters(timeout_min=TIMEOUT_MINUTES, stderr_to_stdout=True, gpus_per_node=_num_gpus())
        # children inherit ignored signals: Ctrl-C and a closed terminal reach the head alone
        before = {s: signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGHUP)}
        # the agent is started with -m: modules that lie in the user's current folder are not to be taken for its own
        safe_before = os.environ.get("PYTHONSAFEPATH")
        os.environ["PYTHONSAFEPATH"] = "1"
        try:
            job = executor.submit(run_task, str(folder), attempt, 0, self.scratch)
        except OSError as error:
            raise SiteError(
                "the trials' process could not be started",
                why=error.strerror or str(error),
                fix="look at this user's process and memory limits (ulimit -a), then run the same command again",
            ) from error
        finally:
            if safe_before is None:
                del os.environ["PYTHONSAFEPATH"]
            for number, handler in before.items():
                signal.signal(number, handler)
        holder = holder_of(int(job.job_id))
        return {"kind": "local", "pid": holder.pid, "host": holder.host, "started": holder.started}

    def adopt(self, folder: Path, attempt: int) -> dict[str, Any] | None:
        """None: a process has no name to find it by; its claim and heartbeat show whether it lives."""
        del folder, attempt
        return None

    def look(self, folder: Path, attempt: int, job: Mapping[str, Any] | None) -> list[Sight]:
        """The one task: running while its process or a fresh heartbeat is there."""
        del attempt
        if (job is not None and is_alive(job)) or batches.is_agent_alive(folder):
            return [Sight("running", node=node_name())]
        return [Sight("over", words="the agent ended: " + _last_words(folder))]

    def cancel(self, folder: Path, job: Mapping[str, Any] | None) -> None:
        """Ask the agent to stop and wait until its process is gone."""
        (folder / "cancel").touch()
        deadline = time.monotonic() + CANCEL_SECONDS
        while time.monotonic() < deadline and (is_alive(job) if job is not None else batches.is_agent_alive(folder)):
            time.sleep(0.05)


def is_alive(job: Mapping[str, Any]) -> bool:
    """Whether the job's process is still there; another host's cannot be seen, and its heartbeat must tell."""
    return str(job["host"]) == node_name() and is_running(
        Holder(str(job["host"]), int(job["pid"]), str(job["started"]))
    )


def _last_words(folder: Path) -> str:
    for path in sorted((folder / "submitit").glob("*_log.out"), reverse=True):
        lines = path.read_text("utf-8", "replace").strip().splitlines()
        if lines:
            return lines[-1][:300]
    return "it wrote nothing"


def _num_gpus() -> int:
    """NVIDIA devices of this machine, by their device files (no driver library is loaded for it)."""
    return sum(p.name.removeprefix("nvidia").isdigit() for p in Path("/dev").glob("nvidia*"))
