"""What all tests share: one BLAS thread, and parts that a machine may lack."""

from __future__ import annotations

import os

# on two busy cores a second BLAS thread makes small matrices ten times slower
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings
from slurm_cluster import what_slurm_lacks

# no test may depend on how fast or how busy the machine is; under CI=true examples are the same every time
_PARENT = settings.get_profile("ci" if os.environ.get("CI") == "true" else "default")
settings.register_profile("any machine", _PARENT, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def what_root_lacks() -> str | None:
    return None if os.geteuid() == 0 else "mounts a file system: needs root"


#: By marker: what the machine lacks for its tests, None where it has everything.
LACKS = {"root": what_root_lacks, "slurm": what_slurm_lacks}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A missing part is said and passed over on a person's machine, and fails where CI=true promises all of them."""
    for marker, lacks in LACKS.items():
        if item.get_closest_marker(marker) is not None and (reason := lacks()) is not None:
            if os.environ.get("CI") == "true":
                pytest.fail(reason, pytrace=False)
            pytest.skip(reason)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write rendered scripts anew instead of comparing")
