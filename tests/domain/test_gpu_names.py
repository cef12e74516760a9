"""A type's name is no device; a product's name and the site's links are."""

from __future__ import annotations

import pytest

from infrarsi_hpc.domain.gpu_names import device_named

KEYS = {
    "NVIDIA A100-SXM4-40GB": "nvidia-a100-40gib-sxm4-nvlink",
    "NVIDIA A100-SXM4-80GB": "nvidia-a100-80gib-sxm4-nvlink",
    "NVIDIA A100-PCIE-40GB": "nvidia-a100-40gib-pcie-nvlink",
    "NVIDIA A100 80GB PCIe": "nvidia-a100-80gib-pcie-nvlink",
    "NVIDIA H100 80GB HBM3": "nvidia-h100-80gib-sxm-nvlink",
    "NVIDIA H100 PCIe": "nvidia-h100-80gib-pcie-nvlink",
    "NVIDIA H100 NVL": "nvidia-h100-94gib-nvl-nvlink",
    "NVIDIA H200": "nvidia-h200-141gib-sxm-nvlink",
    "NVIDIA GH200 480GB": "nvidia-gh200-96gib-nvlink",
    "NVIDIA L40S": "nvidia-l40s-48gib-nvlink",
    "Tesla V100-SXM2-32GB": "nvidia-v100-32gib-sxm2-nvlink",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb": "nvidia-a100-5gib-mig-1g-nvlink",
    "NVIDIA GeForce RTX 4090": "nvidia-geforce-rtx-4090-24gib-nvlink",
    "AMD Instinct MI300X": "amd-instinct-mi300x-192gib-oam-nvlink",
}


@pytest.mark.parametrize("name", KEYS)
def test_memory_form_and_links_are_in_the_key(name: str) -> None:
    device = device_named(name, intranode="NVLink")
    assert device is not None
    assert device.is_known
    assert str(device.key) == KEYS[name]
    assert device.open_questions == ()


def test_all_these_are_different_devices() -> None:
    assert len(set(KEYS.values())) == len(KEYS)
    naive = {"a100" for name in KEYS if "A100" in name}
    assert len(naive) == 1, "by their type they would be one"


def test_links_make_another_device() -> None:
    nvlink, pcie = (device_named("NVIDIA A100 80GB PCIe", intranode=links) for links in ("NVLink", "PCIe"))
    assert nvlink is not None
    assert pcie is not None
    assert str(nvlink.key) != str(pcie.key)


@pytest.mark.parametrize("name", ["a100", "h100", "NVIDIA A100", "NVIDIA H100"])
def test_a_type_alone_is_no_key(name: str) -> None:
    device = device_named(name, intranode="NVLink")
    assert device is not None
    assert not device.is_known
    assert "does not say its memory" in device.open_questions[0]


@pytest.mark.parametrize("name", ["gpu", "", "   ", "a\x00100", "x" * 200])
def test_what_is_no_product_has_no_device(name: str) -> None:
    assert device_named(name) is None


def test_a_site_that_contradicts_its_product_is_asked() -> None:
    device = device_named("NVIDIA A100-SXM4-80GB", intranode="PCIe")
    assert device is not None
    assert "one of them is wrong" in device.open_questions[0]
    assert device_named("NVIDIA A100-SXM4-80GB").open_questions  # type: ignore[union-attr]
