"""What a training program is to us: its knobs, its rules and what its memory and time are made of."""

from __future__ import annotations

from infrarsi_hpc.workloads.generic import GenericBasis
from infrarsi_hpc.workloads.torch_gpt import TorchGptBasis

#: A basis for every workload kind of a contract; `.on(device)` gives the one for `workload.device`.
BASES: dict[str, TorchGptBasis | GenericBasis] = {
    "torch-gpt": TorchGptBasis(),
    "torch": GenericBasis(),
}
