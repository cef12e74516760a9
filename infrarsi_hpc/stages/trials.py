"""From a planned trial to a spec, and from a submitted batch to its results: what every stage shares."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from infrarsi_hpc.domain.campaign import PlannedTrial
from infrarsi_hpc.domain.contract import Contract
from infrarsi_hpc.domain.outcome import Ending, Outcome
from infrarsi_hpc.domain.trial import Evidence, PatchFile, Purpose, TrialLimits, TrialResult, TrialSpec
from infrarsi_hpc.edges import batches, local
from infrarsi_hpc.edges.lock import held
from infrarsi_hpc.edges.project import Project
from infrarsi_hpc.errors import TrialFileError


def command_of(contract: Contract, plan: PlannedTrial) -> tuple[str, ...]:
    """argv of a trial: the contract's command and the configuration's flags."""
    return (*contract.workload.command, *contract.knob_set.arguments(plan.candidate.configuration))


def spec_of(
    project: Project,
    plan: PlannedTrial,
    purpose: Purpose,
    attempt: int,
    *,
    is_limited: bool = True,
    profile: bool = False,
) -> TrialSpec:
    """The spec of one attempt of a planned trial; the same plan gives the same spec."""
    contract = project.contract
    limits = contract.limits
    memory_gib = limits.memory_gib if is_limited else None
    return TrialSpec(
        trial=plan.trial,
        attempt=attempt,
        purpose=purpose,
        project=str(project.root),
        baseline_commit=project.lock.baseline_commit,
        patches=tuple(PatchFile(sha256=p, path=f"{p[:16]}.diff") for p in plan.candidate.patches),
        locked_files=project.lock.locked_files,
        configuration=plan.candidate.configuration,
        command=command_of(contract, plan),
        evaluate=contract.workload.evaluate,
        python=contract.workload.python,
        warm_imports=contract.workload.warm_imports,
        environment=dict(contract.workload.environment),
        device=contract.workload.device,
        ranks=contract.knob_set.num_ranks(plan.candidate.configuration),
        lengths=plan.lengths,
        seed=plan.seed,
        limits=TrialLimits(
            memory_gib=memory_gib,
            memory_set_by="harness" if memory_gib is not None else "device",
            wall_seconds=limits.wall_seconds,
            idle_seconds=limits.idle_seconds,
        ),
        evidence=Evidence(profile=profile, evaluation_seed=plan.evaluation_seed),
    )


@contextmanager
def own_folder(home: Path) -> Iterator[None]:
    """An empty folder for one command's own trials: what an earlier, killed command left running is stopped first.

    Raises
    ------
    SiteError
        Another process uses it now.
    """
    home.parent.mkdir(parents=True, exist_ok=True)
    with held(home.parent / f"{home.name}.lock", wait_seconds=0.0):
        for folder in (home / "rounds").glob("r*"):
            local.cancel(folder, None)
            deadline = time.monotonic() + local.CANCEL_SECONDS
            while batches.is_agent_alive(folder) and time.monotonic() < deadline:
                time.sleep(0.05)
        shutil.rmtree(home, ignore_errors=True)
        yield


def results(
    campaign: Path,
    number: int,
    job: dict[str, Any] | None,
    specs: Sequence[TrialSpec],
    *,
    poll_seconds: float = 0.2,
    on_poll: Callable[[dict[str, Any] | None], None] = lambda _: None,
) -> Iterator[tuple[TrialSpec, TrialResult | Ending]]:
    """Results of a batch as they come; an ending instead where the agent left none.

    `on_poll` is told the heartbeat at every look; what it raises ends the waiting.
    """
    waiting = {spec.trial: spec for spec in specs}
    folder = batches.round_folder(campaign, number)
    while waiting:
        # asked before the results are looked at: whoever is gone now has written all it ever will
        is_alive = (job is not None and local.is_alive(job)) or batches.is_agent_alive(folder)
        for spec in list(waiting.values()):
            found = _result(campaign, spec)
            if found is not None:
                del waiting[spec.trial]
                yield spec, found
        if waiting and not is_alive:
            for spec in waiting.values():
                yield (
                    spec,
                    Ending(outcome=Outcome.INFRA, evidence="the agent ended without a result: " + _last_words(folder)),
                )
            return
        if waiting:
            on_poll(batches.read_heartbeat(folder))
            time.sleep(poll_seconds)


def _result(campaign: Path, spec: TrialSpec) -> TrialResult | Ending | None:
    try:
        return batches.read_result(batches.trial_folder(campaign, spec.trial), spec.attempt)
    except TrialFileError as error:
        return Ending(outcome=Outcome.INFRA, evidence=str(error))


def _last_words(folder: Path) -> str:
    for path in sorted((folder / "submitit").glob("*_log.out"), reverse=True):
        lines = path.read_text("utf-8", "replace").strip().splitlines()
        if lines:
            return lines[-1][:300]
    return "it wrote nothing"
