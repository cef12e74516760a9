"""What is trained (fixed here) and how it is run (flags, with defaults from launch.toml).

The upper half of `Config` is the workload: change it and it is another training run. The lower half are launch
settings, which must not change what is learned.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

LAUNCH_FILE = Path(__file__).resolve().parent.parent / "launch.toml"

#: Allowed words of each setting; None where it is a count.
SETTINGS: dict[str, tuple[str, ...] | None] = {
    "micro_batch": None,
    "ranks": None,
    "threads": None,
    "attention": ("math", "sdpa"),
    "recompute": ("none", "attention", "full"),
    "compile": ("off", "on"),
    "precision": ("fp32", "bf16"),
    "optimizer": ("loop", "foreach", "fused"),
    "gradient_sync": ("every", "last"),
    "data_workers": None,
    "bucket_mib": None,
    "allocator": ("default", "retain"),
}


class SettingsError(ValueError):
    """Settings that this program cannot run with."""


@dataclass(frozen=True)
class Config:
    steps: int = 16
    seed: int = 0
    device: str = "cpu"

    vocabulary: int = 256
    sequence_length: int = 128
    global_batch: int = 8
    layers: int = 4
    width: int = 64
    heads: int = 4
    feed_forward: int = 256
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    clip_norm: float = 1.0

    micro_batch: int = 2
    ranks: int = 1
    threads: int = 1
    attention: str = "math"
    recompute: str = "none"
    compile: str = "off"
    precision: str = "fp32"
    optimizer: str = "foreach"
    gradient_sync: str = "every"
    data_workers: int = 0
    bucket_mib: int = 25
    allocator: str = "default"

    def __post_init__(self) -> None:
        for name, words in SETTINGS.items():
            value = getattr(self, name)
            if words is not None and value not in words:
                raise SettingsError(f"{name} is {value!r}, not one of {', '.join(words)}")
            if words is None and (type(value) is not int or value < (0 if name == "data_workers" else 1)):
                raise SettingsError(f"{name} is {value!r}, not a count")
        if self.global_batch % (self.micro_batch * self.ranks):
            raise SettingsError(
                f"micro_batch {self.micro_batch} x ranks {self.ranks} = {self.micro_batch * self.ranks} sequences at "
                f"a time do not divide the global batch of {self.global_batch}"
            )

    @property
    def accumulation(self) -> int:
        """Micro-batches of one step on one rank."""
        return self.global_batch // (self.micro_batch * self.ranks)


def launch_settings(path: Path = LAUNCH_FILE) -> dict[str, Any]:
    """The `[settings]` of launch.toml; nothing where the file is missing."""
    try:
        launch = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path.name}: {error}") from error
    if launch.get("schema_version") != 1:
        raise SettingsError(f"{path.name}: schema_version is {launch.get('schema_version')!r}, not 1")
    settings = launch.get("settings", {})
    if unknown := sorted(set(settings) - set(SETTINGS)):
        raise SettingsError(f"{path.name}: no such setting: {', '.join(unknown)}")
    return dict(settings)


def parser() -> argparse.ArgumentParser:
    """The command line: one flag a setting; what is not given comes from launch.toml."""
    kinds = {f.name: f.type for f in fields(Config)}
    commands = argparse.ArgumentParser(prog="python -m train", description=__doc__, allow_abbrev=False)
    commands.add_argument("--steps", type=int, default=16, help="optimizer steps")
    commands.add_argument("--seed", type=int, default=0, help="seed of the weights and of the order of the data")
    commands.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    commands.add_argument("--evaluate", metavar="WEIGHTS", help="do not train: held-out loss of saved weights")
    settings = commands.add_argument_group("launch settings (defaults: launch.toml)")
    for name, words in SETTINGS.items():
        flag = "--" + name.replace("_", "-")
        settings.add_argument(flag, type=int if kinds[name] == "int" else str, choices=words, default=None)
    return commands


def configure(arguments: Sequence[str] | None = None) -> tuple[Config, argparse.Namespace]:
    """Flags over launch.toml over defaults; a wrong combination ends the program with code 2.

    Under a launcher (`WORLD_SIZE` is set) the number of ranks is the launcher's.
    """
    commands = parser()
    given = commands.parse_args(arguments)
    try:
        settings = launch_settings()
        settings |= {name: value for name in SETTINGS if (value := getattr(given, name)) is not None}
        if "WORLD_SIZE" in os.environ:
            settings["ranks"] = int(os.environ["WORLD_SIZE"])
        if given.steps < 1 or given.seed < 0:
            raise SettingsError("steps must be at least 1 and the seed at least 0")
        config = Config(steps=given.steps, seed=given.seed, device=given.device, **settings)
    except SettingsError as error:
        commands.error(str(error))
    return config, given
