"""What a profile claims beside what its cluster itself says: limits that one probe would not meet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from infrarsi_hpc.domain.site import Partition, SiteProfile, format_time_limit
from infrarsi_hpc.edges.slurm.config_text import parse_config, parse_partitions, parse_sinfo
from infrarsi_hpc.stages.site.findings import Finding


def claim_findings(site: SiteProfile, partition: Partition, config_text: str, partition_text: str) -> list[Finding]:
    """Limits of the profile above the cluster's. The texts are scontrol's; one that cannot be read says nothing."""
    return [*_time(partition, partition_text), *_array(site, config_text)]


def gpu_findings(site: SiteProfile, partition: Partition, sinfo_text: str) -> list[Finding]:
    """GPUs that no node of the partition has: sbatch calls them a node configuration, whichever part of it is wrong."""
    try:
        gpus = [gpu for offer in parse_sinfo(sinfo_text) if offer.name == partition.name for gpu in offer.gpus]
    except ValueError:
        return []
    if site.request.gpu == "none" or not partition.gpus_per_node or not gpus:
        return []
    types = {gpu.type for gpu in gpus if gpu.type}
    if partition.gpu_type and types and partition.gpu_type not in types:
        offered = ", ".join(sorted(types))
        what = f"no node of {partition.name} has GPUs of type {partition.gpu_type}; there are {offered}"
        return [Finding("wrong", what, "partition.gpu_type", f"set it to one of: {offered}")]
    most = max(gpu.count for gpu in gpus if not partition.gpu_type or gpu.type in ("", partition.gpu_type))
    if partition.gpus_per_node > most:
        what = f"a node of {partition.name} has {most} GPUs, the profile says {partition.gpus_per_node}"
        return [Finding("wrong", what, "partition.gpus_per_node", f"set it to {most}")]
    return []


def private_file_findings(path: Path) -> list[Finding]:
    """Whether the user's second file can be read by others."""
    try:
        is_open = path.stat().st_mode & 0o077 != 0
    except OSError:
        return []
    what = f"{path} can be read by others"
    return [Finding("note", what, "user", f"chmod 600 {path}")] if is_open else []


def _time(partition: Partition, text: str) -> Iterator[Finding]:
    try:
        offers = [offer for offer in parse_partitions(text) if offer.name == partition.name]
    except ValueError:
        return
    limit = offers[0].max_time_seconds if offers else None
    if limit is None or (partition.max_seconds is not None and partition.max_seconds <= limit):
        return
    written = format_time_limit(limit)
    what = f"the partition's time limit is {written}, the profile says {partition.max_time}"
    yield Finding("wrong", what, "partition.max_time", f'set it to "{written}"')


def _array(site: SiteProfile, text: str) -> Iterator[Finding]:
    try:
        highest = parse_config(text).max_array_index
    except ValueError:
        return
    if highest is not None and site.limits.array_size > highest + 1:
        what = f"an array has at most {highest + 1} tasks here, the profile says {site.limits.array_size}"
        yield Finding("wrong", what, "limits.array_size", f"set it to {highest + 1}")
