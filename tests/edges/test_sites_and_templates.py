"""Site profiles are read strictly; nothing in a job script can leave its place."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from infrarsi_hpc.edges.shipped import shipped
from infrarsi_hpc.edges.sites import read_profile
from infrarsi_hpc.edges.templates import render
from infrarsi_hpc.errors import ProfileError, SiteError

VALUES = {
    "campaign": "night-1",
    "time": "08:00:00",
    "log": "/home/u/project/.infrarsi/night-1/job-%j.log",
    "setup": ("module load cuda/12.4",),
    "project": "/home/u/my project's code",
    "python": "/usr/bin/python3",
    "arguments": ["--fix", "compile=off", "--until", "07:00"],
}


def test_every_shipped_profile_is_valid(tmp_path: Path) -> None:
    names = [p.stem for p in shipped("site_profiles").glob("*.toml")]
    assert "local" in names
    for name in names:
        assert read_profile(name, {}, tmp_path).name == name


def test_the_users_own_profile_wins(tmp_path: Path) -> None:
    own = tmp_path / ".config" / "infrarsi" / "sites"
    own.mkdir(parents=True)
    (own / "local.toml").write_text('schema_version = 1\nname = "local"\n[limits]\npoll_seconds = 5\n')
    assert read_profile("local", {}, tmp_path).limits.poll_seconds == 5


def test_an_unknown_profile_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"known: .*local"):
        read_profile("nowhere", {}, tmp_path)


def test_a_campaigns_job_script_is_one_that_a_shell_reads(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(render("campaign.sbatch.j2", VALUES))
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text()
    assert "#SBATCH --job-name=infrarsi-night-1\n" in text
    assert "module load cuda/12.4\n" in text
    assert """cd '/home/u/my project'"'"'s code'""" in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("campaign", "x\n#SBATCH --uid=0"),
        ("campaign", "x;reboot"),
        ("time", "1:00 --uid=0"),
        ("log", "/tmp/a b"),
        ("log", "relative"),
        ("log", "/tmp/$(reboot)"),
        ("project", "/tmp/a\nreboot"),
        ("python", "/usr/bin/py\x00thon"),
    ],
)
def test_no_value_leaves_its_place_in_the_script(name: str, value: str) -> None:
    with pytest.raises(SiteError):
        render("campaign.sbatch.j2", VALUES | {name: value})


def test_a_missing_value_is_an_error_not_an_empty_word() -> None:
    with pytest.raises(SiteError, match="time"):
        render("campaign.sbatch.j2", {k: v for k, v in VALUES.items() if k != "time"})
