"""Find and read site profiles: the user's own first, then the shipped ones; every profile comes through `parse`.

`NAME.user.toml` in the user's folder adds what is the user's own (account, QOS, mail), also to a shipped profile.

Covers: size, encoding, syntax and double keys with their line, schemas from the future (nothing is half-read), types
(no text for a number, no unquoted time), unknown keys, characters that leave their line. A profile that came by import
is refused for use until its owner agreed to what it runs (`site_trust`).
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from infrarsi_hpc.domain.site import SCHEMA_VERSION, SiteProfile, UserPart
from infrarsi_hpc.edges.shipped import shipped
from infrarsi_hpc.edges.site_text import line_of
from infrarsi_hpc.edges.site_trust import require_agreement
from infrarsi_hpc.edges.user_folders import config_folder
from infrarsi_hpc.errors import ProfileError, UsageError

MAX_BYTES = 256 * 1024
USER_SUFFIX = ".user.toml"
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}\Z")
_MAX_PROBLEMS = 20


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong in a profile: the field, its line where known, and what is wrong."""

    field: str
    line: int | None
    text: str

    def __str__(self) -> str:
        where = f" (line {self.line})" if self.line else ""
        return f"{self.field}{where}: {self.text}"


@dataclass(frozen=True)
class Refusal:
    """Why a text is no site profile."""

    what: str
    problems: tuple[Problem, ...]
    fix: str = ""


def parse(text: str) -> SiteProfile | Refusal:
    """The one way from TOML text to a profile: the profile, or why there is none."""
    value = parse_table(text)
    return value if isinstance(value, Refusal) else validate(value, text)


def parse_table(text: str) -> dict[str, Any] | Refusal:
    """TOML text as a table of a schema that this version reads, its fields unchecked."""
    try:
        value = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        return Refusal("is not valid TOML", (_syntax_problem(error),))
    return _newer(value, text) or value


def validate(value: dict[str, Any], text: str = "", model: type[Any] = SiteProfile) -> Any:
    """A parsed table as a profile, its types taken as they are written; or why it is none."""
    version = value.get("schema_version")
    early = []
    if version is not None and (type(version) is not int or version < 1):
        early.append(_problem(text, ("schema_version",), f"the whole number {SCHEMA_VERSION} (found {version!r})"))
        value = {**value, "schema_version": SCHEMA_VERSION}
    try:
        profile = model.model_validate(_tuples(value), strict=True)
    except ValidationError as error:
        found = [*early, *(_described(text, dict(item)) for item in error.errors(include_url=False)[:_MAX_PROBLEMS])]
        if error.error_count() > _MAX_PROBLEMS:
            found.append(Problem("the file", None, f"{error.error_count() - _MAX_PROBLEMS} more problems"))
    else:
        if not early:
            return profile
        found = early
    return Refusal(f"has {_count(len(found))}", tuple(found))


def read_file(path: Path) -> SiteProfile:
    """A profile from one file, without anybody's second file.

    Raises
    ------
    ProfileError
        It cannot be read, or it is no site profile.
    """
    profile: SiteProfile = _accepted(parse(read_text(path)), path)
    return profile


def read_text(path: Path) -> str:
    """A profile's text, bounded.

    Raises
    ------
    ProfileError
        It is missing, too large, or not UTF-8.
    """
    fix = f"check {path}"
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise ProfileError(f"{path} does not exist", fix=fix) from error
    except OSError as error:
        raise ProfileError(f"{path} cannot be read", why=error.strerror or str(error), fix=fix) from error
    if len(data) > MAX_BYTES:
        raise ProfileError(f"{path} is larger than {MAX_BYTES // 1024} KiB", why="no site profile is", fix=fix)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProfileError(f"{path} is not UTF-8 text", why=f"byte {error.start} cannot be decoded", fix=fix) from error


def profile_folders(environment: Mapping[str, str], home: Path) -> tuple[Path, Path]:
    """The user's own folder of profiles, and the shipped one."""
    return config_folder(environment, home) / "sites", shipped("site_profiles")


def profile_paths(environment: Mapping[str, str], home: Path) -> dict[str, Path]:
    """Every profile's file by name, the user's own before the shipped."""
    found: dict[str, Path] = {}
    for folder in profile_folders(environment, home):
        for path in sorted(folder.glob("*.toml")):
            if not path.name.endswith(USER_SUFFIX) and _NAME.match(path.stem):
                found.setdefault(path.stem, path)
    return found


def check_name(name: str) -> str:
    """A name that a profile can have: it is a file's name as well.

    Raises
    ------
    UsageError
        It is not one.
    """
    if not _NAME.match(name) or name.endswith(".user"):
        raise UsageError(
            f"{name[:80]!r} cannot be a site profile's name",
            why="it becomes a file's name: small letters, digits and _ . -, and not ending in .user",
            fix="choose another",
        )
    return name


def read_profile(name: str, environment: Mapping[str, str], home: Path, *, for_use: bool = True) -> SiteProfile:
    """A profile by name, the user's part merged in.

    `for_use` is false where it is only shown or exported: what it runs need not have been agreed to then.

    Raises
    ------
    ProfileError
        There is none of that name, it or the user's part is not what the schema says, or it came by import and what
        it runs has not been agreed to.
    """
    own, _ = profile_folders(environment, home)
    paths = profile_paths(environment, home)
    path = paths.get(name)  # by its name as listed: never a path of the caller's making
    if path is None:
        raise ProfileError(
            f"there is no site profile {name[:80]!r}",
            why=f"known: {', '.join(sorted(paths))}",
            fix=f"name one of these with --site, or write {own}/NAME.toml (`infrarsi site detect --write NAME`)",
        )
    profile = read_file(path)
    if profile.name != name:
        why = "name and file name must agree"
        raise ProfileError(f"{path} calls itself {profile.name!r}", why=why, fix=f"correct {path}")
    if path.parent == own and for_use:
        require_agreement(own, profile)
    user_path = own / f"{name}{USER_SUFFIX}"
    return with_user(profile, user_path) if user_path.is_file() else profile


def with_user(profile: SiteProfile, path: Path) -> SiteProfile:
    """The profile with the user's second file merged in, key by key.

    Raises
    ------
    ProfileError
        The second file is not what the schema says; it may hold `[user]` alone.
    """
    text = read_text(path)
    value = parse_table(text)
    part = _accepted(value if isinstance(value, Refusal) else validate(value, text, UserPart), path)
    merged = profile.user.model_dump() | part.user.model_dump(exclude_unset=True)
    return SiteProfile.model_validate(profile.model_dump() | {"user": merged})


def _accepted(result: Any, path: Path) -> Any:
    if isinstance(result, Refusal):
        why = "\n     ".join(map(str, result.problems))
        raise ProfileError(f"{path} {result.what}", why=why, fix=result.fix or f"correct {path}")
    return result


def _newer(value: dict[str, Any], text: str) -> Refusal | None:
    for place in [("schema_version",), *((("site", i, "schema_version")) for i in range(len(_sites(value))))]:
        table = value if len(place) == 1 else _sites(value)[int(place[1])]
        version = table.get("schema_version") if isinstance(table, dict) else None
        if isinstance(version, int | float) and version > SCHEMA_VERSION:
            what = f"has schema {version}; this version reads up to {SCHEMA_VERSION}"
            said = Problem(
                ".".join(map(str, place)), line_of(text, place), "a newer infrarsi wrote it; nothing was read"
            )
            return Refusal(what, (said,), "pip install -U infrarsi-hpc")
    return None


def _sites(value: dict[str, Any]) -> list[Any]:
    sites = value.get("site")
    return sites if isinstance(sites, list) else []


def _syntax_problem(error: Exception) -> Problem:
    if isinstance(error, RecursionError):
        return Problem("the file", None, "tables or lists are nested too deeply")
    message = str(error)[:300]
    at = re.search(r"\(at line (\d+)", message)
    if re.match(r"Cannot (?:overwrite|declare|mutate)|.*already", message):
        message += ": the same key or table stands twice"
    return Problem("the file", int(at.group(1)) if at else None, message)


def _problem(text: str, place: tuple[str | int, ...], what: str) -> Problem:
    return Problem(".".join(map(str, place)) or "the file", line_of(text, place), what)


def _described(text: str, item: dict[str, Any]) -> Problem:
    """One finding of pydantic in a reader's words."""
    given, kind = item.get("input"), item["type"]
    message = str(item["msg"]).removeprefix("Value error, ").replace("valid tuple", "valid list")
    if kind == "extra_forbidden":
        message = "unknown key"
    elif kind == "missing":
        return _problem(text, item["loc"], "is missing")
    elif isinstance(given, datetime.time | datetime.date | datetime.datetime):
        message = f'is a TOML time or date; put it in quotes: "{given}"'
    elif kind == "string_pattern_mismatch" and isinstance(given, str):
        if given.isprintable():
            message = "has characters that may not stand there"
        else:
            message = (
                "holds a newline, a control character or an invisible one, which could leave its line in a job script"
            )
    shown = f"{str(given)[:60]!r}" if isinstance(given, str) else f"{given}"
    if isinstance(given, list | tuple | dict):
        shown = "a table" if isinstance(given, dict) else "a list"
    return _problem(text, item["loc"], f"{message} (found {shown[:80]})")


def _tuples(value: Any) -> Any:
    """Lists as tuples, so that types can be checked strictly: "4" is no number, 1 is no text."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _count(number: int) -> str:
    return "a problem" if number == 1 else f"{number} problems"
