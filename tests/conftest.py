"""What all tests share: one BLAS thread, and parts that a machine may lack."""

from __future__ import annotations

import os

# on two busy cores a second BLAS thread makes small matrices ten times slower
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A missing part is said and passed over on a person's machine, and fails where CI=true promises all of them."""
    if item.get_closest_marker("root") is not None and os.geteuid() != 0:
        if os.environ.get("CI") == "true":
            pytest.fail("this test mounts a file system and needs root", pytrace=False)
        pytest.skip("mounts a file system: needs root")
