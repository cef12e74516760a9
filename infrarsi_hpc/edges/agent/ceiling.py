"""The best matrix-product rate that this machine reaches: what MFU is measured against.

Run by path with the workload's Python: `python ceiling.py DEVICE THREADS DTYPE...`; prints one JSON object with
FLOP/s by dtype. Best of several sizes and repeats, since a ceiling is what can be reached, not what is usual.
"""

from __future__ import annotations

import json
import sys
import time

SECONDS_A_DTYPE = 1.5
SIZES = {"cpu": (512, 1024, 1536), "cuda": (4096, 8192)}


def measure(device: str, threads: int, dtypes: list[str]) -> dict[str, float]:
    """FLOP/s of square products, best over sizes and repeats, for each dtype."""
    import torch

    torch.set_num_threads(threads)
    rates = {}
    for name in dtypes:
        best = 0.0
        for size in SIZES[device]:
            left = torch.randn(size, size, dtype=getattr(torch, name), device=device)
            right = torch.randn(size, size, dtype=getattr(torch, name), device=device)
            torch.mm(left, right)
            end = time.perf_counter() + SECONDS_A_DTYPE / len(SIZES[device])
            while True:
                start = time.perf_counter()
                torch.mm(left, right)
                if device == "cuda":
                    torch.cuda.synchronize()
                now = time.perf_counter()
                best = max(best, 2.0 * size**3 / (now - start))
                if now > end:
                    break
        rates[name] = best
    return rates


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), sys.argv[3:])))
