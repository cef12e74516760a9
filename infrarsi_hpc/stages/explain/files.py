"""Explain: what would a campaign make of this file? The very code that a campaign runs, on one file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from infrarsi_hpc.domain.outcome import Ending, Outcome
from infrarsi_hpc.edges.file_end import read_end
from infrarsi_hpc.edges.project import read_contract
from infrarsi_hpc.edges.store.audit import inspect_file
from infrarsi_hpc.errors import InputRefused, UsageError
from infrarsi_hpc.stages.explain.gpu import explain_gpu_file
from infrarsi_hpc.stages.explain.profile import explain_profile
from infrarsi_hpc.stages.explain.slurm import explain_slurm_file
from infrarsi_hpc.verify.ending import classify_log

#: A log's end is where its end is explained.
TAIL_BYTES = 64 * 2**20


def explain_file(path: Path, kind: str) -> dict[str, Any]:
    """One object a file: outcome, detail, bound_gib, rank, evidence, action, findings (null where they do not apply).

    Raises
    ------
    UsageError
        There is no such kind.
    """
    if kind not in KINDS:
        raise UsageError(f"there is no kind {kind!r}", fix=f"one of: {', '.join(KINDS)}")
    try:
        return {"file": str(path), "kind": kind, **KINDS[kind](path)}
    except InputRefused as error:
        return {
            "file": str(path),
            "kind": kind,
            **_empty(),
            "outcome": "refused",
            "evidence": error.what,
            **_why(error),
        }


def _why(error: InputRefused) -> dict[str, Any]:
    return {"action": error.fix or None, "findings": [line.strip() for line in error.why.splitlines()]}


def _empty() -> dict[str, Any]:
    return dict.fromkeys(("outcome", "detail", "bound_gib", "rank", "evidence", "action")) | {"findings": []}


def _contract(path: Path) -> dict[str, Any]:
    contract = read_contract(path)
    knobs = [f"{name}: {len(knob.values)} values, baseline {knob.baseline}" for name, knob in contract.knobs.items()]
    action = "`infrarsi init` would check it against the project and lock it"
    return _empty() | {
        "outcome": "ok",
        "evidence": f"contract {contract.name}, digest {contract.digest[:12]}",
        "action": action,
        "findings": knobs,
    }


def _log(path: Path) -> dict[str, Any]:
    try:
        text = read_end(path, TAIL_BYTES)
    except OSError as error:
        raise InputRefused(f"{path} cannot be read", why=error.strerror or str(error), fix="check the path") from error
    ending: Ending | None = classify_log(text)
    if ending is None:
        ending = Ending(outcome=Outcome.UNKNOWN, evidence="no line that says how it ended")
    return _empty() | {
        "outcome": ending.outcome.value,
        "detail": ending.detail,
        "bound_gib": ending.bound_gib,
        "rank": ending.rank,
        "evidence": ending.evidence,
        "action": ending.action,
    }


def _store(path: Path) -> dict[str, Any]:
    return _empty() | inspect_file(path)


KINDS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "contract": _contract,
    "gpu": explain_gpu_file,
    "log": _log,
    "profile": explain_profile,
    "slurm": explain_slurm_file,
    "store": _store,
}
