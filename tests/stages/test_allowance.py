"""What running trials cost counts against the budget before they are in."""

from __future__ import annotations

import tomllib
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tiny_program import CONTRACT

from infrarsi_hpc.domain.campaign import CampaignState
from infrarsi_hpc.domain.contract import Contract
from infrarsi_hpc.stages.run.allowance import Allowance


def allowance(**changes: Any) -> Allowance:
    contract = Contract.model_validate(tomllib.loads(CONTRACT))
    limits = {"max_trials": 10, "device_seconds": None, "deadline": None} | changes
    return Allowance(**limits, doctor=cast(Any, SimpleNamespace(step_seconds=0.1)), contract=contract)


@pytest.mark.parametrize(
    ("limits", "running_seconds", "why"),
    [
        ({}, 1e9, ""),
        ({"device_seconds": 100.0}, 99.0, ""),
        ({"device_seconds": 100.0}, 100.0, "the device-hours are spent"),
        ({"deadline": 50.0}, 0.0, "the time is up"),
        ({"deadline": 51.0}, 0.0, ""),
    ],
)
def test_running_trials_stop_when_a_limit_is_reached(limits: dict, running_seconds: float, why: str) -> None:
    assert allowance(**limits).spent(CampaignState(), running_seconds, now=50.0) == why


@pytest.mark.parametrize(
    ("limits", "may"),
    [
        ({}, True),
        ({"device_seconds": 30.0}, False),
        ({"device_seconds": 300.0}, True),
        ({"deadline": 80.0}, False),  # a block that is cut off proves nothing
        ({"deadline": 500.0}, True),
    ],
)
def test_a_proven_speedup_is_made_narrower_only_where_a_whole_block_fits(limits: dict, may: bool) -> None:
    assert allowance(**limits).may_narrow(CampaignState(), now=50.0) is may
