"""Optuna's and SMAC3's searches through their own packages, kept to the rows of a table.

Optuna: the samplers may not be given a list of configurations, so a suggestion becomes the nearest open row, and the
row itself (never the suggestion) enters the study, as a running trial until it is told: what a user would do who can
only run certain configurations. A categorical over row numbers would take the structure away and leave random search.
Failed trials are told as pruned to TPE, which ranks them last; the Gaussian process knows complete trials alone, and is
told twice the slowest time so far. Settings are the packages' own defaults but for `constant_liar` (batches) and
`multivariate` (knobs depend on each other) of TPE, as Optuna's documentation advises, and `deterministic_objective`.

SMAC3: its facade for hyperparameters with model, expected improvement, random interleaving and intensifier of its own;
only candidates come from the table: its Sobol design's nearest rows at first, then open rows by the acquisition. Failed
trials cost twice the slowest time so far (moved as slower ones are seen) and have SMAC's own statuses.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from replay_given import Given, Peer
from replay_tables import Measured


class _Optuna(Peer):
    def __init__(self, given: Given) -> None:
        super().__init__(given)
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.optuna = optuna
        self.spaces: dict[str, Any] = {
            name: optuna.distributions.CategoricalDistribution(values)
            if is_word
            else optuna.distributions.IntDistribution(0, len(values) - 1)
            for (name, values), is_word in zip(self.values.items(), self.is_word, strict=True)
        }

    def sampler(self, seed: int) -> Any:
        raise AssertionError(f"TPE or a Gaussian process, from seed {seed}")

    def failure(self) -> dict[str, Any]:
        raise AssertionError("how a failed trial is told")

    def propose(self) -> int:
        states, create = self.optuna.trial.TrialState, self.optuna.trial.create_trial
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self.optuna.exceptions.ExperimentalWarning)
            study = self.optuna.create_study(sampler=self.sampler(int(self.rng.integers(2**31))))
            for place, value in self.seen.items():
                told = self.failure() if value is None else {"value": value}
                study.add_trial(create(params=self._params(place), distributions=self.spaces, **told))
            for place in self.pending:
                study.add_trial(create(state=states.RUNNING, params=self._params(place), distributions=self.spaces))
            asked = study.ask(self.spaces).params
        words = zip(self.values.items(), self.is_word, strict=True)
        return self.nearest([values.index(asked[name]) if w else asked[name] for (name, values), w in words])

    def _params(self, place: int) -> dict[str, Any]:
        point = zip(self.values.items(), self.is_word, self.points[place], strict=True)
        return {name: values[i] if is_word else int(i) for (name, values), is_word, i in point}


class Tpe(_Optuna):
    """Optuna's tree-structured Parzen estimator."""

    def sampler(self, seed: int) -> Any:
        return self.optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)

    def failure(self) -> dict[str, Any]:
        return {"state": self.optuna.trial.TrialState.PRUNED}


class Gp(_Optuna):
    """Optuna's Gaussian process."""

    def sampler(self, seed: int) -> Any:
        return self.optuna.samplers.GPSampler(seed=seed, deterministic_objective=True)

    def failure(self) -> dict[str, Any]:
        return {"value": self.penalty()}


class Smac(Peer):
    """SMAC3's random forest with its facade for hyperparameters."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        if not self.values:
            return  # one configuration: there is nothing to model, and nothing is asked
        import ConfigSpace
        from smac import HyperparameterOptimizationFacade as Facade
        from smac import Scenario
        from smac.acquisition.maximizer.abstract_acquisition_maximizer import AbstractAcquisitionMaximizer
        from smac.initial_design.sobol_design import SobolInitialDesign

        logging.getLogger("smac").setLevel(logging.ERROR)
        peer = self
        space = ConfigSpace.ConfigurationSpace(seed=given.seed)
        for (name, values), is_word in zip(self.values.items(), self.is_word, strict=True):
            kind = ConfigSpace.CategoricalHyperparameter if is_word else ConfigSpace.OrdinalHyperparameter
            space.add(kind(name, values))
        self.configurations = [
            ConfigSpace.Configuration(space, {n: v[i] for (n, v), i in zip(self.values.items(), point, strict=True)})
            for point in self.points
        ]

        class FromTable(AbstractAcquisitionMaximizer):
            def _maximize(self, previous_configs: Any, n_points: int) -> Any:  # noqa: ARG002
                return self._sort_by_acquisition_value([peer.configurations[i] for i in peer.open])

            def maximize(
                self, previous_configs: Any, n_points: int | None = None, random_design: Any = None
            ) -> Iterator[Any]:
                ranked = [config for _, config in self._maximize(previous_configs, n_points or 0)]
                if random_design is not None:
                    random_design.next_iteration()
                for iteration in range(1, len(ranked) + 1):
                    is_random = random_design is not None and random_design.check(iteration)
                    yield ranked.pop(int(self._rng.randint(len(ranked))) if is_random else 0)

        class SobolOfTable(SobolInitialDesign):
            def _select_configurations(self) -> list[Any]:
                places: list[int] = []
                for config in super()._select_configurations()[: len(peer.open)]:
                    point = [values.index(config[name]) for name, values in peer.values.items()]
                    places.append(peer.nearest(point, besides=places))
                return [peer.configurations[place] for place in places]

        self.folder = tempfile.TemporaryDirectory(prefix="replay-smac-")
        scenario = Scenario(
            space,
            output_directory=Path(self.folder.name),
            deterministic=True,
            n_trials=max(self.budget, 4),
            seed=given.seed,
        )
        self.facade = Facade(
            scenario,
            _never_called,
            initial_design=SobolOfTable(scenario),
            acquisition_maximizer=FromTable(space, seed=given.seed),
            logging_level=logging.ERROR,
            overwrite=True,
        )
        self.infos: dict[int, Any] = {}
        self.failed: dict[int, Any] = {}

    def close(self) -> None:
        if self.values:
            self.folder.cleanup()

    def propose(self) -> int:
        from smac.runhistory import TrialInfo

        info = self.facade.ask()
        point = [values.index(info.config[name]) for name, values in self.values.items()]
        place = self.nearest(point)
        is_row = bool(np.all(self.points[place] == point))
        # where its first design is smaller than a batch, SMAC draws from the whole space until it is told something
        self.infos[place] = info if is_row else TrialInfo(self.configurations[place], seed=info.seed)
        return place

    def tell(self, place: int, seen: Measured) -> None:
        from smac.runhistory import StatusType, TrialInfo, TrialValue

        super().tell(place, seen)
        if not self.values:
            return
        info = self.infos.get(place) or TrialInfo(self.configurations[place], seed=0)
        if seen.step_seconds is not None:
            self.facade.tell(info, TrialValue(cost=seen.step_seconds), save=False)
        else:
            status = StatusType.MEMORYOUT if seen.outcome == "oom" else StatusType.CRASHED
            self.failed[place] = info, status
            self.facade.tell(info, TrialValue(cost=float(np.exp(self.penalty())), status=status), save=False)
        for known, status in self.failed.values():  # a slower one moves what failures cost
            cost = float(np.exp(self.penalty()))
            self.facade.runhistory.add(known.config, cost, status=status, seed=known.seed, force_update=True)


def _never_called(config: Any, seed: int = 0) -> float:
    """The facade wants a function to minimise; it is asked and told instead."""
    raise AssertionError(f"{config} is asked and told, never run with seed {seed}")
