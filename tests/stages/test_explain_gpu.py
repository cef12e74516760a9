"""May these GPUs carry a measurement? One row an answer of nvidia-smi."""

# ruff: noqa: E501

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infrarsi_hpc.errors import InputRefused
from infrarsi_hpc.stages.explain.files import explain_file
from infrarsi_hpc.stages.explain.gpu import explain_gpu

HEADER = "name, memory.total [MiB], clocks.sm [MHz], clocks_event_reasons.hw_thermal_slowdown\n"
HEALTHY = "NVIDIA H100 80GB HBM3, 81559 MiB, 1980 MHz, Not Active\n"
HOT = "NVIDIA H100 80GB HBM3, 81559 MiB, 345 MHz, Active\n"
BROKEN = "NVIDIA H100 80GB HBM3, [N/A], [Unknown Error], [N/A]\n"
SLICE = (
    "<nvidia_smi_log><gpu><product_name>NVIDIA A100-SXM4-40GB</product_name><mig_mode>"
    "<current_mig>Enabled</current_mig></mig_mode><mig_devices><mig_device><index>0</index><fb_memory_usage><total>4864 MiB</total></fb_memory_usage>"
    "</mig_device></mig_devices><fb_memory_usage><total>Insufficient Permissions</total></fb_memory_usage></gpu>"
    "</nvidia_smi_log>"
)

ANSWERS = [
    ("healthy", HEADER + HEALTHY * 2, "ok", "79.65 GiB", "may carry"),
    ("one is hot", HEADER + HEALTHY + HOT, "infra", "GPU 1 (NVIDIA H100 80GB HBM3): throttled", "no baseline"),
    ("one is broken", HEADER + BROKEN + HEALTHY, "infra", "[Unknown Error]", "no baseline"),
    ("the driver is gone", "Unable to determine the device handle for GPU0000:17:00.0: Unknown Error\n", "infra", "device handle", "exclude"),
    ("somebody else is there", "gpu_uuid, pid, used_gpu_memory [MiB]\nGPU-a, 2612630, 20580 MiB\n", "infra", "foreign process 2612630 holds 20.10 GiB of GPU-a", "not clean"),
    ("nobody else is there", "gpu_uuid, pid, used_gpu_memory [MiB]\n", "ok", "nothing runs", "may carry"),
    ("memory is in use", "index, memory.total [MiB], memory.used [MiB]\n0, 81559 MiB, 20580 MiB\n", "infra", "20.10 GiB are in use", "not clean"),
    ("a desktop is there", "index, memory.total [MiB], memory.used [MiB]\n0, 24564 MiB, 310 MiB\n", "ok", "23.99 GiB", "may carry"),
    ("a slice", SLICE, "ok", "slice 0 of GPU 0 has 4.75 GiB", "may carry"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "outcome", "evidence", "action"), [a[1:] for a in ANSWERS], ids=[a[0] for a in ANSWERS]
)
def test_an_answer_decides_whether_the_node_is_fit(text, outcome, evidence, action) -> None:
    found = explain_gpu(text)
    assert found["outcome"] == outcome
    assert evidence in found["evidence"]
    assert action in found["action"]
    json.dumps(found, allow_nan=False)


def test_every_card_is_a_finding_with_its_state() -> None:
    findings = explain_gpu(HEADER + HEALTHY + HOT + BROKEN)["findings"]
    assert [f["is_throttled"] for f in findings] == [False, True, None]
    assert [bool(f["problems"]) for f in findings] == [False, True, True]
    assert findings[0]["capacity_gib"] == pytest.approx(79.65, abs=0.01)


def test_the_slice_is_the_capacity_and_not_the_card() -> None:
    first, card = explain_gpu(SLICE)["findings"]
    assert (first["kind"], first["capacity_gib"]) == ("mig_device", 4.75)
    assert card["capacity_gib"] is None, "naive: 40, from the product's name"


def test_a_file_goes_the_way_of_every_other_kind(tmp_path) -> None:
    path = tmp_path / "gpus.csv"
    path.write_text(HEADER + HOT, encoding="utf-8")
    assert explain_file(path, "gpu")["outcome"] == "infra"
    path.write_bytes(b"\xff\xfe\x00")
    refused = explain_file(path, "gpu")
    assert refused["outcome"] == "refused"
    assert refused["evidence"].startswith("gpus.csv: ")
    assert explain_file(tmp_path / "none", "gpu")["outcome"] == "refused"


@given(st.binary(max_size=200))
@settings(max_examples=100)
def test_any_bytes_are_explained_or_refused(data) -> None:
    with contextlib.suppress(InputRefused):
        assert explain_gpu(data.decode("utf-8", "replace"))["outcome"] in ("ok", "infra")
