"""What this machine is: its device key, its cores, its name."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from infrarsi_hpc.domain.device import DeviceKey
from infrarsi_hpc.errors import SiteError


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def node_name() -> str:
    """This machine's name."""
    return platform.node()


def device_key(device: str) -> DeviceKey:
    """The device key of this machine's CPU, or of its first NVIDIA GPU.

    Raises
    ------
    SiteError
        The contract wants a GPU and there is none to be seen.
    """
    return _gpu_key() if device == "cuda" else _cpu_key()


def _cpu_key() -> DeviceKey:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.+)$", text, re.MULTILINE)
    known = set(flags.group(1).split()) if flags else set()
    form = next(
        (name for flag, name in (("amx_bf16", "amx"), ("avx512f", "avx512"), ("avx2", "avx2")) if flag in known), ""
    )
    product = (
        re.sub(r"\((r|tm)\)|\bcpu\b|\bprocessor\b|@.*$|\d+-core", " ", found.group(1), flags=re.IGNORECASE)
        if found
        else ""
    )
    return DeviceKey(
        vendor="cpu",
        product=" ".join(product.split())[:80] or platform.machine(),
        form=form,
        links=f"{num_cores()}core",
    )


def _gpu_key() -> DeviceKey:
    program = shutil.which("nvidia-smi")
    if program is None:
        raise SiteError(
            "the contract wants a GPU and nvidia-smi is not here",
            why="this machine has no NVIDIA driver, or it is not on PATH",
            fix='run on a GPU node, or set workload.device = "cpu" in a contract of its own',
        )
    query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SiteError("nvidia-smi does not answer", why=str(error), fix="try another node") from error
    lines = [line.rsplit(",", 1) for line in output.splitlines() if "," in line]
    if not lines or not lines[0][1].strip().isdigit():
        raise SiteError("nvidia-smi shows no usable GPU", why=output.strip()[:200], fix="try another node")
    name, memory = lines[0][0].strip(), int(lines[0][1])
    return DeviceKey(
        vendor="nvidia",
        product=re.sub(r"^NVIDIA\s+", "", name)[:80],
        memory_gib=round(memory / 1024),
        links=f"{len(lines)}gpu",
    )
