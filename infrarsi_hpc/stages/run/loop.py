"""Run: rounds of trials until the budget, the deadline or convergence; then promotion of the best."""

from __future__ import annotations

import time

import numpy as np

from infrarsi_hpc.domain.campaign import CampaignState, PlannedTrial, PromotionResult
from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.knobs import Configuration
from infrarsi_hpc.edges.ledger import load_state
from infrarsi_hpc.edges.numeric import use_one_thread
from infrarsi_hpc.edges.project import Project, conflicts
from infrarsi_hpc.edges.shipped import shipped
from infrarsi_hpc.errors import Interrupted
from infrarsi_hpc.models.owners import Owner
from infrarsi_hpc.search.convergence import converged
from infrarsi_hpc.search.finalists import finalists
from infrarsi_hpc.search.propose import Problem, propose
from infrarsi_hpc.search.space import Space
from infrarsi_hpc.stages.experience import contract_owners
from infrarsi_hpc.stages.interrupts import HandOver, interruptible
from infrarsi_hpc.stages.problem import problem_of
from infrarsi_hpc.stages.run.activity import stop_file
from infrarsi_hpc.stages.run.allowance import Allowance
from infrarsi_hpc.stages.run.campaign import Campaign, Observer, Waiting
from infrarsi_hpc.stages.run.kept_owners import read_owners, write_owners
from infrarsi_hpc.stages.run.opening import RunOptions, StopAsked, campaign_name, open_campaign
from infrarsi_hpc.stages.run.promotion import (
    decide_finalist,
    finalists_of,
    may_narrow,
    plan_block,
    result_of,
    was_looked_at,
    with_room,
)
from infrarsi_hpc.verify.promotion import Decision

#: Finalists whose times are compared with the baseline's, at most: what the promotion's confidence is shared by.
MAX_FINALISTS = 3
#: Candidates that get as far as a promotion run, those included that fail in their first ones.
MAX_TRIED_FINALISTS = 6


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
    name = campaign_name(project, options.campaign)
    folder = project.campaign_folder(name)
    with interruptible():
        if options.is_one_tick and (options.start_at or 0.0) > time.time():
            return CampaignState()
        if options.is_one_tick and stop_file(folder).exists():
            observer.said("it was asked to stop (infrarsi cancel); `infrarsi run` without --once goes on with it")
            return load_state(folder / "ledger.jsonl")
        try:
            with open_campaign(project, options, observer) as campaign:
                _run_or_stop(campaign, options)
                return campaign.state
        except HandOver as error:
            raise Interrupted(
                f"the head of campaign {name} hands over; its trials go on",
                why="SIGUSR1: its own time is nearly up",
                fix="the same command goes on where it stopped",
            ) from error
        except KeyboardInterrupt as error:
            raise Interrupted(
                f"campaign {name} was stopped before it had begun", fix="the same command begins it"
            ) from error


def _run_or_stop(campaign: Campaign, options: RunOptions) -> None:
    observer = campaign.observer
    try:
        _run(campaign, options)
    except Waiting as waiting:
        observer.said(f"campaign {campaign.name}: {waiting}; call again to go on")
    except Spent as spent:
        campaign.cancel_running()
        observer.said(f"stopped: {spent}; the same command with a larger limit goes on")
    except KeyboardInterrupt as error:
        campaign.cancel_running()
        raise Interrupted(
            f"campaign {campaign.name} was stopped; nothing that finished is lost",
            why="`infrarsi cancel`" if isinstance(error, StopAsked) else "Ctrl-C or SIGTERM",
            fix="the same command goes on where it stopped",
        ) from error


class Spent(Exception):
    """A limit is reached while trials run."""


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
    if (
        not state.rounds
        and (least := campaign.doctor.detectable_speedup) > campaign.project.contract.measurement.min_speedup
    ):
        campaign.observer.said(
            f"runs of the baseline differ by {campaign.doctor.between_run_cv:.1%} here: "
            f"only speedups above about {least:.2f}x can be verified"
        )
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
    problem = _problem(campaign, _experience(campaign) if options.use_experience else ())
    space = Space(problem)
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
        candidates += [c for c in propose(problem, observations, num + 1, rng, space) if c.id not in known][:num]
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


def _problem(campaign: Campaign, owners: tuple[Owner, ...]) -> Problem:
    return problem_of(
        campaign.project.contract,
        campaign.patches,
        _fixed(campaign.state),
        run_noise=campaign.doctor.between_run_cv,
        owners=owners,
        conflicts=conflicts(campaign.project, campaign.patches.values()),
    )


def _fixed(state: CampaignState) -> Configuration:
    return dict(state.opened.get("fixed", {})) if state.opened else {}


def _experience(campaign: Campaign) -> tuple[Owner, ...]:
    """What other campaigns on this kind of device believed when this one began, one owner a family of them."""
    if campaign.store is None:
        return ()
    if (kept := read_owners(campaign.folder)) is not None:
        return kept
    workload = campaign.project.contract.workload
    owners = contract_owners(
        [("your store", campaign.store), ("the shipped store", shipped("experience_store"))],
        campaign.doctor.device_key,
        workload.kind,
        workload.device,
        workload.shape,
        campaign.project.contract.knob_set.baseline(),
        without=campaign.state.uid,
        said=campaign.observer.said,
    )
    for owner in owners:
        campaign.observer.said(f"experience: {owner.name}, {owner.num_trials} trials on {campaign.doctor.device_key}")
    write_owners(campaign.folder, owners)
    return owners


def _promote(campaign: Campaign, allowance: Allowance) -> str:
    """Re-verify the best candidates, best first, until one is promoted; gives the limit that stopped it, if one did."""
    state, contract, doctor = campaign.state, campaign.project.contract, campaign.doctor
    problem = _problem(campaign, ())
    chosen = with_room(state, contract, finalists(problem, state.observations(), MAX_TRIED_FINALISTS))
    places = min(MAX_FINALISTS, len(chosen))
    places_taken = 0
    outcomes: list[PromotionResult] = []
    for finalist in chosen:
        proven: Decision | None = None
        while True:
            decision = decide_finalist(state, contract, doctor, finalist, places)
            if may_narrow(state, contract, finalist, decision) and allowance.may_narrow(state, time.time()):
                proven = decision
            elif decision.action != "continue":
                break
            else:
                proven = None
                may, why = allowance.may_promote(state, time.time())
                if not may:
                    return why
            number = max(state.rounds, default=0) + 1
            campaign.plan("verify", plan_block(state, contract, finalist, round_rng(state, number)))
            try:
                campaign.finish_open_rounds()
            except Spent:
                if proven is None:
                    raise
                campaign.cancel_running()
                decision = proven
                break
        outcomes.append(result_of(state, finalist, decision))
        campaign.observer.said(f"{finalist.id}: {decision.action}: " + "; ".join(decision.verdict.reasons))
        # one that failed before its times were ever looked at had no chance to be promoted wrongly: it takes no place
        places_taken += was_looked_at(state, finalist)
        if decision.action == "promote" or places_taken == places:
            break
    campaign.ledger.append("promoted", finalists=[o.model_dump(mode="json") for o in outcomes])
    return ""
