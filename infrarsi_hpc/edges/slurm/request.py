"""What a job asks for, as the values that templates print: one place where a site's forms and our needs meet."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infrarsi_hpc.domain.site import Partition, SiteProfile, format_time_limit
from infrarsi_hpc.edges.templates import render
from infrarsi_hpc.errors import ProfileError


@dataclass(frozen=True)
class JobRequest:
    """One job, or one array of like jobs."""

    name: str
    log: Path
    #: Wall clock asked for, cut to the partition's limit.
    seconds: float
    comment: str = "infrarsi"
    #: Tasks of the array; none for a single job.
    num_array_tasks: int | None = None
    throttle: int | None = None
    nodes: int = 1
    tasks_per_node: int = 1
    gpus_per_node: int = 0
    #: A small job (a head, a server) asks for this many cores and this memory instead of a whole node.
    cpus: int | None = None
    memory_gib: float | None = None
    exclusive: bool = True
    exclude: Sequence[str] = ()
    requeue: bool = True
    signal: str = ""
    mail_type: str = ""
    #: Unix time before which it does not start.
    begin_at: float | None = None
    #: What the template itself prints: folders, arguments, the attempt.
    values: Mapping[str, Any] = field(default_factory=dict)


def partition_of(site: SiteProfile, name: str = "") -> Partition:
    """The partition to use.

    Raises
    ------
    ProfileError
        The profile has none of that name.
    """
    found = site.chosen_partition(name)
    if found is None:
        known = ", ".join(p.name for p in site.partition) or "none"
        wanted = name or site.user.partition
        raise ProfileError(
            f"site {site.name} has no partition {wanted!r}",
            why=f"its profile names: {known}",
            fix=f"choose one with [user] partition, or add it: infrarsi site show {site.name}",
        )
    return found


def script(
    template: str, site: SiteProfile, partition: Partition, job: JobRequest, *, own_folder: Path | None = None
) -> str:
    """The sbatch script of a request on a site."""
    limit = partition.max_seconds
    cpus = job.cpus or (partition.cpus_per_node if job.exclusive else None)
    if job.cpus is None and not job.exclusive and job.gpus_per_node and site.request.cpus_per_gpu:
        cpus = job.gpus_per_node * site.request.cpus_per_gpu
    memory_gib = job.memory_gib or site.request.memory_gib
    memory_mib = math.ceil(1024 * memory_gib) if memory_gib else None
    values = {
        "name": job.name,
        "comment": job.comment,
        "log": str(job.log),
        "time": format_time_limit(min(job.seconds, limit) if limit is not None else job.seconds),
        "nodes": job.nodes,
        "tasks_per_node": job.tasks_per_node,
        "array": _array(job),
        "exclusive": job.exclusive,
        "cpus_per_task": max(1, cpus // job.tasks_per_node) if cpus else None,
        "gpus_per_node": job.gpus_per_node,
        "gpus_per_task": max(1, job.gpus_per_node // job.tasks_per_node) if job.gpus_per_node else 0,
        "memory_mib": memory_mib,
        "memory_per_cpu_mib": math.ceil(memory_mib / cpus) if memory_mib and cpus else None,
        "memory_per_gpu_mib": math.ceil(memory_mib / job.gpus_per_node) if memory_mib and job.gpus_per_node else None,
        "exclude": list(job.exclude),
        "requeue": job.requeue,
        "signal": job.signal,
        "mail_type": job.mail_type,
        "begin": _begin(job.begin_at),
        "python": sys.executable,
        **job.values,
    }
    return render(
        template,
        {
            "job": values,
            "partition": partition,
            "request": site.request,
            "user": site.user,
            "launch": site.launch,
            "environment": site.environment,
            "storage": site.storage,
            "variables": {**site.environment.variables, **site.fabric.variables},
        },
        own_folder=own_folder,
    )


def _array(job: JobRequest) -> str:
    if job.num_array_tasks is None:
        return ""
    throttle = f"%{job.throttle}" if job.throttle else ""
    return f"0-{job.num_array_tasks - 1}{throttle}"


def _begin(at: float | None) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at)) if at is not None else ""
