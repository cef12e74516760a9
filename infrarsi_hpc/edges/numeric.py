"""The head's own arithmetic on one thread: it is a guest on its host, and its matrices are small."""

from __future__ import annotations


def use_one_thread() -> None:
    """Hold numpy's and scipy's BLAS at one thread in this process; the environment of trials stays as it is."""
    import scipy.linalg  # noqa: F401 - its BLAS must be loaded before it can be held
    from threadpoolctl import threadpool_limits

    threadpool_limits(limits=1)
