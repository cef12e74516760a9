"""The house rules: arrows, pure rooms, the map, a light start; and that breaking one of them is noticed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


def _tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


arrows, maps = _tool("check_arrows"), _tool("make_map")


def test_the_house_is_in_order() -> None:
    assert [str(finding) for finding in arrows.check(ROOT)] == []


VIOLATIONS = {
    "upward": ("domain/x.py", "from infrarsi_hpc.models.rows import Rows", "domain imports models"),
    "upward inside a function": ("models/x.py", "def f():\n    import infrarsi_hpc.edges.git", "models imports edges"),
    "upward by a relative name": ("verify/x.py", "from ..search import space", "verify imports search"),
    "upward from the package's name": ("search/x.py", "from infrarsi_hpc import stages", "search imports stages"),
    "sideways": ("models/x.py", "from infrarsi_hpc.verify import checks", "models imports verify"),
    "edges and workloads": ("edges/x.py", "from infrarsi_hpc.workloads import generic", "edges imports workloads"),
    "a room that is none": ("utils/x.py", "", "none of the rooms"),
    "a file": ("models/x.py", "def f(p):\n    return open(p)", "open()"),
    "a path": ("verify/x.py", "from pathlib import Path", "imports pathlib"),
    "the environment": ("search/x.py", "import os.path", "imports os"),
    "a process": ("domain/x.py", "import subprocess", "imports subprocess"),
    "a socket": ("domain/x.py", "from socket import socket", "imports socket"),
    "a clock": ("verify/x.py", "import time", "imports time"),
    "another clock": ("verify/x.py", "import datetime\nx = datetime.datetime.now()", "a clock"),
    "global randomness": ("search/x.py", "import random", "imports random"),
    "numpy's global randomness": ("search/x.py", "import numpy as np\nx = np.random.normal()", "global generator"),
    "a seed from nowhere": ("search/x.py", "import numpy as np\nx = np.random.default_rng()", "without a seed"),
    "a word to the screen": ("models/x.py", "print(1)", "print()"),
    "the command line": ("models/x.py", "import sys\nx = sys.argv", "sys.argv"),
    "a name made at run time": ("models/x.py", "import importlib", "imports importlib"),
    "torch in the head": ("edges/x.py", "def f():\n    import torch", "never imports torch"),
    "a package on the node": ("edges/agent/x.py", "import numpy", "standard library alone"),
    "the head on the node": ("edges/agent/x.py", "from infrarsi_hpc.domain.trial import TrialSpec", "standard library"),
    "a long module": ("models/x.py", "x = 1\n" * 460, "second subject"),
}
ALLOWED = {
    "downward": ("cli/x.py", "from infrarsi_hpc.stages import run\nfrom infrarsi_hpc.errors import InfrarsiError"),
    "the same room": ("edges/x.py", "from infrarsi_hpc.edges.atomic import write_text"),
    "a given generator": ("search/x.py", "import numpy as np\ndef f(r: np.random.Generator): return r.normal()"),
    "a seeded generator": ("search/x.py", "import numpy as np\nr = np.random.default_rng(7)"),
    "a path without a disk": ("verify/x.py", "from pathlib import PurePosixPath"),
    "torch on the node when asked": ("edges/agent/x.py", "def f():\n    import torch"),
    "a signal's name": ("verify/x.py", "import signal\nx = signal.Signals(9).name"),
    "a method called open": ("verify/x.py", "def f(x): return x.open()"),
}


CIRCLES = {
    "two": {"cli/a.py": "from infrarsi_hpc.cli.b import x", "cli/b.py": "from infrarsi_hpc.cli import a"},
    "two, one of them when it is called": {
        "cli/a.py": "from infrarsi_hpc.cli.b import x",
        "cli/b.py": "def f():\n    from infrarsi_hpc.cli.a import y",
    },
    "for types alone": {
        "cli/a.py": "import infrarsi_hpc.cli.b",
        "cli/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from infrarsi_hpc.cli.a import y",
    },
    "three": {
        "cli/a.py": "from . import b",
        "cli/b.py": "from .c import x",
        "cli/c.py": "from infrarsi_hpc.cli.a import y",
    },
}


@pytest.mark.parametrize("name", CIRCLES)
def test_a_circle_of_imports_is_found_wherever_the_import_stands(name: str) -> None:
    sources = {Path("infrarsi_hpc") / where: source for where, source in CIRCLES[name].items()}
    [finding] = arrows.circles(sources)
    assert all(str(path) in str(finding) for path in sources)
    sources.popitem()
    assert arrows.circles(sources) == []


def test_tools_beside_each_other_go_in_no_circle_either() -> None:
    [finding] = arrows.circles({Path("tools/a.py"): "from b import x", Path("tools/b.py"): "def f():\n    import a"})
    assert "tools/a.py and tools/b.py" in str(finding)


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_broken_rule_is_found(tmp_path: Path, name: str) -> None:
    where, source, text = VIOLATIONS[name]
    path = tmp_path / "infrarsi_hpc" / where
    path.parent.mkdir(parents=True)
    path.write_text(source)
    found = arrows.check(tmp_path)
    assert len(found) == 1
    assert text in found[0].text
    assert found[0].path == Path("infrarsi_hpc") / where


@pytest.mark.parametrize("name", ALLOWED)
def test_what_the_rules_allow_is_left_alone(name: str) -> None:
    where, source = ALLOWED[name]
    assert arrows.check_source(Path("infrarsi_hpc") / where, source) == []


def test_the_checker_ends_with_1_where_a_rule_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "infrarsi_hpc" / "domain" / "x.py"
    path.parent.mkdir(parents=True)
    path.write_text("import os\n")
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "check_arrows.py", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "domain/x.py:1:" in done.stdout


def test_the_map_lists_every_module_once_and_no_other() -> None:
    listed, folder = [], ""
    for line in (ROOT / "docs" / "MAP.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            folder = line.removeprefix("## ").split(":")[0]
        elif found := re.match(r"- `([^`]+)`: \S", line):
            listed.append(f"{folder}/{found[1]}")
    assert sorted(listed) == maps.modules(ROOT), "run tools/make_map.py"


def test_every_module_says_why_it_is_there() -> None:
    assert [name for name in maps.modules(ROOT) if not maps.first_line(ROOT / name)] == []


def test_nothing_is_left_to_be_done_later() -> None:
    marks = re.compile("TO" "DO|FIX" "ME|raise NotImpl" r"emented|pytest\.(?:mark\.)?(?:sk" "ip|xf" "ail)")
    folders = ("infrarsi_hpc", "tests", "tools", "docs", "sbatch_templates", "site_profiles")
    kinds = {".py", ".md", ".toml", ".sh", ".j2", ""}
    files = [p for folder in folders for p in (ROOT / folder).rglob("*") if p.is_file() and p.suffix in kinds]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in [*files, ROOT / "README.md"]
        # the one place that decides what a machine may lack
        if path != ROOT / "tests" / "conftest.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if marks.search(line)
    ]
    assert found == []


def test_the_command_starts_without_the_heavy_libraries() -> None:
    code = (
        "import sys\n"
        "from infrarsi_hpc.cli import app\n"
        "print(sorted({'torch', 'scipy', 'h5py', 'plotly', 'submitit', 'jinja2', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
