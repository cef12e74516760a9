"""What a GPU's product name says: memory, form factor, and with the site's links a device key.

`a100` is not a device: 40 or 80 GB, on a board or in a slot, with NVLink or without, are different machines to a
training run. The driver's product name tells most of it, the site profile the rest.

Covers: names as nvidia-smi and rocm-smi print them, MIG slices. Does not cover: clocks and power limits of one site.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from infrarsi_hpc.domain.device import DeviceKey

#: GiB as vendors count them, where the product has one size and its name does not say it (data sheets, 2024 and 2025).
_MEMORY_GIB: dict[str, float] = {
    "H200": 141, "H200 NVL": 141, "H100 PCIe": 80, "H100 NVL": 94, "H20": 96, "H800 PCIe": 80, "B200": 180, "B300": 288,
    "L40S": 48, "L40": 48, "L4": 24, "A40": 48, "A30": 24, "A10": 24, "A10G": 24, "A16": 16, "A2": 16, "T4": 16,
    "RTX A6000": 48, "RTX A5000": 24, "RTX 6000 Ada Generation": 48, "Quadro RTX 6000": 24, "Quadro RTX 8000": 48,
    "GeForce RTX 3090": 24, "GeForce RTX 4090": 24, "GeForce RTX 5090": 32, "GeForce RTX 2080 Ti": 11,
    "GH200 480GB": 96, "GH200 120GB": 96, "GH200 144G HBM3e": 144, "GB200": 186,  # a GH200's name has its CPU's memory
    "Instinct MI300X": 192, "Instinct MI325X": 256, "Instinct MI355X": 288, "Instinct MI250X": 64, "Instinct MI100": 32,
}  # fmt: skip
#: Products that exist as boards alone, so that their names need not say so.
_SXM_ALONE = re.compile(r"\A(?:H100 80GB HBM3|H100 64GB HBM2|H800|H200|H20|B200|B300|A800)\Z", re.I)
_OAM_ALONE = re.compile(r"\AInstinct MI(?:250X?|3\d\d[AX])\Z", re.I)
_SIZE = re.compile(r"(?<![\w.])(\d{1,4})\s?G(?:i?B)?(?![\w.])", re.I)
_FORM = re.compile(r"(?<![A-Za-z])(SXM\d?|PCIe?|NVL|OAM)(?![A-Za-z])", re.I)
_SLICE = re.compile(r"\bMIG\s+(\d+c\.)?(\d+)g\.(\d+)gb(\+\w+)?", re.I)
_VENDOR = re.compile(r"\A\s*(NVIDIA|Tesla|Quadro|GeForce|AMD|Intel(?:\(R\))?)\s+", re.I)
_MODEL_WITH_DIGIT = re.compile(r"(?=.*\d)[A-Za-z0-9][\w .()+-]{0,79}\Z")


@dataclass(frozen=True)
class NamedDevice:
    """A device key, and what name and site left open (empty: nothing)."""

    key: DeviceKey
    open_questions: tuple[str, ...]

    @property
    def is_known(self) -> bool:
        """Whether memory and links are in the key: without them experience would be filed under another machine's."""
        return self.key.memory_gib is not None and bool(self.key.links)


def device_named(name: str, *, memory_gib: float | None = None, intranode: str = "") -> NamedDevice | None:
    """The device of a product name such as `NVIDIA A100-SXM4-40GB`; none where it is not a product's name.

    `memory_gib` and `intranode` (`NVLink`, `PCIe`) are the site's; what the name says about memory comes first.
    """
    text = " ".join(name.split())
    if not _MODEL_WITH_DIGIT.match(text):
        return None
    vendor_word = _VENDOR.match(text)
    vendor = _vendor(vendor_word.group(1) if vendor_word else "", text)
    bare = re.sub(r"\A(?:NVIDIA|AMD|Intel(?:\(R\))?)\s+", "", text, flags=re.I)
    cut = _SLICE.search(bare)
    size = _SIZE.search(_SLICE.sub("", bare))
    form = _form(bare)
    memory: float | None
    if cut:
        memory = float(cut.group(3))
        form = f"mig-{cut.group(2)}g"
    else:
        memory = _MEMORY_GIB.get(bare) or (float(size.group(1)) if size else memory_gib)
    product = _product(bare)
    questions = []
    if memory is None:
        questions.append(f"{name!r} does not say its memory: set gpu_memory_gib")
    if not form and not _is_one_form(bare):
        questions.append(f"{name!r} does not say its form factor: give the product name as nvidia-smi -L prints it")
    if not intranode:
        questions.append("the links between a node's GPUs are not given: set intranode to NVLink or PCIe")
    elif form.lower().startswith("sxm") and intranode.lower().startswith("pcie"):
        questions.append(f"{name!r} sits on a board with NVLink, and intranode says {intranode}: one of them is wrong")
    key = DeviceKey(vendor=vendor, product=product, memory_gib=memory, form=form.lower(), links=intranode.lower()[:40])
    return NamedDevice(key, tuple(questions))


def _vendor(word: str, text: str) -> str:
    first = word.lower().removesuffix("(r)")
    if first in ("amd", "intel"):
        return first
    if re.search(r"\b(?:Instinct|MI\d{2,3}[AX]?)\b", text):
        return "amd"
    return "nvidia"


def _form(bare: str) -> str:
    found = _FORM.search(bare)
    if found:
        return "pcie" if found.group(1).lower().startswith("pci") else found.group(1)
    if _SXM_ALONE.match(bare):
        return "sxm"
    return "oam" if _OAM_ALONE.match(bare) else ""


def _is_one_form(bare: str) -> bool:
    """Cards for slots alone, and CPU and GPU in one package: their names never say so."""
    return re.match(r"(?:L4|L40|L40S|A40|A30|A10G?|A16|A2|T4|Tesla T4)\Z|G[HB]\d00\b|.*\bRTX\b", bare) is not None


def _product(bare: str) -> str:
    """The model without memory, form and slice: `A100`, `H100`, `GeForce RTX 4090`."""
    model = _SLICE.sub(" ", bare)
    model = _FORM.sub(" ", model)
    model = _SIZE.sub(" ", model)
    model = re.sub(r"\bHBM\d?e?\b|\bTesla\b", " ", model, flags=re.I)
    return " ".join(re.sub(r"[-\s]+", " ", model).split())[:80] or bare[:80]
