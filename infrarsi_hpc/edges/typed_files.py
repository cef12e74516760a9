"""Files that people write or send, read strictly into typed models; every problem is named with its place.

Covers: size, encoding, syntax (with the line), unknown keys, wrong types and ranges, schemas from the future.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from infrarsi_hpc.errors import InputRefused

MAX_BYTES = 4 * 2**20
Model = TypeVar("Model", bound=BaseModel)


def read_toml(path: Path, model: type[Model], error: type[InputRefused], *, schema: int, fix: str) -> Model:
    """Read a TOML file into `model`.

    Raises
    ------
    InputRefused
        The given subclass: missing, too large, not UTF-8, not TOML, a newer schema, or not what the model says.
    """
    text = _read(path, error, fix)
    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise error(f"{path} is not valid TOML", why=str(problem), fix=fix) from problem
    return validate(value, model, error, path, schema=schema, fix=fix)


def read_json(path: Path, model: type[Model], error: type[InputRefused], *, schema: int, fix: str) -> Model:
    """Read a JSON file into `model`; errors as for `read_toml`."""
    text = _read(path, error, fix, MAX_BYTES * 4)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise error(f"{path} is not valid JSON", why=str(problem)[:300], fix=fix) from problem
    return validate(value, model, error, path, schema=schema, fix=fix)


def validate(value: Any, model: type[Model], error: type[InputRefused], path: Path, *, schema: int, fix: str) -> Model:
    """Check a parsed value against `model`, schema first: a newer file is never half-read."""
    if not isinstance(value, dict):
        raise error(f"{path} does not hold a table", why=f"it holds a {type(value).__name__}", fix=fix)
    found = value.get("schema_version")
    if isinstance(found, int) and not isinstance(found, bool) and found > schema:
        raise error(
            f"{path} has schema {found}; this version reads up to {schema}",
            why="a newer infrarsi wrote it",
            fix="pip install -U infrarsi-hpc",
        )
    try:
        return model.model_validate(value)
    except ValidationError as problem:
        raise error(f"{path} has {_count(problem)}", why="\n     ".join(describe(problem)), fix=fix) from problem


def describe(problem: ValidationError, limit: int = 12) -> list[str]:
    """One line a field: its place in the file, what is wrong, and what stands there."""
    lines = []
    for item in problem.errors(include_url=False)[:limit]:
        place = ".".join(str(part) for part in item["loc"]) or "the file"
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "unknown key"
        elif item["type"] == "missing":
            message = "is missing"
        given = item.get("input")
        shown = f" (found {str(given)[:60]!r})" if isinstance(given, str | int | float) else ""
        lines.append(f"{place}: {message}{shown}")
    if problem.error_count() > limit:
        lines.append(f"... and {problem.error_count() - limit} more")
    return lines


def _count(problem: ValidationError) -> str:
    number = problem.error_count()
    return "a problem" if number == 1 else f"{number} problems"


def _read(path: Path, error: type[InputRefused], fix: str, limit: int = MAX_BYTES) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError as problem:
        raise error(f"{path} does not exist", fix=fix) from problem
    except OSError as problem:
        raise error(f"{path} cannot be read", why=problem.strerror or str(problem), fix=fix) from problem
    if len(data) > limit:
        raise error(f"{path} is larger than {limit // 2**20} MiB", why="such a file is not one of ours", fix=fix)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise error(f"{path} is not UTF-8 text", why=f"byte {problem.start} cannot be decoded", fix=fix) from problem
