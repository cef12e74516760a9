"""Run: rounds of trials until the budget, the deadline or convergence; then promotion of the best."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from infrarsi_hpc.domain.campaign import CampaignState, PlannedTrial, PromotionResult
from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.knobs import Configuration
from infrarsi_hpc.domain.noise import DoctorReport
from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.edges import archive
from infrarsi_hpc.edges import store as stores
from infrarsi_hpc.edges.dispatch import Dispatcher, PausingDispatcher
from infrarsi_hpc.edges.host import device_key
from infrarsi_hpc.edges.ledger import Ledger
from infrarsi_hpc.edges.local import THIS_MACHINE
from infrarsi_hpc.edges.numeric import use_one_thread
from infrarsi_hpc.edges.project import KEPT_NAMES, Project, conflicts, patch_library
from infrarsi_hpc.edges.shipped import shipped
from infrarsi_hpc.errors import ContractError, Interrupted, UsageError
from infrarsi_hpc.search.convergence import converged
from infrarsi_hpc.search.finalists import finalists
from infrarsi_hpc.search.propose import Problem, propose
from infrarsi_hpc.stages.allowance import Allowance
from infrarsi_hpc.stages.campaign import Campaign, Observer, Waiting
from infrarsi_hpc.stages.dispatchers import dispatcher_for
from infrarsi_hpc.stages.doctor import examine
from infrarsi_hpc.stages.interrupts import HandOver, interruptible
from infrarsi_hpc.stages.nodes import excluded_nodes
from infrarsi_hpc.stages.problem import problem_of
from infrarsi_hpc.stages.promotion import (
    decide_finalist,
    finalists_of,
    plan_block,
    result_of,
    was_looked_at,
    with_room,
)

#: Trials of a round; a round's results are in before the next one is chosen.
BATCH = 4
#: Finalists whose times are compared with the baseline's, at most: what the promotion's confidence is shared by.
MAX_FINALISTS = 3
#: Candidates that get as far as a promotion run, those included that fail in their first ones.
MAX_TRIED_FINALISTS = 6
CAMPAIGN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class RunOptions:
    """What the command line says."""

    campaign: str | None = None
    max_trials: int | None = None
    budget_device_hours: float | None = None
    #: Unix time.
    until: float | None = None
    seed: int | None = None
    batch: int = BATCH
    #: Knobs held at one value: they leave the search space.
    fixed: Configuration = field(default_factory=dict)
    use_experience: bool = True
    site: SiteProfile = THIS_MACHINE
    #: Unix time before which nothing is started.
    start_at: float | None = None
    is_one_tick: bool = False


def known_doctor(project: Project, site: SiteProfile) -> DoctorReport | None:
    """The doctor's report of this machine or of the site's partition, if there is one."""
    if site.scheduler.kind == "slurm":
        from infrarsi_hpc.stages.on_node import place_of

        return project.doctor(place_of(site))
    return project.doctor()


def ensure_doctor(project: Project, observer: Observer, site: SiteProfile = THIS_MACHINE) -> DoctorReport:
    """The doctor's report; made now, on a node of the site's, if there is none for this contract."""
    if site.scheduler.kind == "slurm":
        from infrarsi_hpc.stages.on_node import examine_on_node

        report = known_doctor(project, site)
        if report is None:
            observer.said("no doctor's report for this contract yet: examining the baseline on a node first")
            report = examine_on_node(project, site, said=observer.said)
        return report
    report = project.doctor()
    if report is not None and report.device_key != str(device_key(project.contract.workload.device)):
        observer.said(f"the doctor's report is of another device ({report.device_key})")
        report = None
    if report is None:
        observer.said("no doctor's report for this contract and device yet: examining the baseline first")
        report = examine(project, on_progress=observer.said)
    return report


@contextmanager
def open_campaign(project: Project, options: RunOptions, observer: Observer) -> Iterator[Campaign]:
    """Open a campaign, a new one or one to go on with.

    Raises
    ------
    ContractError
        The campaign was begun under another contract.
    SiteError
        Another head runs it.
    """
    name = campaign_name(project, options.campaign)
    doctor = ensure_doctor(project, observer, options.site)
    with Ledger(project.campaign_folder(name) / "ledger.jsonl") as ledger:
        if ledger.kept_aside is not None:
            observer.said(f"the ledger's last line was half-written; it is kept in {ledger.kept_aside.name}")
        archive.unpack(project.campaign_folder(name), on_file=ledger.keep_alive)
        patches = patch_library(project)
        state = ledger.state
        if state.opened is None:
            seed = options.seed if options.seed is not None else secrets.randbelow(2**31)
            ledger.append(
                "opened",
                campaign=name,
                contract=project.contract.model_dump(mode="json"),
                contract_sha256=project.contract.digest,
                baseline_commit=project.lock.baseline_commit,
                device_key=doctor.device_key,
                seed=seed,
                fixed=options.fixed,
                doctor=doctor.model_dump(mode="json"),
                patches=[p.model_dump(mode="json") for p in patches.values()],
            )
        else:
            _check_same(state, project, options, name, doctor)
            doctor = DoctorReport.model_validate(state.opened["doctor"])
            patches = {p.sha256: p for p in map(Patch.model_validate, state.opened["patches"])}
        store = stores.default_store(os.environ, Path.home()) if options.use_experience else None
        folder = project.campaign_folder(name)

        def excluded() -> tuple[str, ...]:
            partition = options.site.chosen_partition()
            shares_host = partition is not None and partition.shares_host
            return excluded_nodes(state, folder, noise_cv=doctor.between_run_cv, shares_host=shares_host)

        dispatcher = dispatcher_for(options.site, folder, state.uid, said=observer.said, exclude=excluded)
        _check_kind(state, dispatcher, name)
        campaign = Campaign(name, project, doctor, ledger, patches, store, dispatcher, observer)
        if isinstance(dispatcher, PausingDispatcher):
            dispatcher.pause = campaign.wait
        yield campaign


def _check_kind(state: CampaignState, dispatcher: Dispatcher, name: str) -> None:
    for record in state.rounds.values():
        is_open = any(not state.trials[trial].is_final for trial in record.trials)
        kind = record.job.get("kind", "local") if record.job is not None else dispatcher.kind
        if is_open and kind != dispatcher.kind:
            raise UsageError(
                f"campaign {name} has jobs of a {kind} site, and this is a {dispatcher.kind} one",
                why="its trials were submitted with another --site",
                fix=f"name that site again: infrarsi run --campaign {name} --site NAME, or INFRARSI_SITE",
            )


def campaign_name(project: Project, name: str | None) -> str:
    """The campaign's name, the contract's if none is given.

    Raises
    ------
    UsageError
        It is no name, or one that the program keeps for itself.
    """
    name = name or project.contract.name
    if not CAMPAIGN_NAME.fullmatch(name) or name in KEPT_NAMES:
        raise UsageError(
            f"{name!r} cannot be a campaign's name",
            why=f"it must be letters, digits and _ . -, and none of {', '.join(KEPT_NAMES)}",
            fix="infrarsi run --campaign NAME",
        )
    return name


def _check_same(state: CampaignState, project: Project, options: RunOptions, name: str, doctor: DoctorReport) -> None:
    assert state.opened is not None
    for what, mine in (("baseline_commit", project.lock.baseline_commit), ("device_key", doctor.device_key)):
        if state.opened[what] != mine:
            raise ContractError(
                f"campaign {name} was begun with another {what.replace('_', ' ')}",
                why=f"it has {state.opened[what][:40]}, here it is {mine[:40]}",
                fix="start another one: infrarsi run --campaign NAME",
            )
    if state.opened["contract_sha256"] != project.contract.digest:
        raise ContractError(
            f"campaign {name} was begun under another contract",
            why=f"it has {state.opened['contract_sha256'][:12]}, the project now {project.contract.digest[:12]}",
            fix="start another one: infrarsi run --campaign NAME",
        )
    if options.fixed and dict(options.fixed) != dict(state.opened.get("fixed", {})):
        raise UsageError(
            f"campaign {name} was begun with other fixed knobs: {state.opened.get('fixed', {})}",
            fix="leave --fix out to go on with it, or start another one: infrarsi run --campaign NAME",
        )


def allowance_of(campaign: Campaign, options: RunOptions, now: float) -> Allowance:
    """The limits in force."""
    budget = campaign.project.contract.budget
    opened_at = float(campaign.state.opened["time"]) if campaign.state.opened else now
    hours = options.budget_device_hours if options.budget_device_hours is not None else budget.device_hours
    deadlines = [d for d in (options.until, opened_at + 60 * budget.wall_minutes if budget.wall_minutes else None) if d]
    return Allowance(
        max_trials=options.max_trials if options.max_trials is not None else budget.trials,
        device_seconds=3600 * hours if hours is not None else None,
        deadline=min(deadlines, default=None),
        doctor=campaign.doctor,
        contract=campaign.project.contract,
    )


def run(project: Project, options: RunOptions, observer: Observer) -> CampaignState:
    """Run a campaign to its end, or go on with it.

    A tick (`is_one_tick`) takes in what has ended, starts what is due, and returns with the campaign open.

    Raises
    ------
    Interrupted
        Ctrl-C, SIGTERM or `infrarsi cancel`; the same command goes on.
    """
    use_one_thread()
    with interruptible():
        if not _may_start(options, observer):
            return CampaignState()
        with open_campaign(project, options, observer) as campaign:
            if options.is_one_tick and stop_file(campaign.folder).exists():
                observer.said("it was asked to stop (infrarsi cancel); `infrarsi run` without --once goes on with it")
                return campaign.state
            stop_file(campaign.folder).unlink(missing_ok=True)
            try:
                _run(campaign, options)
            except Waiting as waiting:
                observer.said(f"campaign {campaign.name}: {waiting}; call again to go on")
            except Spent as spent:
                campaign.cancel_running()
                observer.said(f"stopped: {spent}; the same command with a larger limit goes on")
            except HandOver as error:
                raise Interrupted(
                    f"the head of campaign {campaign.name} hands over; its trials go on",
                    why="SIGUSR1: its own time is nearly up",
                    fix="the same command goes on where it stopped",
                ) from error
            except (KeyboardInterrupt, StopAsked) as error:
                campaign.cancel_running()
                raise Interrupted(
                    f"campaign {campaign.name} was stopped; nothing that finished is lost",
                    why="`infrarsi cancel`" if isinstance(error, StopAsked) else "Ctrl-C or SIGTERM",
                    fix="the same command goes on where it stopped",
                ) from error
            return campaign.state


class Spent(Exception):
    """A limit is reached while trials run."""


class StopAsked(Exception):
    """Somebody left a stop file."""


def stop_file(campaign: Path) -> Path:
    """A file that asks the head of a campaign to stop, wherever it runs."""
    return campaign / "stop"


def _may_start(options: RunOptions, observer: Observer) -> bool:
    """Wait for the time to start; a tick does not wait."""
    if options.start_at is None or options.start_at <= time.time():
        return True
    observer.said("waiting until " + time.strftime("%Y-%m-%d %H:%M", time.localtime(options.start_at)))
    while not options.is_one_tick and (left := options.start_at - time.time()) > 0:
        time.sleep(min(left, 60.0))
    return not options.is_one_tick


def _run(campaign: Campaign, options: RunOptions) -> None:
    state = campaign.state
    if state.closed is not None:
        campaign.observer.said(f"campaign {campaign.name} is closed: {state.closed['reason']}")
        return
    allowance = allowance_of(campaign, options, time.time())

    def check(running_seconds: float) -> None:
        if stop_file(campaign.folder).exists():
            raise StopAsked
        if why := allowance.spent(state, running_seconds, time.time()):
            raise Spent(why)

    campaign.check, campaign.is_one_tick = check, options.is_one_tick
    campaign.finish_open_rounds()
    if not finalists_of(state):
        reason = _search(campaign, options, allowance)
        campaign.observer.said(f"search ends: {reason}")
    stopped = _promote(campaign, allowance)
    if stopped:
        campaign.observer.said(f"not decided yet: {stopped}; the same command with a larger limit goes on")
        return
    best = state.promoted()
    reason = "promoted" if best is not None else "nothing was promoted"
    campaign.ledger.append("closed", reason=reason)
    campaign.observer.changed(state, None)


def round_rng(state: CampaignState, number: int) -> np.random.Generator:
    """The random generator of a round: it follows from the campaign's seed, so a restarted head draws the same."""
    assert state.opened is not None
    return np.random.default_rng([int(state.opened["seed"]), number])


def _search(campaign: Campaign, options: RunOptions, allowance: Allowance) -> str:
    state = campaign.state
    experience = _experience(campaign) if options.use_experience else ()
    problem = _problem(campaign, experience)
    while True:
        num, why = allowance.num_trials(state, campaign.dispatcher.round_size(options.batch), time.time())
        if num == 0:
            return why
        number = max(state.rounds, default=0) + 1
        rng = round_rng(state, number)
        candidates: list[Candidate] = []
        if not state.rounds:  # the baseline itself is the first trial: every model starts from a fact
            configuration = campaign.project.contract.knob_set.baseline()
            candidates.append(
                Candidate(configuration=configuration, source="baseline", reason="the unmodified workload")
            )
        observations = state.observations()
        if observations and (reason := converged(problem, observations)):
            return reason
        num -= len(candidates)
        known = {c.id for c in candidates}
        candidates += [c for c in propose(problem, observations, num + 1, rng) if c.id not in known][:num]
        if not candidates:
            return "every configuration that the rules allow was tried"
        plans = search_plans(campaign, candidates, rng)
        campaign.plan("search", plans)
        campaign.finish_open_rounds()


def search_plans(campaign: Campaign, candidates: list[Candidate], rng: np.random.Generator) -> list[PlannedTrial]:
    """Search trials of candidates: each under one of the doctor's seeds, evaluated where a patch is in play."""
    seeds = sorted(int(seed) for seed in campaign.doctor.reference)
    first = sum(t.purpose == "search" for t in campaign.state.trials.values()) + 1
    return [
        PlannedTrial(
            trial=f"t{number:04d}",
            candidate=candidate,
            lengths=(campaign.project.contract.measurement.trial_steps,),
            seed=int(rng.choice(seeds)),
            evaluation_seed=campaign.doctor.evaluation_seed if candidate.patches else None,
        )
        for number, candidate in enumerate(candidates, start=first)
    ]


def _problem(campaign: Campaign, experience: tuple[Observation, ...]) -> Problem:
    return problem_of(
        campaign.project.contract,
        campaign.patches,
        _fixed(campaign.state),
        run_noise=campaign.doctor.between_run_cv,
        experience=experience,
        conflicts=conflicts(campaign.project, campaign.patches.values()),
    )


def _fixed(state: CampaignState) -> Configuration:
    return dict(state.opened.get("fixed", {})) if state.opened else {}


def _experience(campaign: Campaign) -> tuple[Observation, ...]:
    """What other campaigns measured on this kind of device with this very model and batch."""
    if campaign.store is None:
        return ()
    workload = campaign.project.contract.workload
    rows: list[Observation] = []
    for store in (campaign.store, shipped("experience_store")):
        loaded = stores.load(store, campaign.doctor.device_key, workload_kind=workload.kind)
        for skipped in loaded.skipped:
            campaign.observer.said(f"experience left out: {skipped.file}: {skipped.reason}")
        rows += stores.experience(
            loaded,
            workload_kind=workload.kind,
            shape=workload.shape.model_dump(),
            contract_sha256=campaign.project.contract.digest,
            without=campaign.state.uid,
        )
    if rows:
        campaign.observer.said(f"{len(rows)} trials of earlier campaigns on {campaign.doctor.device_key} are known")
    return tuple(rows)


def _promote(campaign: Campaign, allowance: Allowance) -> str:
    """Re-verify the best candidates, best first, until one is promoted; gives the limit that stopped it, if one did."""
    state, contract, doctor = campaign.state, campaign.project.contract, campaign.doctor
    problem = _problem(campaign, ())
    chosen = with_room(state, contract, finalists(problem, state.observations(), MAX_TRIED_FINALISTS))
    places = min(MAX_FINALISTS, len(chosen))
    places_taken = 0
    outcomes: list[PromotionResult] = []
    for finalist in chosen:
        while True:
            decision = decide_finalist(state, contract, doctor, finalist, places)
            if decision.action != "continue":
                break
            may, why = allowance.may_promote(state, time.time())
            if not may:
                return why
            number = max(state.rounds, default=0) + 1
            campaign.plan("verify", plan_block(state, contract, finalist, round_rng(state, number)))
            campaign.finish_open_rounds()
        outcomes.append(result_of(state, finalist, decision))
        campaign.observer.said(f"{finalist.id}: {decision.action}: " + "; ".join(decision.verdict.reasons))
        # one that failed before its times were ever looked at had no chance to be promoted wrongly: it takes no place
        places_taken += was_looked_at(state, finalist)
        if decision.action == "promote" or places_taken == places:
            break
    campaign.ledger.append("promoted", finalists=[o.model_dump(mode="json") for o in outcomes])
    return ""
