"""Doctor: run the baseline several times; say where its time goes and how much this machine's times can be trusted."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from infrarsi_hpc.domain.campaign import PlannedTrial
from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.contract import Measurement
from infrarsi_hpc.domain.noise import BaselineStep, DoctorReport
from infrarsi_hpc.domain.outcome import Ending, Outcome
from infrarsi_hpc.domain.reading import Reading
from infrarsi_hpc.domain.trial import Run, TrialResult, TrialSpec
from infrarsi_hpc.edges import batches
from infrarsi_hpc.edges.ceiling import matmul_ceiling_flops
from infrarsi_hpc.edges.host import device_key, node_name, num_cores
from infrarsi_hpc.edges.local import THIS_MACHINE, LocalDispatcher
from infrarsi_hpc.edges.project import CAMPAIGNS, DOCTOR_FOLDER, Project, write_doctor
from infrarsi_hpc.errors import Interrupted, ProjectError, SiteError
from infrarsi_hpc.stages.interrupts import interruptible
from infrarsi_hpc.stages.run.collect import Collector, collect, own_folder
from infrarsi_hpc.stages.trials import spec_of
from infrarsi_hpc.verify.ending import classify
from infrarsi_hpc.verify.noise import detectable_speedup, pairs_needed, relative_spread, step_spread
from infrarsi_hpc.verify.noise_causes import noise_causes
from infrarsi_hpc.verify.readings import read, step_durations

#: Runs of the baseline: three seeds, two of them twice, so that noise and the seeds' own spread come apart.
SEED_ORDER = (0, 1, 2, 0, 1)
PROFILE_STEPS = 8


@dataclass
class _Seen:
    spec: TrialSpec
    result: TrialResult
    reading: Reading

    @property
    def last(self) -> Run:
        return self.result.runs[-1]


def examine(
    project: Project,
    *,
    where: str = "",
    on_progress: Callable[[str], None] = lambda _: None,
    on_poll: Callable[[], None] = lambda: None,
) -> DoctorReport:
    """Measure the baseline on this machine and keep the report, as that of `where` if this is a node of a site's.

    `on_poll` is called at every look at the runs; a KeyboardInterrupt of its stops them.

    Raises
    ------
    ProjectError
        The baseline itself does not run, does not fit its memory limit, or is not the same twice.
    Interrupted
        Ctrl-C; nothing is kept.
    """
    started = time.time()
    contract = project.contract
    key = device_key(contract.workload.device)
    on_progress("measuring the matmul ceiling")
    ceiling = matmul_ceiling_flops(
        contract.workload.python, contract.workload.device, num_cores(), contract.invariants.precision_floor
    )
    evaluation_seed = secrets.randbelow(2**31)
    seeds = [secrets.randbelow(2**31) for _ in range(3)]
    seen = _run_baseline(project, seeds, evaluation_seed, on_progress, on_poll)
    profiled, timed = seen[-1], seen[:-1]
    if contract.invariants.same_tokens:
        _check_repeatable(timed)
    slopes = [s.reading.slope_seconds for s in timed if s.reading.slope_seconds is not None]
    if not slopes:
        raise ProjectError(
            "the baseline's step time cannot be measured",
            why="longer runs did not take longer than short ones: something else dominates them",
            fix="raise measurement.trial_steps in the contract (`infrarsi init --relock`)",
        )
    within = step_spread([step_durations(s.last)[s.reading.warmup_steps :] for s in timed])
    between = relative_spread(slopes)
    step_seconds = statistics.median(slopes)
    measurement = contract.measurement
    first = timed[0]
    report = DoctorReport(
        contract_sha256=contract.digest,
        baseline_commit=project.lock.baseline_commit,
        device_key=str(key),
        node=node_name(),
        measured_at=started,
        num_runs=len(timed),
        step_seconds=step_seconds,
        within_run_cv=within,
        between_run_cv=between,
        detectable_speedup=detectable_speedup(between, measurement.max_pairs, measurement.confidence),
        pairs_needed=pairs_needed(between, measurement.min_speedup, measurement.confidence),
        peak_gib=max((s.reading.peak_gib for s in timed if s.reading.peak_gib is not None), default=None),
        memory_kind=first.reading.memory_kind,
        matmul_ceiling_flops=ceiling,
        mfu=contract.workload.shape.flops_per_step / step_seconds / ceiling,
        phases=profiled.reading.phases or {},
        num_parameters=first.last.num_parameters or 0,
        parameters_digest=first.last.parameters_digest or "",
        matmul_dtypes=first.last.matmul_dtypes,
        evaluation_loss=first.last.evaluation_loss,
        evaluation_losses={
            str(s.spec.seed): s.last.evaluation_loss for s in timed if s.last.evaluation_loss is not None
        },
        evaluation_seed=evaluation_seed,
        linear_flops_per_token=first.last.linear_flops_per_token,
        other_flops_per_token=first.last.other_flops_per_token,
        uncounted_operators=first.last.uncounted_operators,
        loss_spread_relative=_spread(timed, "loss"),
        evaluation_spread_relative=_evaluation_spread(timed),
        update_spread_relative=_spread(timed, "update_rms"),
        wall_seconds=time.time() - started,
        device_seconds=sum(s.result.device_seconds for s in seen),
        pair_seconds=_pair_seconds(timed, step_seconds, measurement),
        noise_causes=noise_causes(between, [run for s in timed for run in s.result.runs], first.result.num_cores),
        reference={str(s.spec.seed): _steps(s.last) for s in timed},
        versions=first.result.versions,
    )
    write_doctor(project, report, where)
    return report


def _pair_seconds(timed: Sequence[_Seen], step_seconds: float, measurement: Measurement) -> float:
    """Two trials of a short and a long run each: what is not steps takes as long as it did here."""
    rest = [
        (s.result.finished_at - s.result.started_at) - sum(run.length for run in s.result.runs) * step_seconds
        for s in timed
    ]
    steps = measurement.short_steps + measurement.long_steps
    return 2 * (max(0.0, statistics.median(rest)) + steps * step_seconds)


def _run_baseline(
    project: Project,
    seeds: Sequence[int],
    evaluation_seed: int,
    on_progress: Callable[[str], None],
    on_poll: Callable[[], None],
) -> list[_Seen]:
    contract = project.contract
    lengths = (contract.measurement.short_steps, contract.measurement.trial_steps)
    baseline = Candidate(configuration=contract.knob_set.baseline(), source="baseline")
    plans = [
        PlannedTrial(
            trial=f"d{number:03d}",
            candidate=baseline,
            lengths=lengths,
            seed=seeds[index],
            evaluation_seed=evaluation_seed,
        )
        for number, index in enumerate(SEED_ORDER, start=1)
    ]
    specs = [spec_of(project, plan, "baseline", 1) for plan in plans]
    profile = PlannedTrial(trial="d900", candidate=baseline, lengths=(PROFILE_STEPS,), seed=seeds[0])
    specs.append(spec_of(project, profile, "profile", 1, is_limited=False, profile=True))
    home = project.root / CAMPAIGNS / DOCTOR_FOLDER
    dispatcher = LocalDispatcher(THIS_MACHINE)
    with own_folder(home, dispatcher), interruptible():
        return _watch_baseline(project, home, specs, dispatcher, on_progress, on_poll)


def _watch_baseline(
    project: Project,
    home: Path,
    specs: list[TrialSpec],
    dispatcher: LocalDispatcher,
    on_progress: Callable[[str], None],
    on_poll: Callable[[], None],
) -> list[_Seen]:
    tasks = dispatcher.group(specs, is_one_allocation=True)
    folder = batches.write_batch(home, 1, 1, tasks, {})
    job = dispatcher.submit(folder, 1, tasks)
    seen: list[_Seen] = []
    try:
        for taken in collect(Collector(home, 1, 1, job, tasks, dispatcher), on_poll=lambda _: on_poll()):
            spec, found = taken.spec, taken.result
            ending = classify(found, spec) if found is not None else taken.ending
            if found is None or ending is None or ending.outcome is not Outcome.OK:
                dispatcher.cancel(folder, job)
                raise _baseline_error(project, spec, ending or Ending(outcome=Outcome.UNKNOWN))
            reading = read(found, spec)
            seen.append(_Seen(spec, found, reading))
            shown = reading.slope_seconds or reading.step_seconds
            on_progress(
                f"baseline run {len(seen)} of {len(specs)}" + (f": {1000 * shown:.1f} ms a step" if shown else "")
            )
    except KeyboardInterrupt as error:
        dispatcher.cancel(folder, job)
        raise Interrupted(
            "the doctor was stopped",
            why="Ctrl-C, SIGTERM or `infrarsi cancel`",
            fix="run `infrarsi doctor` again; it starts over",
        ) from error
    return seen


def _baseline_error(project: Project, spec: TrialSpec, ending: Ending) -> ProjectError | SiteError:
    log = batches.log_excerpt(batches.trial_folder(project.root / CAMPAIGNS / DOCTOR_FOLDER, spec.trial), 600).strip()
    kind = SiteError if ending.outcome is Outcome.INFRA else ProjectError
    fix = {
        Outcome.DEVICE_OOM: "raise limits.memory_gib and `infrarsi init --relock`, or start from settings that fit",
        Outcome.TIMEOUT: "raise limits.wall_seconds or limits.idle_seconds in the contract (`infrarsi init --relock`)",
    }.get(ending.outcome, "make this command work first: " + " ".join(spec.command))
    return kind(
        f"the baseline does not run: {ending.label}",
        why=ending.evidence + (f"\nlast lines of its log:\n{log}" if log else ""),
        fix=fix,
    )


def _check_repeatable(timed: Sequence[_Seen]) -> None:
    """The same seed must give the same tokens, or no candidate can be held to them."""
    first: dict[int, _Seen] = {}
    for seen in timed:
        earlier = first.setdefault(seen.spec.seed, seen)
        mine, theirs = seen.last.steps, earlier.last.steps
        differing = [
            k for k, (a, b) in enumerate(zip(mine, theirs, strict=False), start=1) if a.token_hash != b.token_hash
        ]
        if differing:
            raise ProjectError(
                f"the baseline trained on other tokens the second time (seed {seen.spec.seed}, step {differing[0]})",
                why="the order of the data must follow from the seed alone, or it cannot be checked",
                fix="seed the data order, or set invariants.same_tokens = false in the contract and lock it again",
            )


def _spread(timed: Sequence[_Seen], name: str) -> float:
    """Largest relative difference between repeats of the same seed, over steps."""
    worst = 0.0
    for a in timed:
        for b in timed:
            if a is not b and a.spec.seed == b.spec.seed:
                for one, other in zip(a.last.steps, b.last.steps, strict=False):
                    x, y = getattr(one, name), getattr(other, name)
                    if x is not None and y:
                        worst = max(worst, abs(x - y) / abs(y))
    return worst


def _evaluation_spread(timed: Sequence[_Seen]) -> float:
    """Relative spread of the held-out loss over the seeds."""
    by_seed = {s.spec.seed: s.last.evaluation_loss for s in timed if s.last.evaluation_loss is not None}
    return relative_spread(list(by_seed.values()))


def _steps(run: Run) -> tuple[BaselineStep, ...]:
    return tuple(BaselineStep.model_validate(step.model_dump()) for step in run.steps)
