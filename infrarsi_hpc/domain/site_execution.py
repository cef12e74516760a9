"""What of a site profile runs, or decides what runs, as the user: listed, digested, and looked at for dangers.

A received profile is data until its owner has seen these items and agreed to them. The digest covers all of them, so
that a later edit, or another profile of the same name, has to be agreed to again.

Covers: shell lines, commands, containers and their mounts, folders that programs come from, variables that make a
shell, Python, a loader or a library run other code. Does not cover: what a program that is named here does; a danger
that no pattern knows (the list is read by a person for that reason).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from infrarsi_hpc.domain.digest import digest_json
from infrarsi_hpc.domain.site import SiteProfile

#: Variables by which other code than the one that was started gets to run.
_LOADING_VARIABLE = re.compile(
    r"(?:LD_|DYLD_|GLIBC_|GCONV_|BASH_|PYTHON|PERL5?|RUBY|NODE_|JAVA_|_JAVA|GIT_|PIP_|UV_|CONDA_|MAMBA_|APPTAINER"
    r"|SINGULARITY|ENROOT|PYXIS|SLURM_|SBATCH_|SRUN_|PMIX_|OMPI_|TORCH_EXTENSIONS|TORCHINDUCTOR_|TRITON_|CUDA_INJECTION"
    r"|NVTX_INJECTION"
    r"|CC$|CXX$|CUDA_HOME$|NVCC|ENV$|PATH$|HOME$|SHELL$|IFS$|EDITOR$|PAGER$|PROMPT_COMMAND$|MODULEPATH|LMOD_|VIRTUAL_ENV$"
    r"|NCCL_(?:\w+_)?PLUGIN|NCCL_CONF_FILE|UCX_MODULE|FI_PROVIDER_PATH|http_proxy$|https_proxy$|all_proxy$|no_proxy$)",
    re.IGNORECASE,
)
_ALWAYS_LOADING = re.compile(
    r"(?:LD_PRELOAD|LD_AUDIT|BASH_ENV|ENV|PROMPT_COMMAND|PYTHONSTARTUP|BASH_FUNC\w*|GCONV_PATH)\Z"
)
_SRUN_DANGER = re.compile(r"--(?:uid|gid|task-prolog|task-epilog|prolog|epilog|bcast|export)\b")
_NOT_LOADING = {"PYTHONUNBUFFERED", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTHONNOUSERSITE"}
_SUBSTITUTION = re.compile(r"`|\$\(|\$\{[^}]*[^A-Za-z0-9_}]|<\(|>\(")
_SHELL = r"(?:/\S*/)?(?:env\s+)?(?:ba|z|da|k|c|tc|fi)?sh\b"

#: What is dangerous in a line of shell, and how it is said.
_DANGERS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (what, re.compile(pattern, re.IGNORECASE))
    for what, pattern in (
        (
            "runs what it fetches from the network",
            rf"\b(?:curl|wget|fetch|aria2c|nc|ncat|lynx|http)\b.*(?:\|\s*(?:sudo\s+)?(?:{_SHELL}|source|python|perl|ruby|node)"
            rf"|(?:&&|;)\s*(?:{_SHELL}|source|\.|python\S*|chmod)\s)",
        ),
        (
            "runs what it fetches from the network",
            rf"(?:{_SHELL}|\beval\b|\bsource\b|(?:^|[;&|]\s*)\.\s|\bpython\S*)[^|;&]*(?:<\(|\$\(|`)\s*(?:curl|wget|fetch|nc)\b",
        ),
        ("fetches from the network", r"(?:^|[\s;&|(`])(?:curl|wget|ncat|nc|socat|telnet|ftp|aria2c)\s"),
        ("opens a network connection from the shell", r"/dev/(?:tcp|udp)/"),
        (
            "removes files",
            r"\brm\s+(?:-\S+\s+)*-\w*[rf]|\brm\s+--(?:recursive|force)|\bfind\b.*-delete\b|\bshred\b|\bunlink\s",
        ),
        (
            "runs text as code",
            r"(?:^|[\s;&|(`])(?:eval|exec)\s|\b(?:python\d?(?:\.\d+)?|perl|ruby|node|php)\s+(?:-\w+\s+)*-[ce]\b",
        ),
        ("runs text as code", rf"(?:^|[\s;&|(`/]){_SHELL}\s+(?:-\w+\s+)*-\w*c\b"),
        (
            "hides what it runs",
            r"\bbase(?:64|32)\s+(?:\S+\s+)*(?:-d|--decode)|\bxxd\s+-r|\bopenssl\s+(?:enc|base64)|\\x[0-9a-f]{2}|\brev\s*\|",
        ),
        ("hides what it runs", rf"\|\s*(?:sudo\s+)?{_SHELL}\s*(?:$|[-|;&#])"),
        (
            "asks for another user's rights",
            r"(?:^|[\s;&|(`])(?:sudo|su|doas|pkexec|runuser|setpriv|newgrp)\s|\bchmod\s+(?:\S+\s+)*(?:[ug+]*\+s|[2467]\d{3})\b",
        ),
        (
            "changes files that run at login, or keys",
            r"(?:\.(?:bashrc|bash_profile|bash_login|bash_logout|profile|zshrc|zshenv|zprofile|login|cshrc|tcshrc)\b"
            r"|\.ssh\b|authorized_keys|\.netrc|\.gitconfig|\.config/systemd|\.pypirc"
            r"|/etc/(?!profile\.d|bashrc|slurm|lmod|hosts\b))",
        ),
        ("makes something run later", r"\b(?:crontab|atd?|batch|nohup|disown|systemctl|systemd-run|setsid)\s|&\s*$"),
        ("reads credentials", r"\.(?:aws|kube|docker)/|id_(?:rsa|ed25519|ecdsa)\b|/etc/shadow|\b(?:print)?env\s*\|"),
        (
            "opens what it makes to everybody",
            r"\bchmod\s+(?:-\S+\s+)*(?:0?777|a\+\w*w|o\+\w*w|\+w)|\bumask\s+0{1,4}\b",
        ),
        ("submits or cancels jobs", r"(?:^|[\s;&|(`])(?:sbatch|scancel|salloc|scrontab)\b"),
        (
            "writes to a device or floods the machine",
            r"\bdd\s+.*of=/dev/|\bmkfs|:\(\)\s*\{|>\s*/dev/(?!null\b|shm/|stderr\b|stdout\b)",
        ),
        ("kills processes", r"(?:^|[\s;&|(`])(?:kill|pkill|killall)\s"),
    )
)  # fmt: skip


@dataclass(frozen=True)
class Executed:
    """One item that runs or decides what runs: its field, its text, and what is known to be dangerous in it."""

    field: str
    text: str
    dangers: tuple[str, ...] = ()


def executed(profile: SiteProfile) -> tuple[Executed, ...]:
    """Everything in a profile that needs its owner's agreement before it is used, in the order of the file."""
    found: list[tuple[str, str]] = []
    if profile.scheduler.bin:
        found.append(("scheduler.bin", profile.scheduler.bin))
    found += [(f"environment.setup.{i}", line) for i, line in enumerate(profile.environment.setup)]
    for section, variables in (("environment", profile.environment.variables), ("fabric", profile.fabric.variables)):
        found += [(f"{section}.variables.{n}", f"{n}={v}") for n, v in variables.items() if _loads_code(n, v)]
    launch = profile.launch
    found += [(f"launch.{n}", v) for n in ("venv", "image", "python") if (v := str(getattr(launch, n)))]
    found += [(f"launch.mounts.{i}", mount) for i, mount in enumerate(launch.mounts)]
    found += [(f"launch.srun_options.{i}", option) for i, option in enumerate(launch.srun_options)]
    if profile.login_node.mail_command:
        found.append(("login_node.mail_command", " ".join(profile.login_node.mail_command)))
    return tuple(Executed(field, text, dangers_of(text, field)) for field, text in found)


def execution_digest(profile: SiteProfile) -> str:
    """SHA-256 over all that `executed` lists; profiles without any have one digest in common."""
    mail = list(profile.login_node.mail_command)
    return digest_json([[[item.field, item.text] for item in executed(profile)], mail])


def dangers_of(text: str, field: str = "") -> tuple[str, ...]:
    """What is known to be dangerous in a line that will run, each said once."""
    found = [what for what, pattern in _DANGERS if pattern.search(text)]
    if ".variables." in field:
        name, _, value = text.partition("=")
        if _ALWAYS_LOADING.match(name):
            found.append("makes every program, or every shell, run other code first")
        if _SUBSTITUTION.search(value):
            found.append("runs a command inside a value")
    elif field.startswith("launch.") and re.search(r"[`;|&<>]|\$\(", text):
        found.append("has characters by which a shell would run something else")
    elif field.startswith("launch.mounts.") and re.match(r"/(?::|\Z)|/(?:etc|root|var/run/docker)\b", text):
        found.append("gives the container the system's own files")
    elif field.startswith("launch.srun_options") and _SRUN_DANGER.match(text):
        found.append("runs other code, or as somebody else")
    return tuple(dict.fromkeys(found))


def _loads_code(name: str, value: str) -> bool:
    return (_LOADING_VARIABLE.match(name) is not None and name not in _NOT_LOADING) or bool(_SUBSTITUTION.search(value))
