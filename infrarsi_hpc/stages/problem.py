"""From a contract to the search's problem: knobs that may move, the workload's basis, the memory limit, patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infrarsi_hpc.domain.contract import Contract
from infrarsi_hpc.domain.knobs import Configuration, KnobSet
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.edges.host import num_cores
from infrarsi_hpc.models.basis import Basis
from infrarsi_hpc.models.owners import Owner
from infrarsi_hpc.search.propose import Problem
from infrarsi_hpc.workloads import BASES

#: Runs that happened to agree must not make the models believe every reading to the last digit.
LEAST_NOISE = 0.005


def basis_of(contract: Contract) -> Basis:
    """The workload's basis on the contract's kind of device."""
    return BASES[contract.workload.kind].on(contract.workload.device)


def problem_of(
    contract: Contract,
    patches: Mapping[str, Patch],
    fixed: Configuration,
    *,
    run_noise: float,
    owners: Sequence[Owner] = (),
    conflicts: frozenset[frozenset[str]] = frozenset(),
) -> Problem:
    """The search's problem; `fixed` knobs keep one value each."""
    knobs = {
        name: knob.model_copy(update={"values": (fixed[name],), "baseline": fixed[name]}) if name in fixed else knob
        for name, knob in contract.knobs.items()
    }
    return Problem(
        knob_set=KnobSet(knobs=knobs),
        basis=basis_of(contract),
        shape=contract.workload.shape,
        memory_limit_gib=contract.limits.memory_gib,
        patches=tuple(patches.values()),
        cores=num_cores() if contract.workload.device == "cpu" else None,
        run_noise=max(run_noise, LEAST_NOISE),
        owners=tuple(owners),
        conflicts=conflicts,
    )
