"""Opening a campaign: a new one or one to go on with, its lock held from the first moment, its baseline examined."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from infrarsi_hpc.domain.campaign import CampaignState
from infrarsi_hpc.domain.knobs import Configuration
from infrarsi_hpc.domain.noise import DoctorReport
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.edges import archive
from infrarsi_hpc.edges.dispatch import Dispatcher, PausingDispatcher
from infrarsi_hpc.edges.host import device_key
from infrarsi_hpc.edges.ledger import Ledger
from infrarsi_hpc.edges.local import THIS_MACHINE
from infrarsi_hpc.edges.project import KEPT_NAMES, Project, patch_library
from infrarsi_hpc.edges.store import folder as stores
from infrarsi_hpc.errors import ContractError, UsageError
from infrarsi_hpc.stages.doctor import examine
from infrarsi_hpc.stages.run.activity import stop_file
from infrarsi_hpc.stages.run.campaign import Campaign, Observer
from infrarsi_hpc.stages.run.dispatchers import dispatcher_for
from infrarsi_hpc.stages.run.nodes import excluded_nodes

#: Trials of a round; a round's results are in before the next one is chosen.
BATCH = 4
#: A head that waits for its time to start looks so often whether it was asked to stop.
START_CHECK_SECONDS = 5.0
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


class StopAsked(KeyboardInterrupt):
    """Somebody left a stop file."""


def known_doctor(project: Project, site: SiteProfile) -> DoctorReport | None:
    """The doctor's report of this machine or of the site's partition, if there is one."""
    if site.scheduler.kind == "slurm":
        from infrarsi_hpc.stages.on_node import place_of

        return project.doctor(place_of(site))
    return project.doctor()


def ensure_doctor(
    project: Project,
    observer: Observer,
    site: SiteProfile = THIS_MACHINE,
    on_poll: Callable[[], None] = lambda: None,
) -> DoctorReport:
    """The doctor's report; made now, on a node of the site's, if there is none for this contract.

    `on_poll` is called while it is waited for; what it raises ends the waiting.
    """
    if site.scheduler.kind == "slurm":
        from infrarsi_hpc.stages.on_node import examine_on_node

        report = known_doctor(project, site)
        if report is None:
            observer.said("no doctor's report for this contract yet: examining the baseline on a node first")
            report = examine_on_node(project, site, said=observer.said, on_poll=on_poll)
        return report
    report = project.doctor()
    if report is not None and report.device_key != str(device_key(project.contract.workload.device)):
        observer.said(f"the doctor's report is of another device ({report.device_key})")
        report = None
    if report is None:
        observer.said("no doctor's report for this contract and device yet: examining the baseline first")
        report = examine(project, on_progress=observer.said, on_poll=on_poll)
    return report


@contextmanager
def open_campaign(project: Project, options: RunOptions, observer: Observer) -> Iterator[Campaign]:
    """Open a campaign, a new one or one to go on with; where the baseline was not examined yet, that comes first.

    Raises
    ------
    ContractError
        The campaign was begun under another contract.
    SiteError
        Another head runs it.
    Interrupted
        It was asked to stop while the baseline was examined.
    """
    name = campaign_name(project, options.campaign)
    with Ledger(project.campaign_folder(name) / "ledger.jsonl") as ledger:
        stop = stop_file(project.campaign_folder(name))
        stop.unlink(missing_ok=True)

        def check() -> None:
            ledger.keep_alive()
            if stop.exists():
                raise StopAsked

        _await_start(options.start_at or 0.0, observer, check)
        doctor = ensure_doctor(project, observer, options.site, check)
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
                site=options.site.name,
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


def _await_start(at: float, observer: Observer, check: Callable[[], None]) -> None:
    """Wait until `at`, Unix seconds; what `check` raises ends it."""
    if at > time.time():
        observer.said("waiting until " + time.strftime("%Y-%m-%d %H:%M", time.localtime(at)))
    while (left := at - time.time()) > 0:
        check()
        time.sleep(min(left, START_CHECK_SECONDS))
