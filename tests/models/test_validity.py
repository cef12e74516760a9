import numpy as np

from infrarsi_hpc.models.validity import fit_validity


def test_a_failure_is_blamed_on_what_no_finished_trial_had() -> None:
    features = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [1, 0, 1], [0, 1, 1]], bool)
    has_failed = np.array([False, False, False, True, True])
    broken = fit_validity(features, has_failed).broken
    assert broken[2] > 0.6
    assert broken[:2].max() < 0.05
    # counting failures by feature, as one would at first, blames the innocent too
    naive = (features & has_failed[:, None]).sum(axis=0) / features.sum(axis=0)
    assert naive[0] > 0.3


def test_one_failure_among_two_suspects_leaves_both_possible() -> None:
    model = fit_validity(np.array([[1, 1]], bool), np.array([True]))
    assert 0.05 < model.broken[0] < 0.6
    assert model.broken[0] == model.broken[1]


def test_without_failures_everything_runs_ever_more_surely() -> None:
    few = fit_validity(np.ones((1, 1), bool), np.zeros(1, bool))
    many = fit_validity(np.ones((9, 1), bool), np.zeros(9, bool))
    everything = np.ones((1, 1), bool)
    assert 0.97 < few.probability_valid(everything)[0] < many.probability_valid(everything)[0]


def test_a_baseline_that_fails_blames_no_setting() -> None:
    model = fit_validity(np.zeros((3, 2), bool), np.ones(3, bool))
    assert model.broken.max() < 0.05
