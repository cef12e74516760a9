from dataclasses import replace

import numpy as np
import pytest

from infrarsi_hpc.domain.knobs import Knob, KnobSet
from infrarsi_hpc.models.problem import Problem
from infrarsi_hpc.search.space import Space


def test_every_row_breaks_no_rule_and_the_count_is_that_of_the_rules(problem: Problem) -> None:
    space = Space(problem)
    rows = space.rows(10**6, np.random.default_rng(0))
    # of ranks x threads, (2, 2) needs four cores: three of four are left
    assert len(rows) == space.num_combinations * 3 // 4
    assert len(np.unique(rows, axis=0)) == len(rows)
    for row in rows[:: len(rows) // 50]:
        configuration = space.configuration(row)
        assert problem.broken_rules(configuration) == []
        assert space.encode(configuration) == tuple(row)


def test_values_keep_the_type_that_the_contract_gave_them(problem: Problem) -> None:
    configuration = Space(problem).configuration([0] * len(problem.knob_set.knobs))
    assert type(configuration["micro_batch"]) is int
    assert configuration["attention"] == "math"


def test_a_space_too_large_to_list_is_drawn_from_without_repeats(problem: Problem) -> None:
    more = {f"extra_{i}": Knob(values=tuple(range(10)), baseline=0, flag=f"--extra-{i}") for i in range(6)}
    large = Space(replace(problem, knob_set=KnobSet(knobs={**problem.knob_set.knobs, **more})))
    assert large.num_combinations > 10**9
    rows = large.rows(500, np.random.default_rng(0))
    assert len(np.unique(rows, axis=0)) == len(rows) == 500
    assert large.allowed(rows).all()


def test_neighbours_differ_in_one_knob_and_break_no_rule(problem: Problem) -> None:
    space = Space(problem)
    row = space.encode({**problem.knob_set.baseline(), "ranks": 2})
    assert row is not None
    near = space.neighbours(np.array([row]))
    apart = (near != np.array(row)).sum(axis=1)
    assert set(apart.tolist()) == {0, 1}
    assert not any(space.configuration(r)["threads"] == 2 for r in near if space.configuration(r)["ranks"] == 2)


def test_a_pool_limits_the_space_to_its_members(problem: Problem) -> None:
    members = tuple({**problem.knob_set.baseline(), "micro_batch": m} for m in (1, 4))
    outside = {**problem.knob_set.baseline(), "micro_batch": 16}
    space = Space(replace(problem, pool=(*members, outside)))
    rows = space.rows(100, np.random.default_rng(0))
    assert [space.configuration(r)["micro_batch"] for r in rows] == [1, 4]
    assert len(space.neighbours(rows[:1])) == 2


@pytest.mark.parametrize("value", [3, "sdpa2"])
def test_a_configuration_with_values_from_elsewhere_has_no_row(problem: Problem, value: int | str) -> None:
    name = "micro_batch" if isinstance(value, int) else "attention"
    assert Space(problem).encode({name: value}) is None
    assert Space(problem).encode({}) == Space(problem).encode(problem.knob_set.baseline())
