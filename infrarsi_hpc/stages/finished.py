"""A campaign read back from its ledger: what report, prices and apply start from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from infrarsi_hpc.domain.campaign import CampaignState
from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.contract import Contract
from infrarsi_hpc.domain.noise import DoctorReport
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.edges.archive import log_reader
from infrarsi_hpc.edges.atomic import write_text
from infrarsi_hpc.edges.ledger import load_state
from infrarsi_hpc.edges.project import campaign_ledger, open_project
from infrarsi_hpc.errors import LedgerError
from infrarsi_hpc.models.owners import Standing
from infrarsi_hpc.models.prices import Price, prices, standings
from infrarsi_hpc.stages.apply import commit as applying
from infrarsi_hpc.stages.apply.commit import ApplyReport
from infrarsi_hpc.stages.problem import problem_of
from infrarsi_hpc.stages.report.page import ReportFiles, render_report
from infrarsi_hpc.stages.run.kept_owners import read_owners


@dataclass(frozen=True)
class Finished:
    """A campaign's state with what it was opened under."""

    name: str
    folder: Path
    state: CampaignState
    contract: Contract
    doctor: DoctorReport
    patches: dict[str, Patch]

    @property
    def incumbent(self) -> Candidate:
        """The winner, or the best believed measurement, or the baseline."""
        promoted = self.state.promoted()
        if promoted is not None:
            return promoted.candidate
        measured = [
            (t.reading.step_seconds, t.plan.candidate)
            for t in self.state.trials.values()
            if t.purpose == "search" and t.reading and t.reading.step_seconds and t.verdict and t.verdict.is_believed
        ]
        if measured:
            return min(measured, key=lambda pair: pair[0])[1]
        return Candidate(configuration=self.contract.knob_set.baseline(), source="baseline")


def read_campaign(root: Path, contract_file: str, name: str | None) -> Finished:
    """Read a campaign's ledger; the project itself may have moved on since.

    Raises
    ------
    SiteError
        There is no such campaign.
    LedgerError
        Its ledger has no opening event that can be read.
    """
    path = campaign_ledger(root, contract_file, name)
    state = load_state(path)
    if state.opened is None:
        raise LedgerError(f"{path} has no events", why="the campaign was never opened", fix="infrarsi run")
    try:
        contract = Contract.model_validate(state.opened["contract"])
        doctor = DoctorReport.model_validate(state.opened["doctor"])
        patches = [Patch.model_validate(p) for p in state.opened["patches"]]
    except (KeyError, ValueError) as error:
        raise LedgerError(
            f"{path} has an opening event that cannot be read",
            why=str(error).splitlines()[0],
            fix="if it was edited by hand, restore it from a backup",
        ) from error
    return Finished(path.parent.name, path.parent, state, contract, doctor, {p.sha256: p for p in patches})


@dataclass(frozen=True)
class Priced:
    """Prices, and whose beliefs they rest on."""

    prices: list[Price] = field(default_factory=list)
    owners: list[Standing] = field(default_factory=list)


def prices_of(finished: Finished) -> Priced:
    """Every setting's and patch's price against the best there is; none before the first measurement."""
    fixed = dict(finished.state.opened.get("fixed", {})) if finished.state.opened else {}
    problem = problem_of(
        finished.contract,
        finished.patches,
        fixed,
        run_noise=finished.doctor.between_run_cv,
        owners=read_owners(finished.folder) or (),
    )
    observations = finished.state.observations()
    if not observations:
        return Priced()
    return Priced(prices(problem, observations, finished.incumbent), standings(problem, observations))


@dataclass(frozen=True)
class Written:
    """A report on disk."""

    files: ReportFiles
    html_path: Path
    markdown_path: Path


def write_report(root: Path, contract_file: str, name: str | None) -> Written:
    """Write `report.html` and `report.md` into the campaign's folder."""
    finished = read_campaign(root, contract_file, name)
    priced = prices_of(finished)
    files = render_report(
        finished.state,
        finished.contract,
        finished.doctor,
        priced.prices,
        finished.patches,
        log_reader(finished.folder),
        owners=priced.owners,
    )
    html, markdown = finished.folder / "report.html", finished.folder / "report.md"
    write_text(html, files.html)
    write_text(markdown, files.markdown)
    return Written(files, html, markdown)


def apply_campaign(root: Path, contract_file: str, name: str | None, confirm: Callable[[str], bool]) -> ApplyReport:
    """Audit and commit a campaign's winner."""
    finished = read_campaign(root, contract_file, name)
    project = open_project(root, contract_file)
    return applying.apply(
        root,
        finished.state,
        project.contract,
        project.lock,
        finished.patches,
        campaign=finished.name,
        confirm=confirm,
        contract_file=contract_file,
    )


def revert_campaign(root: Path, contract_file: str, name: str | None) -> ApplyReport:
    """Undo an earlier apply."""
    return applying.revert(root, campaign=campaign_ledger(root, contract_file, name).parent.name)
