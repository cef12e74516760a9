"""Experience stores as owners: what belongs together, and rows that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformer_runs import a_run

from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.edges.store import folder as store
from infrarsi_hpc.edges.store.rows import CampaignRow, StoredTrial
from infrarsi_hpc.errors import InputRefused
from infrarsi_hpc.stages.experience import transformer_owners
from infrarsi_hpc.stages.run.kept_owners import read_owners, write_owners
from infrarsi_hpc.workloads.transformer_columns import workload_columns
from infrarsi_hpc.workloads.transformer_workload import TransformerWorkload

KEY = "nvidia-a100-sxm4-80gb"


def keep(folder: Path, name: str, workload: TransformerWorkload, **changed: Any) -> None:
    """One campaign of four trials, its shape's columns changed as told."""
    shape, versions = workload_columns(workload)
    row = CampaignRow(
        campaign=name,
        contract_sha256="0" * 64,
        workload_kind="transformer",
        shape={**shape, **changed},
        versions=versions,
        memory_kind="cuda_reserved",
        capacity_gib=80.0,
        step_seconds=2.0,
        within_run_cv=0.02,
        between_run_cv=0.02,
        detectable_speedup=1.05,
    )
    trials = []
    for i, tp in enumerate((1, 2, 4, 8)):
        settings = {"tp": tp, "pp": 1, "micro_batch": 1}
        seen = Observation(
            trial=f"t{i}", configuration=settings, outcome=Outcome.OK, step_seconds=2.0 + 0.2 * i, peak_gib=70 / tp
        )
        trials.append(
            StoredTrial(
                campaign=name,
                round=1,
                candidate=Candidate(configuration=settings).id,
                purpose="search",
                finished_at=0.0,
                observation=seen,
            )
        )
    store.append(folder, KEY, row, 1, trials)


def test_nearer_campaigns_are_owners_of_their_own_and_trusted_more(tmp_path: Path) -> None:
    ours = a_run()
    keep(tmp_path, "same", ours)
    keep(tmp_path, "other-batch", a_run(global_batch=128))
    keep(tmp_path, "other-size", a_run(gpus=32))
    owners = transformer_owners([tmp_path], ours)
    assert [owner.name.split(", ")[-1] for owner in owners] == [
        "this workload",
        "16 of them",
        "unnamed on NVIDIA A100-SXM4-80GB",
    ]
    assert [owner.num_trials for owner in owners] == [4, 8, 12]
    assert [owner.trust for owner in owners] == sorted((owner.trust for owner in owners), reverse=True)


def test_a_campaign_that_cannot_be_read_costs_itself_alone(tmp_path: Path) -> None:
    ours = a_run()
    keep(tmp_path, "good", ours)
    keep(tmp_path, "newer", ours, wings=2)
    keep(tmp_path, "absurd", ours, layers=-3)
    said: list[str] = []
    owners = transformer_owners([tmp_path], ours, said=said.append)
    assert {owner.num_trials for owner in owners} == {4}
    assert len(said) == 2
    assert any("newer" in line for line in said)
    assert any("absurd" in line for line in said)


def test_a_store_that_is_not_there_owns_nothing(tmp_path: Path) -> None:
    assert transformer_owners([tmp_path / "nowhere"], a_run()) == ()


def test_what_a_campaign_began_with_is_kept_as_it_was(tmp_path: Path) -> None:
    ours = a_run()
    keep(tmp_path / "store", "same", ours)
    owners = transformer_owners([tmp_path / "store"], ours)
    assert read_owners(tmp_path) is None
    write_owners(tmp_path, owners)
    kept = read_owners(tmp_path)
    assert kept is not None
    for was, now in zip(owners, kept, strict=True):
        assert (was.name, was.trust, was.num_trials) == (now.name, now.trust, now.num_trials)
        for before, after in ((was.time, now.time), (was.memory, now.memory)):
            assert before.names == after.names
            np.testing.assert_array_equal(before.belief.mean, after.belief.mean)
            np.testing.assert_array_equal(before.belief.root, after.belief.root)


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ('"schema_version": 1', '"schema_version": 2'),
        ('"trust": ', '"trust": -'),
        ('"names": [', '"names": ["more", '),
        ("}", ""),
    ],
    ids=["newer", "negative", "not square", "cut"],
)
def test_kept_beliefs_that_cannot_be_are_refused_with_their_file(tmp_path: Path, was: str, becomes: str) -> None:
    ours = a_run()
    keep(tmp_path / "store", "same", ours)
    write_owners(tmp_path, transformer_owners([tmp_path / "store"], ours))
    path = tmp_path / "owners.json"
    assert was in path.read_text()
    path.write_text(path.read_text().replace(was, becomes, 1))
    with pytest.raises(InputRefused, match=r"owners\.json"):
        read_owners(tmp_path)
