"""The environment that a workload sees: known variables, no leftovers, caches of its own."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

KEEP = frozenset(
    [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "TZ",
        "LD_LIBRARY_PATH",
        "CUDA_HOME",
        "CUDA_PATH",
        "CUDA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "SSL_CERT_FILE",
    ]
)
KEEP_PREFIXES = ("NCCL_", "UCX_", "GLOO_", "FI_", "OPENBLAS_", "MKL_", "KMP_", "OMP_", "NVIDIA_", "SLURM_CONF")


def clean_environment(
    inherited: Mapping[str, str], contract: Mapping[str, str], scratch: Path, *, is_single_node: bool = True
) -> dict[str, str]:
    """The variables for a workload's process.

    `inherited` is filtered (no PYTHONPATH, LD_PRELOAD or leaked job variables pass), the contract's come on top, and
    temporary files and compile caches go to `scratch`, so that no trial finds another's.
    """
    environment = {k: v for k, v in inherited.items() if k in KEEP or k.startswith(KEEP_PREFIXES)}
    environment.update(
        # two spinning threads on busy cores made a step hundred times slower; waiting threads must sleep
        OMP_WAIT_POLICY="PASSIVE",
        # each further arena maps 128 MiB for a moment, which would hide the data's own peak (memory.py)
        MALLOC_ARENA_MAX="1",
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONHASHSEED="0",
        PYTHONUNBUFFERED="1",
        TMPDIR=str(scratch),
        TORCHINDUCTOR_CACHE_DIR=str(scratch / "inductor"),
        TRITON_CACHE_DIR=str(scratch / "triton"),
        XDG_CACHE_HOME=str(scratch / "cache"),
    )
    if is_single_node:
        # gloo looks the host name up otherwise, which fails on hosts without an entry for their own name
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    environment.update(contract)
    return environment


def write_whole(path: Path, data: bytes) -> None:
    """Write by temporary file, fsync and rename, so that a reader sees all of it or nothing."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(aside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def node_name() -> str:
    """This node's name: Slurm's where it gives one, since several of its nodes may share a host."""
    return os.environ.get("SLURMD_NODENAME") or platform.node()
