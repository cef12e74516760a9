"""Take one task of a batch, a list of trials, and make them one after another: timed trials own their host.

A task is claimed by creating a file, so that a batch that was submitted twice (a head killed at the wrong moment)
is still made once. A file named `cancel` beside it ends it; a heartbeat says that it lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from infrarsi_hpc.edges.agent.processes import become_subreaper
from infrarsi_hpc.edges.agent.surroundings import node_name, write_whole
from infrarsi_hpc.edges.agent.trial import Bench, make_trial

HEARTBEAT_SECONDS = 2.0
#: Whose scratch folders these are: the host and its space of process numbers, since a scratch may be shared.
SCRATCH_PREFIX = f"infrarsi-{platform.node()}-{Path('/proc/self/ns/pid').stat().st_ino}-"


def run_task(folder: str, attempt: int, task: int = 0, scratch: str = "") -> str:
    """Make every trial of one task of `folder/batch.json` that has no result yet; private copies go below `scratch`.

    Returns `done`, `cancelled`, or `claimed` when another process has the task or the head has given it up.
    """
    batch_folder = Path(folder)
    batch = json.loads((batch_folder / "batch.json").read_bytes())
    if batch["attempt"] != attempt or not claim_task(batch_folder, attempt, task):
        return "claimed"
    cancelled = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: cancelled.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cancel_file = batch_folder / "cancel"

    later = batch_folder / f"claim-{attempt}-{task}-restart-{_restarts() + 1}"

    def is_cancelled() -> bool:
        # a node that lost its slurmd goes on with what the requeued job makes elsewhere
        return cancelled.is_set() or cancel_file.exists() or later.exists()

    # not gettempdir(): on a full /tmp it gives the current folder, which is on the shared file system
    root = os.path.expandvars(scratch) or os.environ.get("TMPDIR") or "/tmp"
    try:
        Path(root).mkdir(parents=True, exist_ok=True)
        _sweep_scratch(Path(root))
        bench_folder = Path(tempfile.mkdtemp(prefix=f"{SCRATCH_PREFIX}{os.getpid()}-", dir=root))
    except OSError as error:
        sys.exit(f"infrarsi: no scratch folder on {node_name()}: {root}: {error.strerror}")
    # the folder's name says whose it is, so that a later agent can remove what a killed one left
    bench = Bench(bench_folder, is_cancelled)
    stop = threading.Event()
    status: dict[str, Any] = {"pid": os.getpid(), "node": node_name(), "trial": None, "started": time.time()}
    beat = threading.Thread(target=_beat, args=(batch_folder / f"heartbeat-{task}.json", status, stop), daemon=True)
    beat.start()
    try:
        for entry in batch["tasks"][task]:
            if is_cancelled():
                return "cancelled"
            trial_folder = Path(entry)
            spec = json.loads((trial_folder / "spec.json").read_bytes())
            if _has_result(trial_folder, spec["attempt"]):
                continue
            status["trial"] = spec["trial"]
            (trial_folder / f"began-{spec['attempt']}").touch()
            make_trial(spec, trial_folder, bench)
        return "done"
    finally:
        stop.set()
        beat.join()
        with contextlib.suppress(OSError):
            (batch_folder / f"heartbeat-{task}.json").unlink()  # who ends well does not look alive for a minute
        bench.close()


def claim_task(folder: Path, attempt: int, task: int, *, by: str = "agent") -> bool:
    """Claim a task of a batch by creating a file; false where somebody has it already.

    Slurm starts a requeued job again under its own number: it may take up its own earlier claim, once a restart, but
    never one of the head's (who has given the task up) or of another job's.
    """
    job, restarts = os.environ.get("SLURM_JOB_ID", ""), _restarts()
    name = f"claim-{attempt}-{task}"
    submission = os.environ.get("SLURM_ARRAY_JOB_ID") or job
    claim = {"node": node_name(), "pid": os.getpid(), "by": by, "job": job, "submission": submission}
    if _create(folder / name, claim):
        return True
    if by != "agent" or not job or restarts == 0:
        return False
    try:
        earlier = json.loads((folder / name).read_bytes())
    except (OSError, ValueError):
        return False
    is_own = isinstance(earlier, dict) and earlier.get("by") == "agent" and earlier.get("job") == job
    return is_own and _create(folder / f"{name}-restart-{restarts}", claim)


def _restarts() -> int:
    """How often Slurm has started this job again."""
    text = os.environ.get("SLURM_RESTART_COUNT", "0")
    return int(text) if text.isdigit() else 0


def _create(path: Path, content: dict[str, Any]) -> bool:
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(fd, "w") as file:
        json.dump(content, file)
    return True


def _has_result(folder: Path, attempt: int) -> bool:
    try:
        result = json.loads((folder / "result.json").read_bytes())
        # one that was stopped (preempted, say) is made again when its job is started again
        return bool(result["attempt"] == attempt and result["problem"] != "cancelled")
    except (OSError, ValueError, KeyError):
        return False


def _beat(path: Path, status: dict[str, Any], stop: threading.Event) -> None:
    while True:
        with contextlib.suppress(OSError):
            write_whole(path, json.dumps({**status, "time": time.time()}).encode())
        if stop.wait(HEARTBEAT_SECONDS):
            return


def _sweep_scratch(root: Path) -> None:
    """Remove scratch folders whose process on this node is gone."""
    for folder in root.glob(f"{SCRATCH_PREFIX}*-*"):
        pid = folder.name.removeprefix(SCRATCH_PREFIX).split("-")[0]
        with contextlib.suppress(OSError):
            if pid.isdigit() and not Path(f"/proc/{pid}").exists() and folder.stat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    # FOLDER ATTEMPT TASK [SCRATCH]
    become_subreaper()
    print(run_task(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:5]))
