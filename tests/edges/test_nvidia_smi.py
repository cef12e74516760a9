"""nvidia-smi's answers, one row a kind: whole, untold, broken, cut into slices, and hostile."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infrarsi_hpc.edges.nvidia_smi import GpuReport, parse_nvidia_smi
from infrarsi_hpc.errors import InputRefused

HEADER = "name, memory.total [MiB], clocks.sm [MHz], power.limit [W], clocks_event_reasons.hw_thermal_slowdown\n"
HEALTHY = "NVIDIA H100 80GB HBM3, 81559 MiB, 1980 MHz, 700.00 W, Not Active\n"


def xml(gpu: str) -> str:
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
        f'<nvidia_smi_log><gpu id="00000000:17:00.0"><product_name>NVIDIA A100-SXM4-40GB</product_name>{gpu}</gpu>'
        "</nvidia_smi_log>"
    )


SLICED = xml(
    "<mig_mode><current_mig>Enabled</current_mig></mig_mode><mig_devices>"
    "<mig_device><index>0</index><fb_memory_usage><total>4864 MiB</total></fb_memory_usage></mig_device>"
    "<mig_device><index>1</index><fb_memory_usage><total>9856 MiB</total></fb_memory_usage></mig_device></mig_devices>"
    "<fb_memory_usage><total>Insufficient Permissions</total></fb_memory_usage>"
)


def test_a_healthy_card_is_read_with_its_figures() -> None:
    (gpu,) = parse_nvidia_smi(HEADER + HEALTHY).gpus
    assert (gpu.name, gpu.sm_clock_mhz, gpu.power_limit_w) == ("NVIDIA H100 80GB HBM3", 1980.0, 700.0)
    assert gpu.capacity_gib == pytest.approx(81559 / 1024)
    assert (gpu.is_throttled, gpu.problems) == (False, ())


#: header, values, whether it is throttled, words of its problems
CARDS = [
    ("clocks_event_reasons.hw_thermal_slowdown", "Active", True, "hw_thermal_slowdown"),
    ("clocks_throttle_reasons.sw_thermal_slowdown", "Active", True, "sw_thermal_slowdown"),
    ("clocks_event_reasons.hw_power_brake_slowdown", "Active", True, "power_brake"),
    ("clocks_event_reasons.sw_power_cap", "Active", None, ""),
    ("clocks_event_reasons.gpu_idle", "Active", None, ""),
    ("clocks_event_reasons.active", "0x0000000000000001", False, ""),
    ("clocks_event_reasons.active", "0x0000000000000004", False, ""),
    ("clocks_throttle_reasons.active", "0x0000000000000048", True, "hw_thermal_slowdown"),
    ("clocks_event_reasons.hw_slowdown", "[N/A]", None, ""),
    ("memory.total [MiB]", "[N/A]", None, "memory.total is not told"),
    ("memory.total [MiB]", "[Insufficient Permissions]", None, "memory.total is not told"),
    ("memory.total [MiB]", "nonsense", None, "memory.total is not told"),
    ("temperature.gpu", "[Unknown Error]", None, "Unknown Error"),
    ("temperature.gpu", "ERR!", None, "ERR!"),
    ("temperature.gpu", "[GPU is lost]", None, "GPU is lost"),
    ("temperature.gpu", "[GPU requires reset]", None, "requires reset"),
    ("temperature.gpu", "[Not Supported]", None, ""),
    ("ecc.errors.uncorrected.volatile.total", "3", None, "uncorrected"),
    ("ecc.errors.uncorrected.volatile.total", "0", None, ""),
    ("remapped_rows.pending", "Yes", None, "pending"),
    ("compute_mode", "Prohibited", None, "Prohibited"),
]


@pytest.mark.parametrize(("field", "value", "is_throttled", "words"), CARDS, ids=[f"{c[0]}={c[1]}" for c in CARDS])
def test_a_field_is_read_as_what_it_says(field, value, is_throttled, words) -> None:
    (gpu,) = parse_nvidia_smi(f"index, {field}\n0, {value}\n").gpus
    assert gpu.is_throttled is is_throttled
    assert words in " ".join(gpu.problems) if words else gpu.problems == ()


def test_without_units_the_header_has_them() -> None:
    (gpu,) = parse_nvidia_smi("name, memory.total [MiB]\nNVIDIA L4, 23034\n").gpus
    assert gpu.capacity_gib == pytest.approx(23034 / 1024)


def test_a_slice_has_its_own_memory_and_the_card_none() -> None:
    report = parse_nvidia_smi(SLICED)
    assert [s.capacity_gib for s in report.slices] == [4.75, 9.625], "naive: 40 GiB, from the product's name"
    assert (report.gpus[0].is_sliced, report.gpus[0].capacity_gib, report.gpus[0].problems) == (True, None, ())


def test_a_card_that_is_to_be_sliced_and_is_not_has_nothing_to_give() -> None:
    (gpu,) = parse_nvidia_smi("name, mig.mode.current, memory.total [MiB]\nA100, Enabled, [N/A]\n").gpus
    assert "none is seen" in gpu.problems[0]


def test_xml_of_a_whole_card_is_read_with_its_processes() -> None:
    report = parse_nvidia_smi(
        xml(
            "<uuid>GPU-1</uuid><fb_memory_usage><total>40960 MiB</total><used>3 MiB</used></fb_memory_usage>"
            "<clocks><sm_clock>1410 MHz</sm_clock></clocks><gpu_power_readings><current_power_limit>400.00 W"
            "</current_power_limit></gpu_power_readings><clocks_event_reasons>"
            "<clocks_event_reason_hw_thermal_slowdown>Active</clocks_event_reason_hw_thermal_slowdown>"
            "</clocks_event_reasons><processes><process_info><pid>77</pid><type>C</type><process_name>python, x"
            "</process_name><used_memory>20580 MiB</used_memory></process_info><process_info><pid>9</pid><type>G</type>"
            "<process_name>Xorg</process_name><used_memory>5 MiB</used_memory></process_info></processes>"
        )
    )
    (gpu,) = report.gpus
    assert (gpu.capacity_gib, gpu.sm_clock_mhz, gpu.power_limit_w, gpu.is_throttled) == (40.0, 1410.0, 400.0, True)
    assert [(p.pid, p.gpu, p.is_compute) for p in report.processes] == [(77, "GPU-1", True), (9, "GPU-1", False)]


def test_processes_are_read_from_their_table_and_no_process_is_an_answer() -> None:
    header = "gpu_uuid, pid, used_gpu_memory [MiB]\n"
    told, untold = parse_nvidia_smi(header + "GPU-a, 12, 20580 MiB\nGPU-a, 13, [N/A]\n").processes
    assert (told.pid, told.used_gib, untold.used_gib) == (12, pytest.approx(20580 / 1024), None)
    assert parse_nvidia_smi(header) == GpuReport()


COMPLAINTS = [
    "Unable to determine the device handle for GPU0000:17:00.0: Unknown Error",
    "Unable to determine the device handle for GPU 0000:17:00.0: GPU is lost.  Reboot the system to recover this GPU",
    "No devices were found",
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.",
    "Failed to initialize NVML: Driver/library version mismatch",
    "Failed to initialize NVML: Unknown Error",
    "bash: nvidia-smi: command not found",
]


@pytest.mark.parametrize("text", COMPLAINTS)
def test_an_error_in_place_of_rows_or_among_them_is_kept(text) -> None:
    assert parse_nvidia_smi(text + "\n").complaints == (text,)
    among = parse_nvidia_smi(HEADER + HEALTHY + text + "\n")
    assert (len(among.gpus), among.complaints) == (1, (text,))


def test_a_row_with_another_number_of_fields_is_no_row() -> None:
    report = parse_nvidia_smi(HEADER + "NVIDIA H100, 81559 MiB\n")
    assert (report.gpus, report.complaints) == ((), ("line 2 has 2 fields where the header has 5",))


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'
HOSTILE = [
    ("", "empty"),
    ("hello\n", "no answer"),
    ("NVIDIA L4, 23034\n", "no answer"),
    (BOMB + "<nvidia_smi_log>&b;</nvidia_smi_log>", "entities"),
    ("<!ENTITY a SYSTEM 'file:///etc/passwd'><nvidia_smi_log/>", "entities"),
    ("<nvidia_smi_log><gpu>", "cannot be read"),
    ("<html><body>403</body></html>", "not nvidia-smi's"),
    ("<a>" * 100, "nested"),
    ("<a>" * 100_000, "nested"),
    ("<nvidia_smi_log>\x00</nvidia_smi_log>", "cannot be read"),
]


@pytest.mark.parametrize(("text", "words"), HOSTILE, ids=[row[1] + str(n) for n, row in enumerate(HOSTILE)])
def test_what_is_no_answer_is_refused_with_its_reason(text, words) -> None:
    with pytest.raises(InputRefused, match=words):
        parse_nvidia_smi(text)


def test_an_endless_answer_is_not_read(monkeypatch) -> None:
    monkeypatch.setattr("infrarsi_hpc.edges.nvidia_smi.MAX_CHARS", 100)
    with pytest.raises(InputRefused, match="too large"):
        parse_nvidia_smi("x" * 101)
    monkeypatch.undo()
    report = parse_nvidia_smi(HEADER + HEALTHY * 5000)
    assert len(report.gpus) == 4096
    assert "not read" in report.complaints[-1]


PIECES = st.sampled_from(
    [HEADER, HEALTHY, "<nvidia_smi_log>", "<gpu>", "</gpu>", "pid, name\n", "[N/A],", "0x,", "\x00", "9" * 400]
)


@given(st.text(max_size=300) | st.lists(PIECES, max_size=8).map("".join))
@settings(max_examples=300)
def test_any_text_is_read_or_refused(text) -> None:
    with contextlib.suppress(InputRefused):
        assert isinstance(parse_nvidia_smi(text), GpuReport)
