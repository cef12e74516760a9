"""Beliefs with owners: mixed by trust, learned from families of campaigns, and given up where they were wrong."""

from __future__ import annotations

import numpy as np
import pytest

from infrarsi_hpc.models.basis import Prior
from infrarsi_hpc.models.normal import Normal, mixed, separate
from infrarsi_hpc.models.owners import Named, hierarchy, pooled, trusted


def test_a_mixture_is_as_wide_as_its_parts_disagree() -> None:
    one, other = Normal(np.array([0.0, 1.0]), 0.1 * np.eye(2)), Normal(np.array([2.0, 1.0]), 0.1 * np.eye(2))
    both = mixed([one, other], [0.5, 0.5])
    np.testing.assert_allclose(both.mean, [1.0, 1.0])
    # the mean of the widths knows nothing of the two being apart
    np.testing.assert_allclose(both.width, [np.hypot(0.1, 1.0), 0.1])
    rng = np.random.default_rng(0)
    drawn = np.vstack([part.mean + rng.standard_normal((20_000, 2)) @ part.root.T for part in (one, other)])
    np.testing.assert_allclose(np.cov(drawn.T), both.covariance, atol=0.02)
    assert mixed([one, other], [1.0, 0.0]) is one


def test_shares_follow_what_was_probable_and_unlikely_owners_drop_out() -> None:
    shares = trusted(["textbook", "neighbour", "liar"], [0.25, 0.5, 0.25], [-10.0, -8.0, -40.0])
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["neighbour"] == pytest.approx(2 * np.exp(2) * shares["textbook"])
    assert shares["liar"] < 1e-12
    beliefs = [Normal(np.array([m]), np.eye(1)) for m in (0.0, 1.0, 1e6)]
    assert pooled(beliefs, shares).mean[0] < 1.0


def test_named_beliefs_find_their_places_and_leave_the_rest() -> None:
    theirs = Named(("b", "elsewhere", "a"), Normal(np.array([2.0, 9.0, 1.0]), np.diag([0.2, 0.9, 0.1])))
    rest = separate([Prior(0.0, 1.0), Prior(0.5, 0.7), Prior(0.0, 1.0)])
    found = theirs.within(["a", "new", "b"], rest)
    np.testing.assert_allclose(found.mean, [1.0, 0.5, 2.0])
    np.testing.assert_allclose(found.width, [0.1, 0.7, 0.2])
    assert theirs.within(["x", "y", "z"], rest) is rest


def group(value: float, width: float, prior: Prior) -> Named:
    """The posterior of one campaign that measured `value` with a standard error of `width`."""
    precision = 1 / width**2 + 1 / prior.width**2
    mean = (value / width**2 + prior.mean / prior.width**2) / precision
    return Named(("a",), Normal(np.array([mean]), np.array([[precision**-0.5]])))


def test_a_family_of_campaigns_says_where_the_next_one_lies_and_how_far_it_may_be_off() -> None:
    prior = Prior(0.0, 2.0)
    textbook = Named(("a",), separate([prior]))
    rng = np.random.default_rng(3)
    true = 1.0 + 0.3 * rng.standard_normal(12)
    apart = hierarchy([group(v, 0.02, prior) for v in true], textbook, np.array([0.6]))
    alike = hierarchy([group(1.0, 0.02, prior) for _ in true], textbook, np.array([0.6]))
    assert apart.belief.mean[0] == pytest.approx(true.mean(), abs=0.1)
    # pooling all trials as one campaign's would be sure of the mean to 0.02 / sqrt(12)
    assert 0.2 < apart.belief.width[0] < 0.5
    assert alike.belief.width[0] < apart.belief.width[0]


def test_what_a_campaign_could_not_see_stays_as_the_textbook_has_it() -> None:
    textbook = Named(("a", "b"), separate([Prior(0.0, 1.0), Prior(0.3, 0.5)]))
    seen = Named(("a",), Normal(np.array([0.8]), np.array([[0.05]])))
    found = hierarchy([seen], textbook, np.array([0.1, 0.1]))
    assert found.belief.mean[0] == pytest.approx(0.8, abs=0.1)
    assert found.belief.mean[1] == pytest.approx(0.3)
    assert found.belief.width[1] == pytest.approx(np.hypot(0.5, 0.1), rel=0.1)
