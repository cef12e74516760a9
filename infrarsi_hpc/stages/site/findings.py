"""What a probe's answers say about a profile: pure, so that every answer can be tried without its cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from infrarsi_hpc.domain.gpu_names import device_named
from infrarsi_hpc.domain.site import Partition, SiteProfile

OLDEST_PYTHON = (3, 11)
LEAST_SCRATCH_MIB = 1024
#: Variables that change what a trial measures, or what it loads, when a login shell hands them on.
_LEAKS = re.compile(
    r"PYTHON(?:PATH|HOME|STARTUP)|LD_(?:PRELOAD|LIBRARY_PATH)|CUDA_VISIBLE_DEVICES|CUDA_LAUNCH_BLOCKING|VIRTUAL_ENV|CONDA_PREFIX"
    r"|NCCL_\w+|UCX_\w+|FI_\w+|GLOO_\w+|OMP_NUM_THREADS|OMP_PROC_BIND|MKL_NUM_THREADS|TORCH_\w+|PYTORCH_\w+|TRITON_\w+|XLA_FLAGS"
    r"|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_(?:ADDR|PORT)|TMPDIR|(?:SLURM|SBATCH|SRUN|SALLOC|PMI|PMIX|OMPI)_?\w*"
)
#: Those that Slurm itself gives every job.
_FROM_SLURM = re.compile(
    r"SLURM_\w+|SLURMD_\w+|CUDA_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ROCR_VISIBLE_DEVICES|TMPDIR|PMI\w*"
)


@dataclass(frozen=True)
class Finding:
    """One thing that the check found: the field of the profile that it is about, and what to do."""

    level: Literal["good", "note", "wrong"]
    what: str
    field: str = ""
    fix: str = ""


def probe_findings(
    site: SiteProfile, partition: Partition, facts: Mapping[str, str], login: Mapping[str, str]
) -> list[Finding]:
    """Findings from a probe's answers. `login` is the environment that the probe was sent from."""
    return [
        *_setup(facts),
        *_python(site, facts),
        *_scratch(site, facts),
        *_gpus(site, partition, facts),
        *_cpus(partition, facts),
        *_leaks(site, facts, login),
    ]


def _setup(facts: Mapping[str, str]) -> Iterator[Finding]:
    if "setup" in facts or "setup_failed" in facts:
        line, said = facts.get("setup_failed", "") or "one of them", facts.get("setup", "")[:300]
        what = f"a setup line fails: {line[:200]}" + (f" ({said})" if said else "")
        yield Finding("wrong", what, "environment.setup", "correct it; lines run with `set -euo pipefail`")


def _python(site: SiteProfile, facts: Mapping[str, str]) -> Iterator[Finding]:
    field = {"venv": "launch.venv", "apptainer": "launch.image", "pyxis": "launch.image"}.get(
        site.launch.kind, "launch.python"
    )
    said = facts.get("python", "")
    found = re.search(r"(?:\A|\s)(\d+)\.(\d+)\.(\d+)\Z", said)
    if found is None:
        fix = "name a Python that the nodes have, or a module that brings one (environment.setup)"
        yield Finding("wrong", f"there is no Python on the node: {said[:200] or 'no answer'}", field, fix)
    elif (int(found[1]), int(found[2])) < OLDEST_PYTHON:
        wanted = ".".join(map(str, OLDEST_PYTHON))
        yield Finding(
            "wrong", f"the node's Python is {found[0].strip()}; trials need {wanted}", field, "name a newer one"
        )
    else:
        yield Finding("good", f"Python {found[0].strip()}", field)


def _scratch(site: SiteProfile, facts: Mapping[str, str]) -> Iterator[Finding]:
    field = "user.scratch" if site.user.scratch else "storage.scratch"
    place = facts.get("scratch", "")[:200]
    if "scratch_refused" in facts:
        said = facts["scratch_refused"][:200]
        yield Finding("wrong", f"{place} cannot be written on the node: {said}", field, "name a folder that can be")
        return
    free = facts.get("scratch_free_mib", "")
    if free.isdigit() and int(free) < LEAST_SCRATCH_MIB:
        yield Finding("wrong", f"{place} has {free} MiB left", field, "name a folder with room for copies of the code")
    else:
        room = f", {int(free) / 1024:.0f} GiB free" if free.isdigit() else ""
        yield Finding("good", f"{place} can be written{room}", field)


def _gpus(site: SiteProfile, partition: Partition, facts: Mapping[str, str]) -> Iterator[Finding]:
    wanted = partition.gpus_per_node if site.request.gpu != "none" else 0
    visible = facts.get("visible_devices", "none")
    devices = [d for d in visible.split(",") if d.strip() and d.strip() not in ("none", "-1", "NoDevFiles")]
    rows = [r.rpartition(",") for r in facts.get("gpus", "").split(";") if re.search(r",\s*\d+\s*\Z", r)]
    names = [name.strip() for name, _, _ in rows]
    seen = len(devices) if visible != "none" else len(names)
    field = "partition.gpus_per_node"
    if wanted and seen != wanted:
        fix = f"set it to {seen}" if seen else "compare request.gpu with `sinfo -o '%P %G'`: the job got no GPU"
        yield Finding(
            "wrong", f"{wanted} GPUs were asked for and {seen} are visible", field if seen else "request.gpu", fix
        )
    elif wanted:
        yield Finding("good", f"{seen} GPUs are visible ({visible})", field)
    elif names:
        fix = "set partition.gpus_per_node and request.gpu if trials are to use them"
        yield Finding("note", f"the node has {len(names)} GPUs, and the profile asks for none", field, fix)
    unknown = sorted(set(names) - set(partition.gpu_names))
    if unknown:
        written = ", ".join(f'"{name}"' for name in unknown)
        yield Finding("note", f"the node's GPUs are {written}", "partition.gpu_names", f"set it to [{written}]")
    for name in partition.gpu_names:
        device = device_named(name, memory_gib=partition.gpu_memory_gib, intranode=partition.intranode)
        for question in device.open_questions if device else (f"{name!r} is no product's name",):
            yield Finding("note", question, "partition.gpu_names", "experience is kept by device: name it exactly")


def _cpus(partition: Partition, facts: Mapping[str, str]) -> Iterator[Finding]:
    given, wanted = facts.get("cpus", ""), partition.cpus_per_node
    if given.isdigit() and wanted and int(given) > wanted:
        fix = f"set it to {given}"
        yield Finding("note", f"the node has {given} cores, the profile says {wanted}", "partition.cpus_per_node", fix)


def _leaks(site: SiteProfile, facts: Mapping[str, str], login: Mapping[str, str]) -> Iterator[Finding]:
    in_job = set(facts.get("variables", "").split())
    leaked = [n for n in sorted(in_job & set(login)) if _LEAKS.fullmatch(n) and n not in site.environment.keep]
    if site.scheduler.kind == "slurm":
        leaked = [n for n in leaked if not _FROM_SLURM.fullmatch(n)]
    if leaked:
        what = f"variables of the login shell reach jobs: {', '.join(leaked[:20])}"
        fix = "add them to scrub, or to keep where they are meant (with `scrub` unchanged otherwise)"
        yield Finding("note", what, "environment.scrub", fix)
