"""Write docs/MAP.md: one line a module, from the first line of its docstring.

    python tools/make_map.py

`tests/test_house.py` fails while the map lists too much or too little.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {
    "cli": "parse, call a stage, print",
    "stages": "where the pure core meets the edges: init, doctor, run, report, apply",
    "edges": "all input and output",
    "workloads": "what a training program is to us",
    "search": "what to try next (pure)",
    "models": "memory, step time, prices (pure)",
    "verify": "what may be believed (pure)",
    "domain": "the nouns (pure)",
    "demo": "the demo project that `infrarsi demo` writes out",
}


def modules(root: Path = ROOT) -> list[str]:
    """Paths of all modules, relative to the checkout; an `__init__.py` counts when it holds more than a docstring."""
    found = [p for folder in ("infrarsi_hpc", "tools") for p in (root / folder).rglob("*.py")]
    return sorted(p.relative_to(root).as_posix() for p in found if p.name != "__init__.py" or _has_code(p))


def _has_code(path: Path) -> bool:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return any(not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in body)


def first_line(path: Path) -> str:
    """What a module is for, as its docstring begins."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def render(root: Path = ROOT) -> str:
    """The map as Markdown."""
    names = modules(root)
    lines = ["# Map", "", "One line a module; written by `tools/make_map.py` from their docstrings.", ""]
    top = [n for n in names if n.startswith("infrarsi_hpc/") and n.count("/") == 1]
    groups = [("infrarsi_hpc", "seen by every room", top)]
    groups += [
        (f"infrarsi_hpc/{r}", text, [n for n in names if n.startswith(f"infrarsi_hpc/{r}/")])
        for r, text in ROOMS.items()
    ]
    groups.append(("tools", "for people who work on this", [n for n in names if n.startswith("tools/")]))
    for folder, text, members in groups:
        if members:
            lines += [f"## {folder}: {text}", ""]
            lines += [f"- `{name.removeprefix(folder + '/')}`: {first_line(root / name)}" for name in members]
            lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    (ROOT / "docs" / "MAP.md").write_text(render(), encoding="utf-8")
