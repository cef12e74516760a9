"""A campaign's folder on disk: specs and patches out, results and logs in.

`trials/ID/` has a trial's spec, patches, result and log; `rounds/r0001/` a batch with the claims and heartbeats of its
tasks and its submission. A retried trial keeps what its earlier attempts left, numbered.
"""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.domain.trial import MAX_RESULT_BYTES, TrialResult, TrialSpec
from infrarsi_hpc.edges.agent.main import claim_task
from infrarsi_hpc.edges.atomic import age_seconds, site_error, write_bytes, write_json
from infrarsi_hpc.edges.file_end import read_end
from infrarsi_hpc.edges.typed_files import describe
from infrarsi_hpc.errors import TrialFileError

ATTEMPT_FILES = ("result.json", "log.txt", "evaluation.txt")
#: A heartbeat older than this says that its agent is gone.
HEARTBEAT_STALE_SECONDS = 60.0


def trial_folder(campaign: Path, trial: str) -> Path:
    """Where a trial lives."""
    return campaign / "trials" / trial


def round_folder(campaign: Path, number: int) -> Path:
    """Where a round lives."""
    return campaign / "rounds" / f"r{number:04d}"


def write_batch(
    campaign: Path, number: int, attempt: int, tasks: Sequence[Sequence[TrialSpec]], patches: Mapping[str, Patch]
) -> Path:
    """Write everything the agents need for a round, a list of trials a task; the same again changes nothing."""
    folder = round_folder(campaign, number)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cancel").unlink(missing_ok=True)
        for spec in (spec for task in tasks for spec in task):
            home = trial_folder(campaign, spec.trial)
            home.mkdir(parents=True, exist_ok=True)
            _keep_earlier_attempts(home, spec.attempt)
            for file in spec.patches:
                write_bytes(home / file.path, patches[file.sha256].text.encode())
            write_json(home / "spec.json", spec.model_dump(mode="json"))
    except OSError as error:
        raise site_error(folder, error) from error
    listed = [[str(trial_folder(campaign, spec.trial)) for spec in task] for task in tasks]
    write_json(folder / "batch.json", {"schema_version": 1, "attempt": attempt, "tasks": listed})
    return folder


def _keep_earlier_attempts(home: Path, attempt: int) -> None:
    result = home / "result.json"
    try:
        earlier = int(json.loads(result.read_bytes())["attempt"])
    except FileNotFoundError:
        earlier = attempt - 1
    except (OSError, ValueError, KeyError, TypeError):
        earlier = attempt - 1
    if 0 < earlier < attempt:
        for name in ATTEMPT_FILES:
            with contextlib.suppress(FileNotFoundError):
                (home / name).rename(home / f"attempt-{earlier}-{name}")


def read_spec(home: Path) -> TrialSpec:
    """A trial's spec as it was handed out."""
    return TrialSpec.model_validate_json((home / "spec.json").read_bytes())


def read_result(home: Path, attempt: int) -> TrialResult | None:
    """A trial's result for this attempt, or none while there is none.

    Raises
    ------
    TrialFileError
        There is one and it cannot be used: too large, or not what the format says.
    """
    path = home / "result.json"
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_RESULT_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(data) > MAX_RESULT_BYTES:
        raise TrialFileError(f"{path} is larger than 8 MB", why="no result is that large", fix="the trial is retried")
    try:
        result = TrialResult.model_validate_json(data)
    except ValidationError as error:
        raise TrialFileError(
            f"{path} is not a result", why="; ".join(describe(error, 3)), fix="the trial is retried"
        ) from error
    return result if result.attempt == attempt else None


def read_tasks(folder: Path) -> list[list[str]]:
    """The names of the trials of each task, as the round was last handed out."""
    return [[Path(entry).name for entry in task] for task in json.loads((folder / "batch.json").read_bytes())["tasks"]]


def read_heartbeat(folder: Path, task: int = 0) -> dict[str, Any] | None:
    """What a task's agent last said of itself, or none if it never did or is silent for too long."""
    path = folder / f"heartbeat-{task}.json"
    try:
        heartbeat = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return dict(heartbeat) if isinstance(heartbeat, dict) and _is_fresh(path) else None


def _is_fresh(path: Path) -> bool:
    age = age_seconds(path)
    return age is not None and age < HEARTBEAT_STALE_SECONDS


def claim(folder: Path, attempt: int, task: int) -> bool:
    """Claim a task in the agent's place: true means that no agent has begun it, and none ever will."""
    return claim_task(folder, attempt, task, by="head")


@dataclass(frozen=True)
class Claim:
    """Who has claimed a task: `agent` or `head`, and the Slurm job (an array's own number) that the agent runs in."""

    by: str
    submission: str = ""


#: A claim of the head's: the task was not begun, and never will be.
GIVEN_UP = Claim("head")


def read_claim(folder: Path, attempt: int, task: int) -> Claim | None:
    """The claim on a task, or none where nobody has it."""
    try:
        said = json.loads((folder / f"claim-{attempt}-{task}").read_bytes())
        return GIVEN_UP if said["by"] == "head" else Claim(str(said["by"]), str(said.get("submission", "")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Claim("agent")  # being written


def shows_life(folder: Path, attempt: int, task: int) -> bool:
    """Whether a task's agent gave a sign lately: its heartbeat, or a claim too young for one."""
    return read_heartbeat(folder, task) is not None or _is_fresh(folder / f"claim-{attempt}-{task}")


def is_agent_alive(folder: Path) -> bool:
    """Whether an agent of a round lives, as far as heartbeats and (on its own host) its process say."""
    return any(_is_alive(folder, path) for path in folder.glob("claim-*"))


def _is_alive(folder: Path, claim: Path) -> bool:
    said: Any = read_heartbeat(folder, int(claim.name.split("-")[2]))
    if said is None:
        with contextlib.suppress(OSError, ValueError):
            if _is_fresh(claim):
                said = json.loads(claim.read_bytes())
    if not isinstance(said, dict) or said.get("by") == "head":
        return False
    return said.get("node") != platform.node() or Path(f"/proc/{said.get('pid')}").exists()


def log_excerpt(home: Path, limit: int = 4000) -> str:
    """The end of a trial's log."""
    try:
        return read_end(home / "log.txt", limit)
    except OSError:
        return ""
