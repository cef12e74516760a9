"""Detect: ask this machine what cluster it belongs to, and write a first profile with the guesses marked in it.

What is the user's own (the account) goes to the second file, readable by nobody else.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.edges.atomic import write_text
from infrarsi_hpc.edges.site_questions import ask_all
from infrarsi_hpc.edges.site_text import profile_toml, user_toml
from infrarsi_hpc.edges.sites import USER_SUFFIX, check_name, profile_folders
from infrarsi_hpc.errors import SiteError, UsageError
from infrarsi_hpc.stages.site.draft import Draft, SiteTexts, profile_from_texts

DEFAULT_NAME = "detected"


@dataclass(frozen=True)
class Written:
    """The files that hold a detected profile; the second is none where nothing is the user's own."""

    profile: Path
    user: Path | None


def detect(name: str, environment: Mapping[str, str], *, on_progress: Callable[[str], None] = lambda _: None) -> Draft:
    """The profile of the cluster that this machine belongs to; without Slurm, one for the machine itself."""
    check_name(name)
    answers = ask_all(SiteProfile(schema_version=1, name=name), on_progress=on_progress)
    if not answers.texts.get("sinfo") and shutil.which("sinfo") is not None:
        raise SiteError(
            "Slurm is installed here and does not answer",
            why="; ".join(answers.unanswered)[:600] or "sinfo showed no partition",
            fix="is SLURM_CONF set as the site wants it (or its module loaded)? then run it again",
        )
    texts = SiteTexts(
        **answers.texts,
        has_modules=any(environment.get(v) for v in ("LMOD_CMD", "MODULESHOME", "LMOD_DIR")),
        has_apptainer=any(shutil.which(program) for program in ("apptainer", "singularity")),
        unanswered=answers.unanswered,
    )
    return profile_from_texts(name, texts)


def draft_toml(draft: Draft) -> str:
    """The draft as TOML, guesses and remarks as comments."""
    heading = (
        "Made by `infrarsi site detect`. Check it with `infrarsi site check`.",
        "Values marked `guess` were not said by any command.",
        *draft.remarks,
    )
    return profile_toml(
        draft.profile, heading=heading, remarks={f: f"guess: {why}" for f, why in draft.guesses.items()}
    )


def write_draft(draft: Draft, environment: Mapping[str, str], home: Path) -> Written:
    """Write the draft into the user's folder, and what is the user's own beside it with mode 0600.

    Raises
    ------
    UsageError
        There is a profile of that name already.
    """
    folder, _ = profile_folders(environment, home)
    path = folder / f"{draft.profile.name}.toml"
    if path.exists():
        raise UsageError(f"{path} exists", why="a profile that you wrote is not replaced", fix="choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    own = draft.profile.user.model_dump(exclude_defaults=True)
    user_path = folder / f"{draft.profile.name}{USER_SUFFIX}"
    is_new = not user_path.exists()
    if own and is_new:
        write_private(user_path, user_toml(own))
    write_text(path, draft_toml(draft))
    return Written(path, user_path if own and is_new else None)


def write_private(path: Path, text: str) -> None:
    """A file that only its owner can read, from its first byte on."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)
    write_text(path, text)
