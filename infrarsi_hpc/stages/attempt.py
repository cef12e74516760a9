"""Try: one trial now, its evidence and its verdict: what people use to look at one idea."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infrarsi_hpc.domain.campaign import PlannedTrial
from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.diff import parse_diff
from infrarsi_hpc.domain.noise import DoctorReport
from infrarsi_hpc.domain.outcome import Ending, Outcome
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.domain.reading import Reading
from infrarsi_hpc.domain.verdict import Belief, Verdict
from infrarsi_hpc.edges import batches
from infrarsi_hpc.edges.host import num_cores
from infrarsi_hpc.edges.local import THIS_MACHINE, LocalDispatcher
from infrarsi_hpc.edges.project import CAMPAIGNS, TRY_FOLDER, Project, baseline_texts, read_patch
from infrarsi_hpc.errors import Interrupted, UsageError
from infrarsi_hpc.stages.interrupts import interruptible
from infrarsi_hpc.stages.problem import basis_of
from infrarsi_hpc.stages.run.campaign import Observer
from infrarsi_hpc.stages.run.collect import Collector, collect, own_folder
from infrarsi_hpc.stages.run.opening import ensure_doctor
from infrarsi_hpc.stages.settings import parse_settings
from infrarsi_hpc.stages.trials import spec_of
from infrarsi_hpc.verify.checks import judge
from infrarsi_hpc.verify.ending import classify
from infrarsi_hpc.verify.readings import read
from infrarsi_hpc.verify.reference import reference_of_seed
from infrarsi_hpc.verify.scope import check_scope


@dataclass(frozen=True)
class Tried:
    """What one trial showed."""

    candidate: Candidate
    patches: tuple[Patch, ...]
    ending: Ending
    reading: Reading
    verdict: Verdict
    doctor: DoctorReport
    log_excerpt: str

    def data(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "candidate": self.candidate.model_dump(mode="json"),
            "patches": [p.name for p in self.patches],
            "ending": self.ending.model_dump(mode="json"),
            "reading": self.reading.model_dump(mode="json"),
            "verdict": self.verdict.model_dump(mode="json"),
            "baseline_step_seconds": self.doctor.step_seconds,
            "baseline_peak_gib": self.doctor.peak_gib,
        }


def try_candidate(
    project: Project, settings: Sequence[str], patch_files: Sequence[Path], *, on_progress: Callable[[str], None]
) -> Tried:
    """Make one trial of these settings and patches; nothing is kept in any campaign.

    Raises
    ------
    UsageError
        A setting that the contract does not have.
    PatchError
        A file that is not a diff.
    """
    contract = project.contract
    doctor = ensure_doctor(project, Observer(said=on_progress))
    configuration = contract.knob_set.baseline() | parse_settings(contract.knobs, settings)
    broken = basis_of(contract).rules(configuration, contract.workload.shape, num_cores())
    if broken:
        raise UsageError(
            "these settings cannot run together", why="; ".join(broken), fix="change one of them with --set"
        )
    texts = baseline_texts(project) if patch_files else {}
    patches = tuple(_read(path, texts, on_progress) for path in patch_files)
    candidate = Candidate(configuration=configuration, patches=tuple(p.sha256 for p in patches), source="try")
    reasons = [f"{p.name}: {r}" for p in patches for r in check_scope(parse_diff(p.text), contract.scope)]
    if reasons:
        ending = Ending(outcome=Outcome.REFUSED, evidence="; ".join(reasons))
        verdict = Verdict(belief=Belief.REFUSED, reasons=tuple(reasons))
        return Tried(candidate, patches, ending, Reading(), verdict, doctor, "")
    plan = PlannedTrial(
        trial="y0001",
        candidate=candidate,
        lengths=(contract.measurement.trial_steps,),
        seed=int(min(doctor.reference, key=int)),
        evaluation_seed=doctor.evaluation_seed,
    )
    spec = spec_of(project, plan, "try", 1)
    home = project.root / CAMPAIGNS / TRY_FOLDER
    dispatcher = LocalDispatcher(THIS_MACHINE)
    with own_folder(home, dispatcher), interruptible():
        tasks = dispatcher.group([spec], is_one_allocation=True)
        folder = batches.write_batch(home, 1, 1, tasks, {p.sha256: p for p in patches})
        job = dispatcher.submit(folder, 1, tasks)
        try:
            taken = next(collect(Collector(home, 1, 1, job, tasks, dispatcher)))
        except KeyboardInterrupt as error:
            dispatcher.cancel(folder, job)
            raise Interrupted("the trial was stopped", why="Ctrl-C", fix="run the same command again") from error
        log = batches.log_excerpt(batches.trial_folder(home, spec.trial), 1500)
    found = taken.result
    if found is None:
        ending = taken.ending or Ending(outcome=Outcome.UNKNOWN)
        verdict = Verdict(belief=Belief.UNDECIDED, reasons=(ending.evidence,))
        return Tried(candidate, patches, ending, Reading(), verdict, doctor, log)
    reading, ending = read(found, spec), classify(found, spec)
    if ending.outcome is Outcome.OK:
        verdict = judge(found, spec, ending, reading, contract, reference_of_seed(doctor, spec.seed), patches=patches)
    else:
        belief = Belief.REFUSED if ending.outcome is Outcome.REFUSED else Belief.UNDECIDED
        verdict = Verdict(belief=belief, reasons=(ending.evidence or ending.label,))
    return Tried(candidate, patches, ending, reading, verdict, doctor, log)


def _read(path: Path, texts: dict[str, str], on_progress: Callable[[str], None]) -> Patch:
    patch, notes = read_patch(path, texts)
    for note in notes:
        on_progress(f"{path.name}: {note}")
    return patch


def attempt_text(tried: Tried) -> str:
    """For people: what ended how, the numbers beside the baseline's, the verdict with its reasons."""
    baseline = tried.doctor
    lines = [f"outcome: {tried.ending.label}" + (f" ({tried.ending.evidence})" if tried.ending.evidence else "")]
    seconds = tried.reading.step_seconds
    if seconds:
        lines.append(
            f"step time: {1000 * seconds:.1f} ms, baseline {1000 * baseline.step_seconds:.1f} ms: "
            f"{baseline.step_seconds / seconds:.2f}x in one run (between-run noise {baseline.between_run_cv:.1%})"
        )
    if tried.reading.peak_gib is not None and baseline.peak_gib is not None:
        lines.append(f"peak memory: {tried.reading.peak_gib:.3f} GiB, baseline {baseline.peak_gib:.3f} GiB")
    if tried.reading.evaluation_loss is not None and baseline.evaluation_loss is not None:
        lines.append(f"held-out loss: {tried.reading.evaluation_loss:.4f}, baseline {baseline.evaluation_loss:.4f}")
    lines.append(f"verdict: {tried.verdict.belief.value}")
    lines += [f"  {reason}" for reason in tried.verdict.reasons]
    lines += [f"  label: {label}" for label in tried.verdict.labels]
    if tried.ending.outcome is not Outcome.OK and tried.log_excerpt:
        lines += ["last lines of its log:", *("  " + line for line in tried.log_excerpt.strip().splitlines()[-8:])]
    return "\n".join(lines)
