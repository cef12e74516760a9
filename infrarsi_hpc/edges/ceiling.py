"""Measure the matmul ceiling in a process of its own: the head never imports torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from infrarsi_hpc.errors import ProjectError

SCRIPT = Path(__file__).parent / "agent" / "ceiling.py"
DTYPES = {"fp32": ("float32",), "bf16": ("float32", "bfloat16")}


def matmul_ceiling_flops(python: str, device: str, num_cores: int, precision_floor: str) -> float:
    """Best FLOP/s of this machine at any precision that the contract allows.

    Raises
    ------
    ProjectError
        The workload's Python cannot run torch.
    """
    command = [python or sys.executable, str(SCRIPT), device, str(num_cores), *DTYPES[precision_floor]]
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "LD_PRELOAD")}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
        rates = json.loads(done.stdout)
        return max(float(rate) for rate in rates.values())
    except (OSError, ValueError, AttributeError, subprocess.TimeoutExpired) as error:
        last = (done.stderr.strip().splitlines() or [str(error)])[-1] if "done" in locals() else str(error)
        raise ProjectError(
            f"torch does not run under {command[0]}",
            why=last[:300],
            fix="pip install 'infrarsi-hpc[train]' there, or set workload.python to the Python of your training code",
        ) from error
