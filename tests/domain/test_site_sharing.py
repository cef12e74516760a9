"""What leaves in an export names nobody: every kind of trace is found wherever it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi_hpc.domain.personal import reasons, rewritten
from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.domain.site_sharing import personal_findings, shareable
from infrarsi_hpc.edges.shipped import shipped
from infrarsi_hpc.edges.site_text import profile_toml
from infrarsi_hpc.edges.sites import parse, read_file

FULL: dict[str, Any] = {
    "schema_version": 1,
    "name": "birch",
    "description": "ask Ada in room 12",
    "scheduler": {"cluster": "birch", "login_host": "login3.birch.example.org"},
    "partition": [{"name": "gpu-a", "reservation": "adal_week", "gpu_names": ["NVIDIA A100-SXM4-40GB"]}],
    "request": {"wckey": "thesis"},
    "environment": {
        "setup": [
            "module load cuda/12.4  # Ada says so",
            "source /home/adal/miniforge3/bin/activate train",
            "export http_proxy=http://adal:pass@proxy.birch.example.org:3128",
            "source /project/ada-lab/env.sh",
            "export SBATCH_ACCOUNT=ada-lab",
        ],
        "variables": {
            "HF_TOKEN": "hf_abcdefghijklmnop",
            "MY_LOGIN": "adal",
            "SCRATCH": "/scratch/adal",
            "NCCL_IB_PKEY": "0x8001",
            "TOKENIZERS_PARALLELISM": "false",
            "ENDPOINT": "https://birch.example.org/x",
        },
    },
    "launch": {"kind": "apptainer", "image": "/home/grace/images/torch.sif", "mounts": ["/scratch/adal:/data"]},
    "storage": {"scratch": "/scratch/adal"},
    "login_node": {"mail_command": ["mail", "-r", "ada.l@example.org", "{to}"]},
    "user": {"account": "ada-lab", "mail_user": "ada.l@example.org"},
    "notes": {"comment": "call +44 20 7946 0018"},
}
TRACES = (
    "adal",
    "Ada",
    "ada-lab",
    "grace",
    "ada.l",
    "hf_",
    "pass@",
    "login3",
    "example.org",
    "thesis",
    "7946",
    "room 12",
)


def profile(value: dict[str, Any]) -> SiteProfile:
    return SiteProfile.model_validate(value)


def test_no_trace_of_a_person_is_left_and_the_rest_is() -> None:
    cleaned, removals = shareable(profile(FULL))
    text = profile_toml(cleaned)
    assert [trace for trace in TRACES if trace in text] == []
    assert personal_findings(cleaned) == []
    assert cleaned.environment.setup == ("module load cuda/12.4", "source $HOME/miniforge3/bin/activate train")
    kept = {"SCRATCH": "/scratch/$USER", "NCCL_IB_PKEY": "0x8001", "TOKENIZERS_PARALLELISM": "false"}
    assert cleaned.environment.variables == kept
    assert cleaned.launch.image == "$HOME/images/torch.sif"
    assert cleaned.launch.mounts == ("/scratch/$USER:/data",)
    assert cleaned.partition[0].gpu_names == ("NVIDIA A100-SXM4-40GB",)
    assert {"user", "notes", "description", "request.wckey"} <= {removal.field for removal in removals}


def test_what_is_said_about_a_removal_does_not_repeat_it() -> None:
    _, removals = shareable(profile(FULL))
    said = " ".join(f"{r.field} {r.reason} {r.instead}" for r in removals)
    assert [trace for trace in TRACES if trace in said.replace("environment.variables", "")] == []


@pytest.mark.parametrize("path", sorted(shipped("site_profiles").glob("*.toml")), ids=lambda p: p.stem)
def test_the_shipped_profiles_lose_their_description_alone(path: Path) -> None:
    shipped_one = read_file(path)
    cleaned, removals = shareable(shipped_one)
    assert [removal.field for removal in removals] == ["description"]
    assert cleaned == shipped_one.model_copy(update={"description": ""})


PERSONAL = (
    "hf_000000000000000000000000000000000000",
    "ghp_0123456789abcdefghij0123456789abcdef",
    "github_pat_11ABCDEFG0123456789_abc",
    "sk-proj-abcdefghijklmnop",
    "AKIAIOSFODNN7EXAMPLE",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "0123456789abcdef0123456789abcdef",
    "q9Jx2LmT7vRb4KcN8sWd1ZpY6hGf3UeA",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
    "https://me:secret@example.invalid/x",
    "someone@example.invalid",
    "someone@cluster",
    "/home/someone",
    "/users/someone/x",
    "/gpfs/fs1/home/someone",
    "/lustre/scratch/someone/run",
    "/mnt/nfs/someone",
    "~someone/bin",
    "/project/somelab/data",
    "--account=somelab",
    "-A somelab",
    "export WANDB_API_KEY=x",
    "login --token x",
    "ssh login7",
    "http://192.0.2.17:3128",
    "login2.site.example.invalid",
    "ext. 4711",
)
IMPERSONAL = (
    "module load cuda/12.4.1",
    "ml PyTorch-bundle/2.1.2-foss-2023a-CUDA-12.1.1",
    "nvcr.io#nvidia/pytorch:25.06-py3",
    "registry/image@sha256:" + "0a" * 32,
    "mlx5_0:1,mlx5_1:1",
    "/scratch/$USER/x",
    "$HOME/miniforge3/bin",
    "/opt/spack/opt/linux-rocky9-zen3/gcc-12.3.0/cuda-12.4.1-abcdefghijklmnopqrstuvwxyz234567",
    "/usr/local/cuda-12.4/lib64",
    "/etc/profile.d/modules.sh",
    "/opt/shared/containers/torch.sif",
    "--mpi=pmix",
    "AWS Libfabric",
    "NVIDIA A100-SXM4-40GB",
)


@pytest.mark.parametrize("text", PERSONAL)
def test_what_is_personal_is_found(text: str) -> None:
    assert reasons(text)


@pytest.mark.parametrize("text", IMPERSONAL)
def test_what_is_everybodys_is_left_alone(text: str) -> None:
    assert reasons(text) == []
    assert rewritten(text) == text


PATHS = {
    "/home/someone/miniforge3": "$HOME/miniforge3",
    "/home/someone": "$HOME",
    "/home/s/someone/venv": "$HOME/venv",
    "/cluster/home/someone/bin": "$HOME/bin",
    "/scratch/someone": "/scratch/$USER",
    "/scratch/someone:/data": "/scratch/$USER:/data",
    "PATH=/home/one/bin:/home/two/bin:$PATH": "PATH=$HOME/bin:$HOME/bin:$PATH",
    "~someone/bin": "$HOME/bin",
    "/scratch/$USER": "/scratch/$USER",
}


@pytest.mark.parametrize("text", PATHS)
def test_a_persons_folder_becomes_a_variable(text: str) -> None:
    assert rewritten(text) == PATHS[text]
    assert rewritten(rewritten(text)) == PATHS[text]


def test_a_folder_below_another_persons_is_not_half_hidden() -> None:
    assert rewritten("/home/physics/someone/x") == "/home/physics/someone/x", "naive: $HOME/someone/x"
    assert reasons("/home/physics/someone/x")


SECRETS = st.one_of(
    st.from_regex(r"hf_[A-Za-z0-9]{20,37}", fullmatch=True),
    st.from_regex(r"gh[ps]_[A-Za-z0-9]{36}", fullmatch=True),
    st.from_regex(r"sk-[A-Za-z0-9]{20,40}", fullmatch=True),
    st.from_regex(r"[0-9a-f]{32,64}", fullmatch=True),
    st.from_regex(r"AKIA[A-Z0-9]{16}", fullmatch=True),
    st.from_regex(r"eyJ[A-Za-z0-9]{20}\.eyJ[A-Za-z0-9]{20}\.[A-Za-z0-9_-]{20}", fullmatch=True),
    st.from_regex(r"[a-z]{5,9}\.[a-z]{5,9}@[a-z]{4,8}\.example", fullmatch=True),
    st.from_regex(r"https://[a-z]{5,9}:[a-z0-9]{5,9}@host", fullmatch=True),
)
USERS = st.from_regex(r"zq[a-z]{4,8}[0-9]{0,2}", fullmatch=True)
PLACES = (
    ("environment", "setup"),
    ("environment", "variables"),
    ("fabric", "variables"),
    ("launch", "mounts"),
    ("launch", "python"),
    ("launch", "srun_options"),
    ("launch", "image"),
    ("login_node", "mail_command"),
    ("description", ""),
    ("notes", "comment"),
)


def planted(place: tuple[str, str], text: str) -> dict[str, Any]:
    section, key = place
    if not key:
        return {section: text}
    if key == "variables":
        return {section: {key: {"SETTING": text}}}
    return {section: {key: [text] if key in ("setup", "mounts", "srun_options", "mail_command") else text}}


@given(st.sampled_from(PLACES), SECRETS, st.sampled_from(["{}", "export X={}", "--opt={} y", "'{}'", "a:{}", "x {} y"]))
def test_no_planted_secret_is_exported(place: tuple[str, str], secret: str, form: str) -> None:
    value = {"schema_version": 1, "name": "x", **planted(place, form.format(secret))}
    cleaned, _ = shareable(profile(value))
    text = profile_toml(cleaned)
    assert secret not in text
    assert personal_findings(cleaned) == []
    assert parse(text) == cleaned


ROOTS = (
    "/home/{}",
    "/users/{}/venv",
    "/scratch/{}",
    "/gpfs/work/{}/runs",
    "/lustre/users/{}",
    "~{}/bin",
    "/home/{}/llm/x",
)


@given(st.sampled_from(PLACES), USERS, st.sampled_from(ROOTS), st.sampled_from(PLACES))
def test_no_users_name_is_exported_wherever_else_it_stands(
    place: tuple[str, str], user: str, root: str, other: tuple[str, str]
) -> None:
    value = {"schema_version": 1, "name": "x", **planted(place, root.format(user))}
    if other[0] != place[0]:
        value |= planted(other, f"run {user}_job")
    cleaned, _ = shareable(profile(value))
    assert user not in profile_toml(cleaned)
    assert shareable(cleaned)[0] == cleaned
    assert personal_findings(cleaned) == []


LINES = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]) | st.just(" "), min_size=1, max_size=60)


@given(
    st.lists(LINES, max_size=4),
    st.dictionaries(st.from_regex(r"[A-Z_]{1,9}", fullmatch=True), LINES, max_size=3),
    LINES,
)
def test_an_export_of_an_export_is_the_same(setup: list[str], variables: dict[str, str], image: str) -> None:
    value = profile(
        {
            "schema_version": 1,
            "name": "x",
            "environment": {"setup": setup, "variables": variables},
            "launch": {"kind": "pyxis", "image": image},
        }
    )
    cleaned, _ = shareable(value)
    assert shareable(cleaned) == (cleaned, ())
    assert parse(profile_toml(cleaned)) == cleaned


def test_a_launch_that_loses_its_environment_goes_back_to_the_plain_python() -> None:
    value = {"schema_version": 1, "name": "x", "launch": {"kind": "venv", "venv": "/project/somelab/venv"}}
    cleaned, _ = shareable(profile(value))
    assert (cleaned.launch.kind, cleaned.launch.venv) == ("python", "")


def test_a_partition_named_for_an_account_gets_another_name() -> None:
    value = {
        "schema_version": 1,
        "name": "x",
        "partition": [{"name": "ada-lab"}, {"name": "gpu"}],
        "user": {"account": "ada-lab"},
    }
    cleaned, _ = shareable(profile(value))
    assert [p.name for p in cleaned.partition] == ["partition-1", "gpu"]


def test_an_account_called_like_the_cluster_does_not_empty_the_profile() -> None:
    value = {
        "schema_version": 1,
        "name": "birch",
        "scheduler": {"cluster": "birch"},
        "user": {"account": "birch", "qos": "gpu-a"},
        "partition": [{"name": "gpu-a", "qos": ["gpu-a"]}],
    }
    cleaned, _ = shareable(profile(value))
    assert (cleaned.name, cleaned.scheduler.cluster, cleaned.partition[0].qos) == ("birch", "birch", ("gpu-a",))


def test_the_exporters_own_name_is_looked_for_everywhere() -> None:
    value = {"schema_version": 1, "name": "x", "environment": {"setup": ["export RUN=adal_7"]}}
    assert shareable(profile(value))[0].environment.setup == ("export RUN=adal_7",), "naive: nothing gives it away"
    assert shareable(profile(value), ["adal"])[0].environment.setup == ()
