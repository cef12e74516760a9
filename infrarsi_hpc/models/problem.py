"""What a campaign searches over, fixed before its first trial."""

from __future__ import annotations

from dataclasses import dataclass

from infrarsi_hpc.domain.contract import Shape
from infrarsi_hpc.domain.knobs import Configuration, KnobSet
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.models.basis import Basis
from infrarsi_hpc.models.owners import Owner


@dataclass(frozen=True)
class Problem:
    """Knobs, the workload's physics, limits, patches, and what other campaigns saw.

    Attributes
    ----------
    memory_limit_gib
        What a device may use, on the same axis as measured peaks; none: nothing is known to be too much.
    patches
        All that may be tried. Patches of observations that are missing here are learned from, never proposed.
    conflicts
        Sets of patch digests that cannot be applied together.
    cores
        Cores of the node, for rules about threads; none: unknown.
    run_noise
        Relative standard deviation of repeats of one configuration, from the doctor.
    owners
        Whose beliefs there are beside the textbook's: experience of other campaigns, summed up.
    pool
        If given, only these configurations may be proposed.
    """

    knob_set: KnobSet
    basis: Basis
    shape: Shape
    memory_limit_gib: float | None = None
    patches: tuple[Patch, ...] = ()
    conflicts: frozenset[frozenset[str]] = frozenset()
    cores: int | None = None
    run_noise: float = 0.02
    owners: tuple[Owner, ...] = ()
    pool: tuple[Configuration, ...] | None = None

    def is_compatible(self, patches: tuple[str, ...] | frozenset[str]) -> bool:
        """Whether these patches can be applied together."""
        chosen = frozenset(patches)
        return not any(conflict <= chosen for conflict in self.conflicts)

    def needs(self, patches: frozenset[str]) -> Configuration:
        """Settings under which all of these patches make a difference."""
        return {name: value for patch in self.patches if patch.sha256 in patches for name, value in patch.needs}

    def broken_rules(self, configuration: Configuration) -> list[str]:
        """Why this configuration cannot run, in plain words; empty if it may."""
        return self.basis.rules(configuration, self.shape, self.cores)
