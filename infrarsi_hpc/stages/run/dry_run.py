"""What a campaign would begin with: nothing is started, nothing is written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.noise import DoctorReport
from infrarsi_hpc.edges.project import Project, patch_library
from infrarsi_hpc.search.propose import propose
from infrarsi_hpc.search.space import Space
from infrarsi_hpc.stages.problem import problem_of
from infrarsi_hpc.stages.run.opening import RunOptions


@dataclass(frozen=True)
class DryRun:
    """What `run --dry-run` shows: nothing is started, nothing written."""

    candidates: list[Candidate]
    num_configurations: int
    trial_seconds: float
    max_trials: int


def dry_run(project: Project, options: RunOptions, doctor: DoctorReport | None) -> DryRun:
    """The first round as it would be planned, and what a trial is expected to take."""
    contract = project.contract
    problem = problem_of(
        contract, patch_library(project), options.fixed, run_noise=doctor.between_run_cv if doctor else 0.05
    )
    rng = np.random.default_rng([options.seed or 0, 1])
    candidates = propose(problem, [], options.batch, rng)
    step_seconds = doctor.step_seconds if doctor else 0.0
    return DryRun(
        candidates=candidates,
        num_configurations=Space(problem).num_combinations,
        trial_seconds=contract.measurement.trial_steps * step_seconds,
        max_trials=options.max_trials or contract.budget.trials,
    )
