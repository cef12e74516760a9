"""One real Slurm for all tests of a run, brought up when the first asks for it and whole again after each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from slurm_cluster import Cluster, end_leftovers


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """Four nodes with two typed GPUs each and accounting; mark tests that take it `slurm`."""
    end_leftovers()
    cluster = Cluster("shared")
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


@pytest.fixture(autouse=True)
def _as_it_was(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """SLURM_CONF for the time of a test; afterwards no job is left, and what the test broke serves again."""
    if "slurm" not in request.fixturenames:
        yield
        return
    cluster: Cluster = request.getfixturevalue("slurm")
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    yield
    cluster.heal()
