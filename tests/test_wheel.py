"""The wheel, built and installed: it has everything that it needs to work far from a checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from infrarsi_hpc.edges import shipped
from infrarsi_hpc.errors import SiteError

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment that has the wheel, and this one's libraries behind it."""
    home = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    (site,) = (home / "lib").glob("python*/site-packages")
    command = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "--quiet", "--no-deps"]
    subprocess.run([*command, "--no-index", wheel], check=True, capture_output=True)
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin" / "python"


def _run(*command: str | Path, cwd: Path) -> str:
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=kept)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_holds_the_code_its_data_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {n.split("/")[0] for n in names} == {"infrarsi_hpc", f"{wheel.name.split('-py3')[0]}.dist-info"}
    for kind in shipped.KINDS:
        files = {p.relative_to(ROOT).as_posix() for p in (ROOT / kind).rglob("*") if p.is_file()}
        assert {f"infrarsi_hpc/_shipped/{name}" for name in files} <= names
        assert files
    sources = [
        p
        for p in (ROOT / "infrarsi_hpc").rglob("*")
        if p.is_file() and "__pycache__" not in p.parts and p.suffix != ".pyc"
    ]
    assert {p.relative_to(ROOT).as_posix() for p in sources} <= names
    assert not [n for n in names if "__pycache__" in n or n.endswith(".pyc")]


def test_the_command_runs_from_another_folder(installed: Path, tmp_path: Path) -> None:
    said = _run(installed.with_name("infrarsi"), "--help", cwd=tmp_path)
    for stage in ("init", "doctor", "run", "report", "apply"):
        assert stage in said


def test_shipped_data_is_found_beside_the_installed_code(installed: Path, tmp_path: Path) -> None:
    code = """
import json, infrarsi_hpc
from importlib import resources
from infrarsi_hpc.edges.shipped import KINDS, shipped
package = resources.files("infrarsi_hpc")
found = {kind: [p.stat().st_size for p in shipped(kind).rglob("*") if p.is_file()] for kind in KINDS}
found["templates"] = [len((package / "stages" / "report" / f"report.{kind}.j2").read_text()) for kind in ("html", "md")]
found["demo"] = [p.name for p in (package / "demo" / "torch_gpt" / "train").iterdir()]
print(json.dumps({"where": infrarsi_hpc.__file__, **found}))
"""
    found = json.loads(_run(installed, "-c", code, cwd=tmp_path))
    assert found["where"].startswith(str(installed.parent.parent))
    assert all(found[kind] for kind in (*shipped.KINDS, "templates", "demo"))
    assert "loop.py" in found["demo"]


def test_a_checkout_uses_its_own_top_level_folders() -> None:
    assert shipped.shipped("sbatch_templates") == ROOT / "sbatch_templates"


def test_an_installation_without_its_data_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path / "infrarsi_hpc")
    with pytest.raises(SiteError, match="lacks its site profiles"):
        shipped.shipped("site_profiles")
