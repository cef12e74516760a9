"""The site profile's own laws: times, one default, a partition for every wish."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi_hpc.domain.site import SiteProfile, format_time_limit, parse_time_limit


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("30:15", 1815),
        ("12:30:00", 45_000),
        ("2-00", 172_800),
        ("1-02:30", 95_400),
        ("1-02:30:05", 95_405),
        ("UNLIMITED", None),
        ("infinite", None),
    ],
)
def test_time_limits_are_read_as_slurm_reads_them(text: str, seconds: int | None) -> None:
    assert parse_time_limit(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "1:2:3:4", "-5", "1-", "30\n", "\n30", "٣٠", "30 ", "1:00\n#SBATCH -A x"])
def test_nothing_else_is_a_time_limit(text: str) -> None:
    with pytest.raises(ValueError, match="no time limit"):
        parse_time_limit(text)


@given(st.integers(min_value=1, max_value=9999 * 86400))
def test_a_written_time_limit_is_the_one_read(seconds: int) -> None:
    assert parse_time_limit(format_time_limit(seconds)) == seconds


def test_the_partition_is_the_named_the_users_the_default_or_the_first() -> None:
    partitions = [{"name": "a"}, {"name": "b", "is_default": True}, {"name": "c"}]
    site = SiteProfile.model_validate({"schema_version": 1, "name": "x", "partition": partitions})
    own = SiteProfile.model_validate(site.model_dump() | {"user": {"partition": "c"}})
    bare = SiteProfile.model_validate({"schema_version": 1, "name": "x", "partition": [{"name": "a"}]})
    chosen = [site.chosen_partition("a"), site.chosen_partition(), own.chosen_partition(), bare.chosen_partition()]
    assert [p.name for p in chosen if p] == ["a", "b", "c", "a"]
    assert site.chosen_partition("z") is None
