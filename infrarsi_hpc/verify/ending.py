"""How an attempt ended, from everything that saw it: exit codes, who stopped it, marks, losses and the log's words.

The cause counts, not what followed from it: one rank's out-of-memory before its peers' lost connections, a log's
reason before the bare signal. What nobody saw is `unknown`, never guessed.

Does not cover: what only the scheduler knows (`edges/slurm`), and whether an `ok` may be believed (`verify.checks`).
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Sequence

from infrarsi_hpc.domain.outcome import Ending, Outcome
from infrarsi_hpc.domain.trial import Run, TrialLimits, TrialResult, TrialSpec
from infrarsi_hpc.verify.log_evidence import Finding, Weight, final_error, find, usage_error
from infrarsi_hpc.verify.readings import is_complete

#: What a program raises when it does not accept its settings, as long as no forward pass has begun.
_REFUSALS = re.compile(
    r"(?:\w+\.)*(?:ValueError|AssertionError|NotImplementedError|SyntaxError|IndentationError|"
    r"ImportError|ModuleNotFoundError|SystemExit)\b"
)
_NO_LIMITS = TrialLimits(wall_seconds=math.inf, idle_seconds=math.inf)


def classify(result: TrialResult, spec: TrialSpec) -> Ending:
    """How an attempt ended, by the first of its runs that did not end well."""
    if result.problem is not None:
        return _of_problem(result)
    if not result.runs:
        return Ending(outcome=Outcome.INFRA, evidence="the agent brought no run back")
    for run in result.runs:
        ending = _of_run(run, spec)
        if ending.outcome is not Outcome.OK:
            return ending
    if len(result.runs) < len(spec.lengths):
        text = f"the agent made {len(result.runs)} of {len(spec.lengths)} runs and says nothing about the rest"
        return Ending(outcome=Outcome.INFRA, evidence=text)
    retries = [f.evidence for run in result.runs for f in find(run.log_tail) if f.outcome is Outcome.DEVICE_OOM]
    return Ending(outcome=Outcome.OK, evidence=f"recovered from: {retries[0]}" if retries else "")


def classify_log(text: str, limits: TrialLimits | None = None, peaks_gib: Sequence[float | None] = ()) -> Ending:
    """What a log alone says, without exit codes or marks; `unknown` where it says nothing.

    `limits` tells whose limit a failed allocation met, `peaks_gib` what each rank was last known to use.
    """
    findings = find(text)
    if findings and findings[0].weight is not Weight.CONSEQUENCE:
        return _of_finding(findings[0], limits or _NO_LIMITS, peaks_gib)
    if (refusal := usage_error(text)) is not None:
        return Ending(outcome=Outcome.INVALID, detail="launch", evidence=refusal)
    if (error := final_error(text)) is not None:
        return Ending(outcome=Outcome.CRASHED, evidence=error)
    if findings:
        return _of_finding(findings[0], limits or _NO_LIMITS, peaks_gib)
    return Ending(outcome=Outcome.UNKNOWN, evidence="the log says nothing about how the program ended")


# ---- before any run


def _of_problem(result: TrialResult) -> Ending:
    text = result.problem_text.strip()[:2000]
    match result.problem:
        case "patch":
            return Ending(outcome=Outcome.INVALID, detail="launch", evidence=f"a patch does not apply: {text}")
        case "locked_files_before":
            return Ending(outcome=Outcome.REFUSED, evidence=f"locked files differ before the run: {text}")
        case "locked_files_after":
            return Ending(outcome=Outcome.REFUSED, evidence=f"locked files were changed during the run: {text}")
        case "cancelled":
            return Ending(outcome=Outcome.CANCELLED, evidence=text or "cancelled")
        case "copy":
            return Ending(outcome=Outcome.INFRA, evidence=f"the code could not be copied: {text}")
        case _:
            return Ending(outcome=Outcome.INFRA, evidence=f"the agent failed: {text}")


# ---- one run


def _of_run(run: Run, spec: TrialSpec) -> Ending:
    if run.stopped == "cancelled":
        return Ending(outcome=Outcome.CANCELLED, evidence=f"stopped after {_steps(run)}")
    diverged = _diverged(run)
    if is_complete(run):
        return diverged or Ending(outcome=Outcome.OK)
    findings = find(run.log_tail)
    causes = [f for f in findings if f.weight is Weight.CAUSE]
    has_failed = any(code != 0 for code in run.exit_codes)
    if causes and (has_failed or run.stopped is not None):
        return _of_finding(causes[0], spec.limits, run.peak_gib, run)
    if diverged is not None:
        return diverged
    if run.stopped in ("wall", "idle"):
        return _of_stop(run, spec)
    if not has_failed:
        return _of_quiet_end(run)
    return _of_failure(run, findings)


def _diverged(run: Run) -> Ending | None:
    for number, step in enumerate(run.steps, start=1):
        if step.loss is not None and not math.isfinite(step.loss):
            return Ending(outcome=Outcome.DIVERGED, evidence=f"the loss of step {number} is {step.loss}")
    return None


def _of_stop(run: Run, spec: TrialSpec) -> Ending:
    if run.stopped == "wall":
        seconds = spec.limits.wall_seconds
        return Ending(
            outcome=Outcome.TIMEOUT,
            detail="limit",
            evidence=f"stopped at the limit of {seconds:g} s after {_steps(run)} (limits.wall_seconds)",
        )
    seconds = spec.limits.idle_seconds
    dead = [rank for rank, code in enumerate(run.exit_codes) if code == 0]
    waiting = f"; rank {dead[0]} had already ended" if dead and len(dead) < len(run.exit_codes) else ""
    return Ending(
        outcome=Outcome.TIMEOUT,
        detail="hang",
        evidence=f"no sign for {seconds:g} s after {_steps(run)}{waiting} (limits.idle_seconds)",
    )


def _of_quiet_end(run: Run) -> Ending:
    """Every rank says that all went well, but steps are missing."""
    if run.step_ends:
        return Ending(outcome=Outcome.CRASHED, evidence=f"ended after {_steps(run)} with exit code 0")
    seen = "a forward pass, but no optimizer step" if run.setup_seconds is not None else "no forward pass"
    return Ending(
        outcome=Outcome.CRASHED,
        evidence=f"ended with exit code 0, and {seen} was seen: the command must train a torch module with a torch "
        "optimizer in its own process for as many steps as it is told",
    )


def _of_failure(run: Run, findings: Sequence[Finding]) -> Ending:
    """A rank failed and no text names a cause with a meaning of its own."""
    rank = _root_rank(run, findings)
    code = run.exit_codes[rank]
    if 2 in run.exit_codes and (refusal := usage_error(run.log_tail)) is not None:
        return Ending(outcome=Outcome.INVALID, detail="launch", rank=run.exit_codes.index(2), evidence=refusal)
    error = final_error(run.log_tail, rank) or final_error(run.log_tail)
    if error is not None and run.setup_seconds is None and _REFUSALS.match(error):
        return Ending(outcome=Outcome.INVALID, detail="launch", rank=rank, evidence=error)
    if findings and (error is None or findings[0].weight is not Weight.CONSEQUENCE):
        first = findings[0]
        rank = first.rank if first.rank is not None else rank
        return Ending(outcome=first.outcome, detail=first.detail, rank=rank, evidence=first.evidence)
    signal_number = -code if code is not None and code < 0 else code - 128 if code is not None and code > 128 else 0
    if signal_number in (signal.SIGKILL, signal.SIGTERM) or code is None:
        name = f"signal {signal_number}" if signal_number else "an unseen end"
        text = f"rank {rank} was ended by {name} after {_steps(run)}, and nothing says by whom"
        return Ending(outcome=Outcome.UNKNOWN, rank=rank, evidence=text)
    if signal_number == signal.SIGXCPU:
        return Ending(outcome=Outcome.TIMEOUT, detail="limit", rank=rank, evidence="the CPU time limit was reached")
    how = f"signal {signal_number} ({_signal_name(signal_number)})" if signal_number else f"exit code {code}"
    text = f"rank {rank} ended with {how} after {_steps(run)}" + (f": {error}" if error else "")
    return Ending(outcome=Outcome.CRASHED, rank=rank, evidence=text)


def _root_rank(run: Run, findings: Sequence[Finding]) -> int:
    """The rank that failed first, as far as codes and words tell.

    Not one that only lost its connection to another, nor one that was ended because another had failed.
    """
    failed = [rank for rank, code in enumerate(run.exit_codes) if code != 0]
    victims = {f.rank for f in findings if f.weight is Weight.CONSEQUENCE}
    ended = {rank for rank in failed if run.exit_codes[rank] in (-signal.SIGTERM, -signal.SIGKILL, None)}
    own = [rank for rank in failed if rank not in victims and rank not in ended]
    if not own and run.stopped == "rank_died":
        own = [rank for rank in failed if rank not in ended]
    return (own or [rank for rank in failed if rank not in victims] or failed)[0]


# ---- memory


def _of_finding(
    finding: Finding, limits: TrialLimits, peaks_gib: Sequence[float | None], run: Run | None = None
) -> Ending:
    rank = finding.rank
    if rank is None and run is not None:
        failed = [index for index, code in enumerate(run.exit_codes) if code != 0]
        rank = failed[0] if len(failed) == 1 else None
    is_own_limit = limits.memory_set_by == "harness" and limits.memory_gib is not None
    if finding.is_process_memory and is_own_limit and (run is None or run.setup_seconds is not None):
        bound = _limit_bound(finding, limits, peaks_gib, rank, run)
        return Ending(outcome=Outcome.DEVICE_OOM, detail="limit", bound_gib=bound, rank=rank, evidence=finding.evidence)
    bound = _device_bound(finding, limits, peaks_gib, rank) if finding.outcome is Outcome.DEVICE_OOM else None
    return Ending(outcome=finding.outcome, detail=finding.detail, bound_gib=bound, rank=rank, evidence=finding.evidence)


def _limit_bound(
    finding: Finding, limits: TrialLimits, peaks_gib: Sequence[float | None], rank: int | None, run: Run | None
) -> float | None:
    """What a rank that met the harness's limit needed at least.

    The limit itself, and the request alone. What it held at that moment was sampled only as a maximum; during the
    first step memory has only grown, so that the maximum is what it held, and the request comes on top.
    """
    bounds = [limits.memory_gib or 0.0, finding.requested_gib or 0.0]
    held = _peak(peaks_gib, rank)
    if held is not None and finding.requested_gib is not None and (run is None or not run.step_ends):
        bounds.append(held + finding.requested_gib)
    return max(bounds)


def _device_bound(
    finding: Finding, limits: TrialLimits, peaks_gib: Sequence[float | None], rank: int | None
) -> float | None:
    """Allocated plus requested, or the cap; where the text has no numbers, the peak seen; none if nothing is known."""
    bounds = [finding.cap_gib]
    if finding.allocated_gib is not None and finding.requested_gib is not None:
        bounds.append(finding.allocated_gib + finding.requested_gib)
    if limits.memory_set_by == "harness" and finding.detail == "fraction_cap":
        bounds.append(limits.memory_gib)
    known = [bound for bound in bounds if bound is not None]
    return max(known) if known else _peak(peaks_gib, rank)


def _peak(peaks_gib: Sequence[float | None], rank: int | None) -> float | None:
    if rank is not None and rank < len(peaks_gib):
        return peaks_gib[rank]
    return max((peak for peak in peaks_gib if peak is not None), default=None)


# ---- words


def _steps(run: Run) -> str:
    return f"{len(run.step_ends)} of {run.length} steps"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unnamed"
