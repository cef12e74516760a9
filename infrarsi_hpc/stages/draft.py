"""A first contract for a project that has none: what can be read from it, and what is guessed, marked as such.

Looks at file names, at constants in the source (parsed, never run), at the settings file, and at what the program
itself prints for `--help`.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2

from infrarsi_hpc.edges import git
from infrarsi_hpc.edges.atomic import write_text
from infrarsi_hpc.edges.host import num_cores
from infrarsi_hpc.edges.project import read_contract
from infrarsi_hpc.errors import ProjectError

HELP_SECONDS = 60
#: What programs call the parts of a model's shape and the two options that a trial needs.
SHAPE_NAMES = {
    "layers": ("layers", "n_layer", "n_layers", "num_layers", "num_hidden_layers", "depth"),
    "hidden": ("width", "hidden", "hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("heads", "n_head", "n_heads", "num_heads", "num_attention_heads"),
    "feed_forward": ("feed_forward", "ffn_hidden_size", "intermediate_size", "d_ff", "hidden_dim"),
    "vocabulary": ("vocabulary", "vocab_size", "n_vocab"),
    "sequence_length": ("sequence_length", "seq_length", "seq_len", "block_size", "context_length", "max_seq_len"),
    "global_batch": ("global_batch", "global_batch_size", "total_batch_size", "batch_size"),
}
STEP_FLAGS = ("--steps", "--max-steps", "--max-iters", "--train-iters", "--num-steps", "--iterations")
SEED_FLAGS = ("--seed",)
ENTRY_NAMES = ("__main__", "loop", "config", "train", "trainer", "main", "pretrain")
RANK_NAMES = ("ranks", "world_size", "nproc", "data_parallel")


@dataclass
class Draft:
    """What the template is filled from, and what a person should look at."""

    values: dict[str, Any]
    remarks: list[str] = field(default_factory=list)


def draft_contract(root: Path, contract_file: str, goal: str) -> Draft:
    """Write a first contract into the project.

    Raises
    ------
    ProjectError
        Something that a contract needs is nowhere to be found; the message says what.
    """
    files = git.files_at(root, git.head_commit(root))
    command = _command(files)
    help_text = _help(root, command)
    flags = _flags(help_text)
    steps, seed = _first(STEP_FLAGS, flags), _first(SEED_FLAGS, flags)
    settings_file, settings = _settings(root, files)
    shape, guesses = _shape(root, files)
    missing = [
        *([] if steps else [f"an option for the number of steps ({', '.join(STEP_FLAGS[:3])}, ...)"]),
        *([] if seed else ["an option --seed"]),
        *([] if settings else ["a TOML file with a [settings] table: the launch settings that your program reads"]),
        *(
            f"the model's {name} (a constant named like {SHAPE_NAMES[name][0]})"
            for name in SHAPE_NAMES
            if name not in shape
        ),
    ]
    if missing:
        raise ProjectError(
            f"no contract could be drafted for {' '.join(command)}",
            why="these were not found: " + "; ".join(missing),
            fix=f"add them, or write {contract_file} by hand: `infrarsi demo DIR` writes an example with comments",
        )
    package = [f for f in files if f.endswith(".py")]
    locked = [f for f in package if Path(f).stem in ENTRY_NAMES]
    knobs, knob_remarks = _knobs(settings, flags)
    draft = Draft(
        {
            "name": re.sub(r"[^A-Za-z0-9_.-]+", "-", root.name).strip("-.") or "project",
            "goal": goal or "less time a step at the same loss",
            "editable": [f for f in package if f not in locked],
            "locked": locked,
            "settings": settings_file,
            "patches": "patches" if any(f.startswith("patches/") and f.endswith(".diff") for f in files) else None,
            "command": [*command, steps, "{steps}", seed, "{seed}"],
            "evaluate": [*command, "--evaluate", "{weights}", seed, "{seed}"] if "--evaluate" in flags else None,
            "kind": "torch-gpt" if "train/loop.py" in files and "train/attention.py" in files else "torch",
            "shape": shape,
            "knobs": knobs,
        },
        [*guesses, *knob_remarks],
    )
    if not draft.values["editable"]:
        raise ProjectError(
            "no file is left that a patch may change",
            why="every Python file looks like an entry point",
            fix="write scope.editable by hand",
        )
    template = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
    template.filters["toml"] = _toml
    text = template.from_string((Path(__file__).parent / "infrarsi.toml.j2").read_text("utf-8")).render(draft.values)
    write_text(root / contract_file, text)
    read_contract(root / contract_file)  # what we write must be what we read
    return draft


def _command(files: Iterable[str]) -> list[str]:
    """How the program is started: a package with __main__, or a script with a telling name."""
    packages = sorted(Path(f).parent.name for f in files if re.fullmatch(r"[A-Za-z_]\w*/__main__\.py", f))
    scripts = sorted(f for f in files if re.fullmatch(r"(train|main|pretrain)\w*\.py", f))
    if packages:
        return ["python", "-m", packages[0]]
    if scripts:
        return ["python", scripts[0]]
    raise ProjectError(
        "nothing here looks like a training program",
        why="there is no PACKAGE/__main__.py and no train*.py, main*.py or pretrain*.py at the top",
        fix="write infrarsi.toml by hand: `infrarsi demo DIR` writes an example with comments",
    )


def _help(root: Path, command: list[str]) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LD_PRELOAD")} | {"COLUMNS": "200"}
    try:
        done = subprocess.run(
            [sys.executable, *command[1:], "--help"],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=HELP_SECONDS,
            check=False,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _flags(help_text: str) -> dict[str, list[str]]:
    """Options of an argparse help text with their choices (empty where it lists none)."""
    found: dict[str, list[str]] = {}
    for flag, choices in re.findall(r"(--[a-z][a-z0-9-]*)(?:[ =]\{([^}]*)\})?", help_text):
        found.setdefault(flag, [])
        if choices:
            found[flag] = choices.split(",")
    return found


def _first(wanted: Iterable[str], flags: dict[str, list[str]]) -> str | None:
    return next((flag for flag in wanted if flag in flags), None)


def _settings(root: Path, files: Iterable[str]) -> tuple[str | None, dict[str, Any]]:
    for name in sorted(f for f in files if f.endswith(".toml") and "/" not in f and not f.startswith("infrarsi")):
        try:
            table = tomllib.loads((root / name).read_text("utf-8")).get("settings")
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            continue
        if isinstance(table, dict) and table:
            return name, table
    return None, {}


def _shape(root: Path, files: Iterable[str]) -> tuple[dict[str, int], list[str]]:
    """Whole-number constants with the names that shapes have."""
    constants: dict[str, tuple[int, str]] = {}
    for name in (f for f in files if f.endswith(".py")):
        try:
            tree = ast.parse((root / name).read_text("utf-8"))
        except (OSError, SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            value = getattr(node, "value", None)
            if isinstance(value, ast.Constant) and type(value.value) is int and value.value > 0:
                for target in targets:
                    if isinstance(target, ast.Name):
                        constants.setdefault(target.id.lower(), (value.value, f"{name}:{node.lineno}"))  # type: ignore[attr-defined]
    shape, remarks = {}, []
    for part, names in SHAPE_NAMES.items():
        found = next((constants[n] for n in names if n in constants), None)
        if found is not None:
            shape[part] = found[0]
            remarks.append(f"workload.shape.{part} = {found[0]}, from {found[1]}")
    if "hidden" in shape:
        shape.setdefault("feed_forward", 4 * shape["hidden"])
    return shape, remarks


def _knobs(settings: dict[str, Any], flags: dict[str, list[str]]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    knobs: dict[str, dict[str, Any]] = {}
    remarks = []
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool) or not isinstance(value, int | str):
            remarks.append(f"{name} = {value!r} is left out: a knob is a whole number or a word")
            continue
        choices = flags.get(flag)
        if choices is None and name not in RANK_NAMES:
            remarks.append(f"{name} is left out: the program has no option {flag}")
            continue
        is_guess = isinstance(value, int) or not choices
        values = _counts(name, value) if isinstance(value, int) else (choices or [value])
        role = "ranks" if name in RANK_NAMES else "setting"
        knobs[name] = {"values": values, "baseline": value, "flag": flag, "role": role, "is_guess": is_guess}
        if is_guess:
            remarks.append(f"knobs.{name}.values = {values} is a guess around {value}")
    return knobs, remarks


def _counts(name: str, value: int) -> list[int]:
    if name in RANK_NAMES or "thread" in name or "worker" in name:
        most = max(num_cores(), value)
        return sorted({value, *(n for n in (0, 1, 2, 4, 8) if n <= most and (n > 0 or "worker" in name))})
    return sorted({v for v in (value // 2, value, 2 * value, 4 * value) if v >= 1})


def _toml(value: Any) -> str:
    """A word, number or list as TOML."""
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)
