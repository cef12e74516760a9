"""Keep the house in order: arrows that point down and never in a circle, pure rooms, agents on the standard library.

    python tools/check_arrows.py [FOLDER]      prints one line a finding; exit code 1 if there is any

Read from the sources with `ast`; nothing is imported. Does not cover: what a called library does in its turn, and
names that are built at run time (`importlib` is refused in pure rooms for that reason).
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "infrarsi_hpc"
MAX_LINES = 450

#: Rooms, and the rooms that each may import from beside itself.
_PURE_BELOW_SEARCH = {"models", "verify", "domain", "errors"}
MAY_IMPORT: dict[str, set[str]] = {
    "cli": {"stages", "edges", "workloads", "search", *_PURE_BELOW_SEARCH},
    "stages": {"edges", "workloads", "search", *_PURE_BELOW_SEARCH},
    "edges": {"domain", "errors"},
    "workloads": {"search", *_PURE_BELOW_SEARCH},
    "search": _PURE_BELOW_SEARCH,
    "models": {"domain", "errors"},
    "verify": {"domain", "errors"},
    "domain": {"errors"},
    "errors": set(),
    "demo": set(),
}
PURE = {"search", "models", "verify", "domain", "errors"}
#: Modules that reach files, clocks, processes, sockets, the environment, global randomness or names made at run time.
IMPURE_MODULES = {
    "asyncio", "builtins", "fcntl", "glob", "http", "httpx", "importlib", "io", "logging", "mmap", "multiprocessing",
    "os", "pathlib", "pickle", "platform", "random", "requests", "secrets", "select", "shelve", "shutil",
    "socket", "sqlite3", "subprocess", "tempfile", "threading", "time", "urllib", "uuid", "h5py", "submitit",
}  # fmt: skip
#: What may be taken from them, and from modules that have both, all the same: constants and pure types.
PURE_PARTS = {
    "pathlib": re.compile(r"PurePath|PurePosixPath"),
    "signal": re.compile(r"SIG[A-Z0-9]+|Signals"),
    "sys": re.compile(r"stdlib_module_names|float_info|maxsize"),
}
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint"}
CLOCK_CALLS = {"now", "utcnow", "today"}
#: Parts of numpy.random that draw nothing by themselves.
QUIET_RANDOM = {"Generator", "BitGenerator", "SeedSequence", "PCG64", "default_rng"}


@dataclass(frozen=True)
class Finding:
    """One broken rule at one line."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def check(root: Path) -> list[Finding]:
    """All findings in a checkout's package."""
    found: list[Finding] = []
    for path in sorted((root / PACKAGE).rglob("*.py")):
        inside = path.relative_to(root / PACKAGE)
        if inside.parts[0] == "demo" and len(inside.parts) > 2:
            continue  # the demo project: a user's training program, written out and never imported
        found += check_source(path.relative_to(root), path.read_text(encoding="utf-8"))
    sources = {path.relative_to(root): path.read_text(encoding="utf-8") for path in _modules(root)}
    return found + circles(sources)


def _modules(root: Path) -> list[Path]:
    """The package's modules and those of tools/, the demo project left out."""
    package = [p for p in (root / PACKAGE).rglob("*.py") if p.relative_to(root / PACKAGE).parts[0] != "demo"]
    return sorted([*package, *(root / "tools").glob("*.py")])


def circles(sources: Mapping[Path, str]) -> list[Finding]:
    """Groups of modules that import each other in a circle, wherever in the file the import stands; one finding each.

    Imports for types alone count as well: who needs another's types in both directions needs a third file for them.
    """
    names = {_module_name(path): path for path in sources}
    edges: dict[str, dict[str, int]] = {}
    for path, source in sources.items():
        module = _module_name(path)
        edges[module] = {}
        for node, _ in _nodes(ast.parse(source, filename=str(path))):
            for target, name in _imports(node, module, is_package=path.name == "__init__.py"):
                other = f"{target}.{name}" if f"{target}.{name}" in names else target
                if other in names and other != module:
                    edges[module].setdefault(other, node.lineno)
    found = []
    for group in _groups(edges):
        shown = " and ".join(str(names[module]) for module in group)
        first = next(module for module in group if set(edges[module]) & set(group))
        line = min(at for other, at in edges[first].items() if other in group)
        found.append(Finding(names[first], line, f"imports go in a circle: {shown}"))
    return found


def _module_name(path: Path) -> str:
    if path.parts[0] != PACKAGE:
        return path.stem  # tools are scripts beside each other
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _groups(edges: Mapping[str, Mapping[str, int]]) -> list[list[str]]:
    """Strongly connected components of more than one module: each can reach every other one of its group."""

    def reach(start: str) -> set[str]:
        seen, queue = {start}, [start]
        while queue:
            for other in edges[queue.pop()]:
                if other not in seen:
                    seen.add(other)
                    queue.append(other)
        return seen

    reached = {module: reach(module) for module in edges}
    groups = {tuple(sorted(o for o in reached[m] if m in reached[o])) for m in edges}
    return [list(group) for group in sorted(groups) if len(group) > 1]


def check_source(path: Path, source: str) -> list[Finding]:
    """The findings of one module; `path` is relative to the checkout."""
    inside = path.relative_to(PACKAGE)
    room = inside.parts[0].removesuffix(".py")
    tree = ast.parse(source, filename=str(path))
    found = []
    lines = source.count("\n") + 1
    if lines > MAX_LINES:
        found.append(Finding(path, lines, f"{lines} lines; above {MAX_LINES} there is a second subject in it"))
    if room not in MAY_IMPORT and room != "__init__" and room != "__main__":
        found.append(Finding(path, 1, f"{room} is none of the rooms"))
        return found
    module = ".".join((PACKAGE, *inside.with_suffix("").parts)).removesuffix(".__init__")
    is_agent = inside.parts[:2] == ("edges", "agent")
    for node, is_top in _nodes(tree):
        for target, name in _imports(node, module, is_package=path.name == "__init__.py"):
            problem = _import_problem(room, target, name, is_agent=is_agent, is_top=is_top)
            if problem:
                found.append(Finding(path, node.lineno, problem))
        if room in PURE:
            problem = _call_problem(node)
            if problem:
                found.append(Finding(path, node.lineno, f"{problem} in {room}, a pure room"))
    return found


def _nodes(tree: ast.Module) -> Iterator[tuple[ast.stmt | ast.expr, bool]]:
    """Every statement and expression, and whether it runs when the module is imported."""

    def walk(node: ast.AST, is_top: bool) -> Iterator[tuple[ast.stmt | ast.expr, bool]]:
        for child in ast.iter_child_nodes(node):
            inner = is_top and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            if isinstance(child, ast.stmt | ast.expr):
                yield child, inner
            yield from walk(child, inner)

    return walk(tree, True)


def _imports(node: ast.AST, module: str, *, is_package: bool) -> Iterator[tuple[str, str]]:
    """What an import statement takes: (module, name), the name empty for a plain import."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, "") for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parents = module.split(".") if is_package else module.split(".")[:-1]
            parents = parents[: len(parents) - node.level + 1]
            base = ".".join([*parents, base] if base else parents)
        yield from ((base, alias.name) for alias in node.names)


def _import_problem(room: str, target: str, name: str, *, is_agent: bool, is_top: bool) -> str:
    top = target.split(".")[0]
    if top == PACKAGE:
        other = [*target.split("."), name][1]
        if room == "__main__" or other == "__version__":
            return ""
        if room == "__init__":
            return f"the package itself imports {target}"
        if is_agent and not f"{target}.".startswith(f"{PACKAGE}.edges.agent."):
            return f"the agent runs on the standard library alone and imports {target}"
        if other != room and other not in MAY_IMPORT[room]:
            return f"{room} imports {other}: arrows only point down"
        return ""
    if is_agent and is_top and top not in sys.stdlib_module_names:
        return f"the agent runs on the standard library alone and imports {target}"
    if top in ("torch", "megatron") and not is_agent:
        return f"the head never imports {top}"
    is_impure = top in IMPURE_MODULES or (top in PURE_PARTS and name)
    if room in PURE and is_impure and not (top in PURE_PARTS and PURE_PARTS[top].fullmatch(name)):
        return f"{room} is a pure room and imports {target}"
    if room in PURE and target.startswith("numpy.random") and name not in QUIET_RANDOM:
        return f"{room} is a pure room and imports {target}"
    return ""


def _call_problem(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        owner = ast.unparse(node.value)
        if owner in ("np.random", "numpy.random") and node.attr not in QUIET_RANDOM:
            return f"numpy's global generator (np.random.{node.attr})"
        if owner in PURE_PARTS and not PURE_PARTS[owner].fullmatch(node.attr):
            return f"{owner}.{node.attr}"
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
        return f"{node.func.id}()"
    if isinstance(node.func, ast.Attribute):
        owner = ast.unparse(node.func.value)
        if node.func.attr in CLOCK_CALLS and owner.split(".")[-1] in ("datetime", "date"):
            return f"{owner}.{node.func.attr}(): a clock"
    if ast.unparse(node.func).endswith("default_rng") and not (node.args or node.keywords):
        return "default_rng() without a seed"
    return ""


def main() -> int:
    """Print the findings; 1 if there are any."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    findings = check(root)
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
