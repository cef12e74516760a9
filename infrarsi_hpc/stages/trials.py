"""From a planned trial to a spec: what every stage shares."""

from __future__ import annotations

from infrarsi_hpc.domain.campaign import PlannedTrial
from infrarsi_hpc.domain.contract import Contract
from infrarsi_hpc.domain.trial import Evidence, PatchFile, Purpose, TrialLimits, TrialSpec
from infrarsi_hpc.edges.project import Project


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
        operators=dict(contract.workload.operators),
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
