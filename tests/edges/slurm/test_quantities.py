"""Durations, memory, times, exit codes and node lists, and what must never come out of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi_hpc.domain.site import format_time_limit
from infrarsi_hpc.edges.slurm.quantities import (
    MAX_NODES,
    Memory,
    duration_seconds,
    expand_nodes,
    parse_elapsed,
    parse_exit,
    parse_limit,
    parse_memory,
    parse_time,
)

ELAPSED = {
    "1-00:00:17": 86417,
    "00:14:03": 843,
    "14:03.123": 843,
    "14:03": 843,
    "0:00": 0,
    "12-03:04:05": ((12 * 24 + 3) * 60 + 4) * 60 + 5,
    "843": 843,
    "INVALID": None,
    "Unknown": None,
    "UNLIMITED": None,
    "": None,
}
LIMITS = {
    "00:30:00": 1800,
    "30:00": 1800,
    "30": 1800,
    "1-00:00:00": 86400,
    "2-12": 60 * 3600,
    "UNLIMITED": None,
    "infinite": None,
    "Partition_Limit": None,
    "INVALID": None,
    "NOT_SET": None,
    "N/A": None,
}
MEMORY = {
    "4000M": Memory(4000 / 1024),
    "16Gn": Memory(16.0, "node"),
    "2Gc": Memory(2.0, "cpu"),
    "1.50T": Memory(1536.0),
    "0n": Memory(0.0, "node"),
    "0": Memory(0.0),
    "61203584K": Memory(61203584 / 2**20),
    "4000": Memory(4000 / 1024),
    "250G": Memory(250.0),
    "16GB": Memory(16.0),
    "": None,
}
NODES = {
    "g001": ("g001",),
    "g[004-005]": ("g004", "g005"),
    "g[004-005,7],h1": ("g004", "g005", "g7", "h1"),
    "rack[1-2]n[08-09]": ("rack1n08", "rack1n09", "rack2n08", "rack2n09"),
    "g[1-2]-ib": ("g1-ib", "g2-ib"),
    "g[098-101]": ("g098", "g099", "g100", "g101"),
    "None assigned": (),
    "(null)": (),
    "": (),
}


@pytest.mark.parametrize("text", ELAPSED)
def test_elapsed_time_is_read(text: str) -> None:
    assert parse_elapsed(text) == ELAPSED[text]


@pytest.mark.parametrize("text", LIMITS)
def test_a_limit_is_read_and_no_limit_is_none(text: str) -> None:
    assert parse_limit(text) == LIMITS[text]


@pytest.mark.parametrize("text", MEMORY)
def test_memory_is_read_with_what_it_is_for(text: str) -> None:
    assert parse_memory(text) == MEMORY[text]


def test_a_plain_number_is_in_the_unit_of_its_column() -> None:
    assert parse_memory(str(2**30), plain_unit="") == Memory(1.0)
    assert parse_memory(str(2**20), plain_unit="K") == Memory(1.0)


@pytest.mark.parametrize("text", NODES)
def test_a_node_list_is_expanded(text: str) -> None:
    assert expand_nodes(text) == NODES[text]


NONSENSE: list[tuple[Callable[[str], object], str]] = [
    (parse_elapsed, "soon"),
    (parse_elapsed, "-00:05:00"),
    (parse_elapsed, "1-00"),
    (parse_limit, "forever"),
    (parse_memory, "lots"),
    (parse_memory, "-4G"),
    (parse_memory, "4X"),
    (parse_time, "yesterday"),
    (parse_time, "2031-13-40T00:00:00"),
    (parse_time, "0000-01-01T00:00:00"),
    (parse_exit, "1:2:3"),
    (parse_exit, "one"),
    (expand_nodes, "g[1-"),
    (expand_nodes, "g]1["),
    (expand_nodes, "g[5-4]"),
    (expand_nodes, "g[a-b]"),
    (expand_nodes, "g[1-999999999]"),
    (expand_nodes, "g[1-9999]n[1-9999]"),
    (expand_nodes, "a b; rm"),
]


@pytest.mark.parametrize(("parse", "text"), NONSENSE)
def test_nonsense_is_a_value_error(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse(text)


def test_times_are_local_and_unknown_ones_are_none() -> None:
    first, later = parse_time("2031-05-01T10:00:00"), parse_time("2031-05-01T10:00:30")
    assert first is not None
    assert later == first + 30
    assert parse_time("1767225600") == 1767225600.0
    assert [parse_time(word) for word in ("Unknown", "None", "N/A", "0", "")] == [None] * 5


def test_an_end_before_its_start_is_no_negative_duration() -> None:
    # the night that daylight saving ends: 02:20 summer time to 02:05 winter time are 45 minutes
    start, end = parse_time("2031-10-26T02:20:00"), parse_time("2031-10-26T02:05:00")
    assert start is not None
    assert end is not None
    assert end - start < 0  # naive
    assert duration_seconds(None, start, end) is None
    assert duration_seconds(2700, start, end) == 2700
    assert duration_seconds(None, start, start + 5) == 5


@given(st.none() | st.integers(), st.none() | st.floats(0, 4e9), st.none() | st.floats(0, 4e9))
def test_a_duration_is_never_negative(elapsed: int | None, start: float | None, end: float | None) -> None:
    seconds = duration_seconds(elapsed, start, end)
    assert seconds is None or seconds >= 0


@given(st.integers(1, 86400 * 365))
def test_reading_a_written_duration_gives_the_duration(seconds: int) -> None:
    assert parse_elapsed(format_time_limit(seconds)) == seconds
    assert parse_limit(format_time_limit(seconds)) == seconds


@given(
    st.lists(st.tuples(st.sampled_from(["g", "node-", "h100-"]), st.integers(0, 9000), st.integers(0, 30)), max_size=5)
)
def test_reading_a_written_node_list_gives_the_nodes(ranges: list[tuple[str, int, int]]) -> None:
    text = ",".join(f"{prefix}[{first:04d}-{first + more:04d}]" for prefix, first, more in ranges)
    expected = tuple(f"{p}{n:04d}" for p, first, more in ranges for n in range(first, first + more + 1))
    assert expand_nodes(text) == expected


@given(st.text() | st.text("0123456789-:.[],gKMGTn", max_size=30))
def test_any_text_is_a_quantity_or_a_value_error(text: str) -> None:
    for parse in (parse_elapsed, parse_limit, parse_memory, parse_time, parse_exit, expand_nodes):
        try:
            found = parse(text)
        except ValueError:
            continue
        if isinstance(found, tuple):
            assert len(found) <= MAX_NODES
        elif isinstance(found, int | float):
            assert found >= 0
