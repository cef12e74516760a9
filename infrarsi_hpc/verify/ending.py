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

from infrarsi_hpc.domain.outcome import TAINTED, Ending, Outcome
from infrarsi_hpc.domain.trial import Run, TrialLimits, TrialResult, TrialSpec
from infrarsi_hpc.verify.log_evidence import Finding, LogEvidence, Weight, read_log
from infrarsi_hpc.verify.readings import is_complete

#: What a program raises when it does not accept its settings, as long as no forward pass has begun.
_REFUSALS = re.compile(
    r"(?:\w+\.)*(?:ValueError|AssertionError|NotImplementedError|SyntaxError|IndentationError|"
    r"ImportError|ModuleNotFoundError|SystemExit)\b"
)
#: Of these a log alone says that the program has not begun: it could not even be loaded.
_UNLOADED = re.compile(r"(?:ImportError|ModuleNotFoundError)\b")
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
    logs = [read_log(run.log_tail) for run in result.runs]
    retries = [f.evidence for log in logs for f in (*log.findings, *log.handled) if f.outcome is Outcome.DEVICE_OOM]
    warnings = [_near_host_limit(log) for log in logs if log.warnings]
    said = [f"recovered from: {retries[0]}"] if retries else []
    if (kills := sum(run.host_oom_kills for run in result.runs)) > 0:
        num = f"{kills} process{'es' if kills > 1 else ''}"
        said.insert(
            0, f"{TAINTED}all ranks came to their end, and {num} beside them had been killed for the host's memory"
        )
    return Ending(outcome=Outcome.OK, evidence="; ".join([*said, *warnings[:1]]))


def classify_log(text: str, limits: TrialLimits | None = None, peaks_gib: Sequence[float | None] = ()) -> Ending:
    """What a log alone says, without exit codes or marks; `unknown` where it says nothing.

    `limits` tells whose limit a failed allocation met, `peaks_gib` what each rank was last known to use; without them
    the peak that the program itself has logged stands in.
    """
    log = read_log(text)
    first = log.findings[0] if log.findings else None
    ending = Ending(outcome=Outcome.UNKNOWN, evidence="the log says nothing about how the program ended")
    if first is not None and first.weight < Weight.CONSEQUENCE:
        ending = _of_finding(first, limits or _NO_LIMITS, peaks_gib, first.rank, log)
    elif log.usage is not None:
        ending = Ending(outcome=Outcome.INVALID, detail="launch", evidence=log.usage)
    elif (error := log.final_error()) is not None:
        rank, evidence = error
        # a missing module or library is no fact about the node: the next attempt would find it missing too
        if _UNLOADED.match(evidence):
            ending = Ending(outcome=Outcome.INVALID, detail="launch", rank=rank, evidence=evidence)
        else:
            ending = Ending(outcome=Outcome.CRASHED, rank=rank, evidence=evidence)
    elif first is not None:
        ending = Ending(outcome=first.outcome, detail=first.detail, rank=first.rank, evidence=first.evidence)
    if ending.outcome is Outcome.UNKNOWN and first is None and log.warnings:
        ending = ending.model_copy(update={"evidence": _near_host_limit(log)})
    if ending.rank is None and ending.outcome in (Outcome.DEVICE_OOM, Outcome.CRASHED, Outcome.DIVERGED):
        ending = ending.model_copy(update={"rank": log.root_rank})
    return ending


def _near_host_limit(log: LogEvidence) -> str:
    """The page cache counts against a step's memory too, and is given back when it is asked for."""
    return f"near the limit on the host's memory, a warning and no ending: {log.warnings[0]}"


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
    if run.stopped == "memory":
        return _of_memory(run, spec.limits)
    if is_complete(run):
        if run.survivors:
            return _of_survivors(run)
        return diverged or Ending(outcome=Outcome.OK)
    log = read_log(run.log_tail)
    causes = [f for f in log.findings if f.weight is Weight.CAUSE]
    has_failed = any(code != 0 for code in run.exit_codes)
    if causes and (has_failed or run.stopped is not None):
        rank = causes[0].rank
        if rank is None:
            failed = [index for index, code in enumerate(run.exit_codes) if code != 0]
            rank = failed[0] if len(failed) == 1 else None
        return _of_finding(causes[0], spec.limits, run.peak_gib, rank, log, run).model_copy(update={"rank": rank})
    if diverged is not None:
        return diverged
    if run.stopped == "suspended":
        text = f"the job was suspended, or its machine stood still, after {_steps(run)}: its times say nothing"
        return Ending(outcome=Outcome.INFRA, evidence=text)
    if run.stopped in ("wall", "idle"):
        return _of_stop(run, spec)
    if not has_failed:
        return _of_quiet_end(run)
    return _of_failure(run, log)


def _of_memory(run: Run, limits: TrialLimits) -> Ending:
    """Stopped by the agent: more than the limit, counting what the kernel's own limit on a process passes by."""
    peaks = [peak or 0.0 for peak in run.peak_gib] or [0.0]
    limit = limits.memory_gib or 0.0
    text = f"used {max(peaks):.3f} GiB with its shared memory, files in memory and children; the limit is {limit:g} GiB"
    bound = max(limit, *peaks)
    return Ending(
        outcome=Outcome.DEVICE_OOM, detail="limit", bound_gib=bound, rank=peaks.index(max(peaks)), evidence=text
    )


def _of_survivors(run: Run) -> Ending:
    """What a program leaves running slows whatever is measured next, its own baseline included."""
    num = len(run.survivors)
    text = f"{num} process{'es' if num > 1 else ''} outlived the program and had to be ended: " + "; ".join(
        run.survivors
    )
    return Ending(outcome=Outcome.REFUSED, evidence=text[:1000])


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


def _of_failure(run: Run, log: LogEvidence) -> Ending:
    """A rank failed and no text names a cause with a meaning of its own."""
    findings = log.findings
    rank = _root_rank(run, findings)
    code = run.exit_codes[rank]
    if 2 in run.exit_codes and log.usage is not None:
        return Ending(outcome=Outcome.INVALID, detail="launch", rank=run.exit_codes.index(2), evidence=log.usage)
    last = log.final_error(rank) or log.final_error()
    error = last[1] if last else None
    if error is not None and run.setup_seconds is None and _REFUSALS.match(error):
        return Ending(outcome=Outcome.INVALID, detail="launch", rank=rank, evidence=error)
    if findings and (error is None or findings[0].weight < Weight.CONSEQUENCE):
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
    victims = {f.rank for f in findings if f.weight >= Weight.CONSEQUENCE}
    ended = {rank for rank in failed if run.exit_codes[rank] in (-signal.SIGTERM, -signal.SIGKILL, None)}
    own = [rank for rank in failed if rank not in victims and rank not in ended]
    if not own and run.stopped == "rank_died":
        own = [rank for rank in failed if rank not in ended]
    return (own or [rank for rank in failed if rank not in victims] or failed)[0]


# ---- memory


def _of_finding(
    finding: Finding,
    limits: TrialLimits,
    peaks_gib: Sequence[float | None],
    rank: int | None,
    log: LogEvidence,
    run: Run | None = None,
) -> Ending:
    """The ending that a finding stands for. `rank`: whose peak counts, if it is known."""
    outcome, detail, bound = finding.outcome, finding.detail, None
    is_own_limit = limits.memory_set_by == "harness" and limits.memory_gib is not None
    if finding.is_process_memory and is_own_limit and (run is None or run.setup_seconds is not None):
        outcome, detail = Outcome.DEVICE_OOM, "limit"
        bound = _limit_bound(finding, limits, peaks_gib, rank, run)
    elif outcome is Outcome.DEVICE_OOM:
        bound = _device_bound(finding, log, peaks_gib, rank)
    return Ending(outcome=outcome, detail=detail, bound_gib=bound, rank=finding.rank, evidence=finding.evidence)


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
    finding: Finding, log: LogEvidence, peaks_gib: Sequence[float | None], rank: int | None
) -> float | None:
    """The cap, or allocated plus requested; where the text has no numbers, the peak seen; none if nothing is known.

    Memory that is reserved and not allocated is no need. Where several ranks ran out, the greatest need counts.
    """
    if finding.cap_gib is not None:
        return finding.cap_gib
    needs = [
        f.allocated_gib + f.requested_gib
        for f in log.findings
        if f.outcome is Outcome.DEVICE_OOM
        and f.cap_gib is None
        and f.allocated_gib is not None
        and f.requested_gib is not None
    ]
    if needs:
        return max(needs)
    peak = _peak(peaks_gib, rank)
    known = (finding.requested_gib, log.own_peak_gib(rank) if peak is None else peak)
    return max((gib for gib in known if gib is not None), default=None)


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
