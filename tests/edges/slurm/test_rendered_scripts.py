"""Every template on every shipped site, against the scripts beside this file; `--update-golden` writes them anew."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.edges.shipped import shipped
from infrarsi_hpc.edges.sites import read_profile
from infrarsi_hpc.edges.slurm.request import JobRequest, partition_of, script
from infrarsi_hpc.edges.templates import render
from infrarsi_hpc.errors import ProfileError, SiteError

GOLDEN = Path(__file__).parent / "golden"
SITES = sorted(p.stem for p in shipped("site_profiles").glob("*.toml") if p.stem != "local")
VALUES = {
    "python": "/opt/venv/bin/python",
    "folder": "/home/u/project/.infrarsi/night/rounds/r0001",
    "folders": ["/home/u/project"],
    "starter": "/home/u/project/.infrarsi/night/starter",
    "attempt": 1,
    "scratch": "$TMPDIR/infrarsi",
    "project": "/home/u/my project's code",
    "arguments": ["run", "--fix", "compile=off", "--until", "2030-01-01T07:00:00"],
    "script": "/home/u/project/.infrarsi/night/head.sh",
    "stop_file": "/home/u/project/.infrarsi/night/stop",
    "ranks_per_node": 4,
    "sbatch": ["/opt/slurm/bin/sbatch", "-M", "willow"],
    "address_file": "/home/u/project/.infrarsi/night/server.json",
    "key_file": "/home/u/project/.infrarsi/night/server.key",
    "model": "/home/u/models/small",
    "result": "/home/u/probe.txt",
}
REQUESTS: dict[str, dict] = {
    "trials": {"num_array_tasks": 8, "throttle": 4, "gpus_per_node": 2, "exclude": ["n03", "n07"]},
    "multinode": {"nodes": 2, "tasks_per_node": 2, "gpus_per_node": 2},
    "head": {"cpus": 1, "memory_gib": 1.0, "exclusive": False, "signal": "B:USR1@180", "mail_type": "END,FAIL"},
    "command": {"gpus_per_node": 1, "requeue": False},
    "server": {"gpus_per_node": 1, "exclusive": False, "cpus": 8, "memory_gib": 32.0},
    "probe": {"gpus_per_node": 1, "exclusive": False, "requeue": False},
}


def site_of(name: str, **user: str) -> SiteProfile:
    profile = read_profile(name, {}, Path("/nonexistent"))
    return profile.model_copy(update={"user": profile.user.model_copy(update=user)})


def rendered(template: str, site: SiteProfile, **changes: object) -> str:
    request = JobRequest(
        **{
            "name": "infrarsi-night-r0001-1",
            "log": Path("/home/u/project/.infrarsi/night/rounds/r0001/job-%A_%a.log"),
            "seconds": 5400.0,
            "values": VALUES,
            **REQUESTS[template],
            **changes,
        }
    )
    return script(f"{template}.sbatch.j2", site, partition_of(site), request)


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("template", sorted(REQUESTS))
def test_a_template_on_a_site_is_what_it_was(template: str, site: str, request: pytest.FixtureRequest) -> None:
    text = rendered(template, site_of(site, account="lab", mail_user="me@example.org"))
    golden = GOLDEN / f"{template}.{site}.sh"
    if request.config.getoption("--update-golden"):
        GOLDEN.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text(), "look at the difference; --update-golden takes it over"
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_every_template_has_a_golden_test() -> None:
    names = {p.name.removesuffix(".sbatch.j2") for p in shipped("sbatch_templates").glob("*.sbatch.j2")}
    assert names - {"_header", "campaign"} == set(REQUESTS)


def directives(text: str) -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("form", "option", "value"),
    [
        ("gres", "gres", "gpu:2"),
        ("typed-gres", "gres", "gpu:h100:2"),
        ("gpus-per-node", "gpus-per-node", "h100:2"),
        ("gpus-per-task", "gpus-per-task", "h100:2"),
    ],
)
def test_one_form_of_gpu_request_and_no_other(form: str, option: str, value: str) -> None:
    site = site_of("testbed")
    site = site.model_copy(update={"request": site.request.model_copy(update={"gpu": form})})
    found = directives(rendered("trials", site))
    assert found[option] == value
    assert len({"gres", "gpus-per-node", "gpus-per-task"} & set(found)) == 1


@pytest.mark.parametrize(
    ("form", "option", "value"),
    [("mem", "mem", "8192M"), ("mem-per-cpu", "mem-per-cpu", "2048M"), ("mem-per-gpu", "mem-per-gpu", "4096M")],
)
def test_one_form_of_memory_request_and_no_other(form: str, option: str, value: str) -> None:
    site = site_of("testbed")
    site = site.model_copy(update={"request": site.request.model_copy(update={"memory": form, "memory_gib": 8.0})})
    found = directives(rendered("trials", site, cpus=4))
    assert found[option] == value
    assert len({"mem", "mem-per-cpu", "mem-per-gpu"} & set(found)) == 1


def test_a_site_that_forbids_mem_is_not_sent_it() -> None:
    assert not {"mem"} & set(directives(rendered("trials", site_of("no-mem-flag"))))


def test_time_is_cut_to_the_partitions_limit() -> None:
    assert directives(rendered("trials", site_of("testbed"), seconds=1e6))["time"] == "01:00:00"
    assert directives(rendered("trials", site_of("testbed"), seconds=90.2))["time"] == "00:01:31"


def test_an_unknown_partition_names_those_that_there_are() -> None:
    with pytest.raises(ProfileError, match="h100"):
        partition_of(site_of("testbed"), "ghost")


NASTY = st.text(alphabet=st.sampled_from("ab0 -_.\n\r\t'\"\\`$(){};&|<>#%!*?~\x00\x1b\u2028"), min_size=1, max_size=30)


@settings(max_examples=60)
@given(NASTY)
def test_no_text_breaks_out_of_its_quotes(text: str) -> None:
    try:
        shown = rendered("command", site_of("testbed"), values={**VALUES, "arguments": [text]})
    except SiteError:
        return
    last = shown.strip("\n").split("\n")[-1].removeprefix("exec /opt/venv/bin/python -P -m infrarsi_hpc.cli.app ")
    last = last.removeprefix('exec "/opt/venv/bin/python" -P -m infrarsi_hpc.cli.app ')
    done = subprocess.run(["bash", "-c", f"printf '<%s>' {last}"], capture_output=True, check=True)
    assert done.stdout.decode() == f"<{text}>"


@settings(max_examples=60)
@given(NASTY)
def test_no_text_reaches_an_sbatch_line_with_more_than_its_place(text: str) -> None:
    try:
        shown = rendered("trials", site_of("testbed", account=text, reservation=text))
    except SiteError:
        return
    assert f"#SBATCH --account={text}\n" in shown
    assert re.fullmatch(r"[\w.:@+-]+", text)


@settings(max_examples=60)
@given(st.text(alphabet=st.sampled_from("a$HOME{}`\\\"'(x) "), max_size=20))
def test_an_expanded_value_expands_variables_and_nothing_else(text: str) -> None:
    folder = f"/s/{text}"
    shown = rendered("trials", site_of("testbed"), values={**VALUES, "scratch": folder})
    word = shown.strip("\n").split("\n")[-1].rpartition('"$task" ')[2]
    done = subprocess.run(
        ["bash", "-c", f"printf '<%s>' {word}"], capture_output=True, check=True, env={"HOME": "/h", "H": "1", "O": "2"}
    )
    expected = re.sub(
        r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))",
        lambda m: {"HOME": "/h", "H": "1", "O": "2"}.get(m[1] or m[2], ""),
        folder,
    )
    assert done.stdout.decode() == f"<{expected}>"


def test_a_users_own_template_comes_first(tmp_path: Path) -> None:
    (tmp_path / "command.sbatch.j2").write_text("#!/bin/bash\n# mine: {{ job.name | word }}\n")
    site = site_of("testbed")
    request = JobRequest(name="x", log=Path("/l"), seconds=60, values=VALUES)
    text = script("command.sbatch.j2", site, partition_of(site), request, own_folder=tmp_path)
    assert text == "#!/bin/bash\n# mine: x\n"
    (tmp_path / "command.sbatch.j2").write_text("{% if %}")
    with pytest.raises(SiteError, match=r"command.sbatch.j2 is no template \(line 1\)"):
        script("command.sbatch.j2", site, partition_of(site), request, own_folder=tmp_path)
    (tmp_path / "command.sbatch.j2").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(SiteError):
        script("command.sbatch.j2", site, partition_of(site), request, own_folder=tmp_path)


def test_a_missing_value_is_an_error_not_an_empty_word() -> None:
    with pytest.raises(SiteError, match="job"):
        render("command.sbatch.j2", {})
