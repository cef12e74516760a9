"""One trial on a node: private copy, patches, locked files, the runs, the held-out evaluation, one result."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infrarsi_hpc.edges.agent.copies import (
    CopyFailed,
    PatchFailed,
    apply_patch,
    copy_tree,
    differing,
    extract_commit,
    hash_tree,
)
from infrarsi_hpc.edges.agent.host_load import WAIT_SECONDS, HostLoad, wait_until_quiet
from infrarsi_hpc.edges.agent.ranks import Launch, Rank, WarmPython, Watched, WorkloadPythonError, watch
from infrarsi_hpc.edges.agent.shared_memory import mounts
from infrarsi_hpc.edges.agent.surroundings import clean_environment, node_name, write_whole

GIB = 2**30
EVALUATION_SECONDS = 120.0


class Bench:
    """What trials of one batch share: scratch space, pristine copies, warm Pythons."""

    def __init__(self, scratch: Path, is_cancelled: Callable[[], bool]) -> None:
        self.scratch = scratch
        self.is_cancelled = is_cancelled
        self.is_host_busy = False
        self._pristine: dict[tuple[str, str], Path] = {}
        self._digests: dict[Path, dict[str, str]] = {}
        self._warm: dict[tuple[Any, ...], WarmPython] = {}

    def pristine(self, project: str, commit: str) -> Path:
        """An unpatched copy of a commit, made once."""
        key = (project, commit)
        if key not in self._pristine:
            folder = self.scratch / f"pristine-{len(self._pristine)}"
            extract_commit(Path(project), commit, folder)
            self._pristine[key] = folder
            self._digests[folder] = hash_tree(folder)
        self.check_pristine(self._pristine[key])
        return self._pristine[key]

    def check_pristine(self, folder: Path) -> None:
        """Refuse a pristine copy that a program of this batch has changed."""
        if hash_tree(folder) != self._digests[folder]:
            raise _Problem("locked_files_after", "the unpatched copy beside this trial's own was changed by a program")

    def warm(self, python: str, modules: tuple[str, ...], environment: dict[str, str]) -> WarmPython:
        """A warm Python for these modules; a dead one is replaced."""
        key = (python, modules)
        if key in self._warm and not self._warm[key].is_alive:
            self._warm.pop(key).close()
        if key not in self._warm:
            self._warm[key] = WarmPython(python, modules, environment)
        return self._warm[key]

    def close(self) -> None:
        """End the warm Pythons and remove the scratch folder."""
        for warm in self._warm.values():
            warm.close()
        shutil.rmtree(self.scratch, ignore_errors=True)


class _Problem(Exception):
    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind, self.text = kind, text


def make_trial(spec: dict[str, Any], folder: Path, bench: Bench) -> None:
    """Make the trial that `spec` describes and leave `result.json` in `folder`."""
    started = time.time()
    result: dict[str, Any] = {
        "schema_version": 1,
        "trial": spec["trial"],
        "attempt": spec["attempt"],
        "node": node_name(),
        "started_at": started,
        "runs": [],
        "problem": None,
        "problem_text": "",
        "versions": {"python": platform.python_version()},
        "num_cores": len(os.sched_getaffinity(0)),
    }
    scratch = bench.scratch / spec["trial"]
    try:
        scratch.mkdir()
        _make_runs(spec, folder, scratch, bench, result)
    except _Problem as problem:
        result["problem"], result["problem_text"] = problem.kind, problem.text[:4000]
    except Exception as error:  # whatever it is: a result that says so, not an agent that dies with the batch
        result["problem"], result["problem_text"] = "agent", f"{type(error).__name__}: {error}"[:4000]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if _is_cut_short(spec, result) and _was_told_to_stop(bench, result):
        result["problem"], result["problem_text"] = "cancelled", result["problem_text"] or "told to stop"
    result["finished_at"] = time.time()
    # a CPU host is one device however many ranks share it; on GPUs every rank holds one
    devices = spec["ranks"] if spec["device"] == "cuda" else 1
    result["device_seconds"] = devices * (result["finished_at"] - started)
    write_whole(folder / "result.json", json.dumps(result).encode())


def _is_cut_short(spec: dict[str, Any], result: dict[str, Any]) -> bool:
    runs = result["runs"]
    is_whole = len(runs) == len(spec["lengths"]) and not any(runs[-1]["exit_codes"])
    return result["problem"] in (None, "agent") and not is_whole


def _was_told_to_stop(bench: Bench, result: dict[str, Any]) -> bool:
    """A scheduler signals every process of a job, and a rank may have died of it before the agent has heard."""
    hears_it_soon = any(code == -signal.SIGTERM for run in result["runs"] for code in run["exit_codes"])
    deadline = time.monotonic() + (1.0 if hears_it_soon else 0.0)
    while not bench.is_cancelled() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bench.is_cancelled()


def _make_runs(spec: dict[str, Any], folder: Path, scratch: Path, bench: Bench, result: dict[str, Any]) -> None:
    code = scratch / "code"
    load = HostLoad()
    try:
        pristine = bench.pristine(spec["project"], spec["baseline_commit"])
        copy_tree(pristine, code)
    except CopyFailed as error:
        raise _Problem("copy", str(error)) from error
    _check_locked(spec, code, "locked_files_before")
    for patch in spec["patches"]:
        try:
            apply_patch(code, folder / patch["path"], patch["sha256"])
        except PatchFailed as error:
            raise _Problem("patch", str(error)) from error
    _check_locked(spec, code, "locked_files_before")
    shared = scratch / "shared"
    shared.mkdir()
    environment = clean_environment(os.environ, spec["environment"], shared)
    try:
        warm = bench.warm(spec["python"] or sys.executable, tuple(spec["warm_imports"]), environment)
    except WorkloadPythonError as error:
        raise _Problem("agent", str(error)) from error
    _check_host(spec, load, bench, result)
    for index, length in enumerate(spec["lengths"]):
        weights = scratch / f"weights-{index}.pt"
        # caches and temporary files of its own for every run: a compile that only the first one pays bends the slope
        cold = scratch / f"run-{index}"
        cold.mkdir()
        own = clean_environment(os.environ, spec["environment"], cold)
        run, stopped = _one_run(spec, length, code, folder, own, warm, weights, bench)
        is_last = index == len(spec["lengths"]) - 1
        seed = spec["evidence"]["evaluation_seed"]
        if is_last and stopped is None and seed is not None and spec["evaluate"] and weights.exists():
            bench.check_pristine(pristine)
            run["evaluation_loss"] = _evaluate(spec, seed, weights, pristine, folder, environment, warm, bench)
            if run["evaluation_loss"] is None and bench.is_cancelled():
                raise _Problem("cancelled", "stopped while the final weights were being evaluated")
        result["runs"].append(run)
        if stopped is not None or run["survivors"] or any(code != 0 for code in run["exit_codes"]):
            break
    _check_locked(spec, code, "locked_files_after")


def _check_host(spec: dict[str, Any], load: HostLoad, bench: Bench, result: dict[str, Any]) -> None:
    """Look at what others do on this host before anything is timed; runs that decide wait for it to pass, once a batch.

    A host that stayed busy once is busy: waiting before every run would take longer than the runs.
    """
    seen = load.so_far()
    is_deciding = spec["purpose"] in ("verify", "baseline")
    if is_deciding and not bench.is_host_busy and seen is not None and not seen.is_quiet:
        seen = wait_until_quiet(WAIT_SECONDS, bench.is_cancelled)
        bench.is_host_busy = seen is not None and not seen.is_quiet
    result["foreign_cores_before"] = seen.foreign_cores if seen is not None else None


def _check_locked(spec: dict[str, Any], code: Path, kind: str) -> None:
    wrong = differing(code, spec["locked_files"])
    if wrong:
        raise _Problem(kind, "locked files changed: " + ", ".join(wrong[:20]))


def _argv(template: list[str], **values: Any) -> list[str]:
    """Fill the placeholders in; a leading `python` is the warm Python itself."""
    argv = list(template)
    for name, value in values.items():
        argv = [argument.replace("{" + name + "}", str(value)) for argument in argv]
    return argv[1:] if argv[0] in ("python", "python3") else argv


def _one_run(
    spec: dict[str, Any],
    length: int,
    code: Path,
    folder: Path,
    environment: dict[str, str],
    warm: WarmPython,
    weights: Path,
    bench: Bench,
) -> tuple[dict[str, Any], str | None]:
    limits = spec["limits"]
    is_limited = spec["device"] == "cpu" and limits["memory_gib"] is not None
    draw = int.from_bytes(os.urandom(4), "little")
    probe = {
        "length": length,
        # drawn here and now, so that nobody can behave well for one known step
        "evidence_step": 2 + draw % max(1, length - 1) if length > 2 else 1,
        "profile": spec["evidence"]["profile"],
        # in every run, though only the last one's are used: what saving takes must drop out of the slope
        "weights": str(weights),
        "device": spec["device"],
        "memory_gib": limits["memory_gib"] if limits["memory_set_by"] == "harness" else None,
        "operators": spec.get("operators") or {},
        "memory_mounts": mounts() if spec["device"] == "cpu" else [],
    }
    seen = watch(
        warm,
        Launch(
            argv=_argv(spec["command"], steps=length, seed=spec["seed"]),
            folder=code,
            environment=environment,
            num_ranks=spec["ranks"],
            wall_seconds=limits["wall_seconds"],
            idle_seconds=limits["idle_seconds"],
            memory_bytes=int(limits["memory_gib"] * GIB) if is_limited else None,
            probe=probe,
            counts_memory=spec["device"] == "cpu",
            own_folders=(environment["TMPDIR"], str(code)),
            is_ours=lambda path: path == str(weights) or path.startswith(f"{folder}/"),
            is_cancelled=bench.is_cancelled,
        ),
        folder / "log.txt",
    )
    return _run_record(spec, length, seen), seen.stopped


def _run_record(spec: dict[str, Any], length: int, seen: Watched) -> dict[str, Any]:
    ranks = seen.ranks
    num_steps = min(len(rank.step_ends) for rank in ranks)
    setups = [rank.setup_at for rank in ranks if rank.setup_at is not None]
    first = ranks[0].facts
    if spec["device"] == "cuda":
        peaks = [rank.facts["reserved_bytes"] / GIB if "reserved_bytes" in rank.facts else None for rank in ranks]
    else:
        peaks = [rank.memory.peak_gib if rank.memory is not None else None for rank in ranks]
    return {
        "length": length,
        "wall_seconds": seen.wall_seconds,
        "setup_seconds": max(setups) - seen.started if setups else None,
        "step_ends": [max(rank.step_ends[k] for rank in ranks) - seen.started for k in range(num_steps)],
        "exit_codes": [rank.code for rank in ranks],
        "stopped": seen.stopped,
        "peak_gib": peaks,
        "memory_kind": "cuda_reserved" if spec["device"] == "cuda" else "vmdata_growth",
        "steps": [_step(k, ranks) for k in range(num_steps)],
        "num_parameters": first.get("parameters"),
        "parameters_digest": first.get("digest"),
        **_products(ranks),
        "phases": first.get("phases"),
        "log_tail": seen.log_tail,
        "log_bytes": seen.log_bytes,
        "survivors": seen.survivors,
        "host_oom_kills": seen.host_oom_kills,
        "foreign_cores": seen.load.foreign_cores if seen.load else None,
        "stolen_cores": seen.load.stolen_cores if seen.load else None,
        "clock_mhz": seen.clock_mhz,
        "cpu_seconds": _total(ranks, "cpu_seconds"),
        "preemptions": _total(ranks, "preempted"),
    }


def _total(ranks: list[Rank], name: str) -> Any:
    """The sum of a fact over the ranks; none where one of them did not live to tell."""
    values = [rank.facts.get(name) for rank in ranks]
    return None if None in values else sum(values)


def _products(ranks: list[Rank]) -> dict[str, Any]:
    """Products of the counted stretch over all ranks; unknown where a rank has none to show."""
    said = [rank.facts.get("products") for rank in ranks]
    counted = [each for each in said if isinstance(each, dict)]

    def total(name: str) -> float:
        return sum(_number(each.get(name)) or 0.0 for each in counted)

    def names(name: str) -> list[str]:
        return sorted({str(item)[:120] for each in counted for item in list(each.get(name) or [])[:100]})

    tokens = total("tokens")
    is_whole = len(counted) == len(ranks) and tokens > 0
    return {
        "matmul_dtypes": names("dtypes"),
        "linear_flops_per_token": total("weight_flops") / tokens if is_whole else None,
        "other_flops_per_token": total("other_flops") / tokens if is_whole else None,
        "uncounted_operators": names("uncounted"),
    }


def _step(k: int, ranks: list[Rank]) -> dict[str, Any]:
    """One step over all ranks: tokens and hashes add up, losses and movements are means."""
    said = [rank.steps[k] for rank in ranks]
    losses = [_number(s.get("loss")) for s in said]
    return {
        "tokens": sum(int(s.get("tokens") or 0) for s in said),
        "token_hash": f"{sum(int(s.get('hash') or 0) for s in said) % 2**64:016x}",
        "loss": _mean(losses),
        "update_rms": _mean([_number(s.get("update")) for s in said]),
        "moved_share": _mean([_number(s.get("moved")) for s in said]),
    }


def _number(value: Any) -> float | None:
    """A number as a process said it; NaN and infinity arrive as words."""
    if isinstance(value, str):
        return math.nan
    return float(value) if isinstance(value, int | float) else None


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _evaluate(
    spec: dict[str, Any],
    seed: int,
    weights: Path,
    pristine: Path,
    folder: Path,
    environment: dict[str, str],
    warm: WarmPython,
    bench: Bench,
) -> float | None:
    """Held-out loss of the final weights by unpatched code in a process of its own; none if it gave none."""
    seen = watch(
        warm,
        Launch(
            argv=_argv(spec["evaluate"], weights=weights, seed=seed),
            folder=pristine,
            environment=environment,
            num_ranks=1,
            wall_seconds=EVALUATION_SECONDS,
            idle_seconds=EVALUATION_SECONDS,
            memory_bytes=None,
            probe=None,
            is_cancelled=bench.is_cancelled,
        ),
        folder / "evaluation.txt",
    )
    if seen.ranks[0].code != 0:
        return None
    for line in reversed(seen.log_tail.splitlines()):
        try:
            loss = json.loads(line.removeprefix("[0] "))["loss"]
        except (ValueError, KeyError, TypeError):
            continue
        return float(loss) if isinstance(loss, int | float) and math.isfinite(loss) else None
    return None
