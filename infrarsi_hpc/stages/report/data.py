"""What a report says, as plain data: the same facts for the page, the mail and `infrarsi report --json`.

Everything that a trial, a patch or a model wrote (logs, reasons, titles, diffs) is bounded and freed of control
characters here; escaping is the template's part.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from infrarsi_hpc.domain.campaign import CampaignState, PromotionResult, TrialRecord
from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.contract import Contract
from infrarsi_hpc.domain.noise import DoctorReport
from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.domain.verdict import Verdict
from infrarsi_hpc.models.owners import Standing
from infrarsi_hpc.models.prices import Interval, Price
from infrarsi_hpc.stages.report.resolution import resolution_lines

SCHEMA_VERSION = 1
MAX_TRIALS = 5000
MAX_LOG_CHARS = 4000
MAX_ALL_LOGS_CHARS = 4_000_000
MAX_TEXT_CHARS = 600
MAX_DIFF_LINES = 2000
MAX_LINE_CHARS = 400
UNFINISHED = "unfinished"

#: Terminal colours and titles; then what could hide or turn round text: controls, direction marks, line separators.
_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def clean(text: str, limit: int = MAX_TEXT_CHARS, *, keep_end: bool = False) -> str:
    """Text of unknown origin, printable and at most `limit` characters long (the beginning, or the end of a log)."""
    # cut before the costlier work: terminal codes take part of the double length
    text = text[-2 * limit :] if keep_end else text[: 2 * limit]
    text = _HIDDEN.sub("\N{REPLACEMENT CHARACTER}", _TERMINAL.sub("", text.replace("\r\n", "\n")))
    if len(text) <= limit:
        return text
    return f"… {text[-limit:]}" if keep_end else f"{text[:limit]} …"


def report_data(
    state: CampaignState,
    contract: Contract,
    doctor: DoctorReport,
    prices: Sequence[Price],
    patches: Mapping[str, Patch],
    logs: Callable[[str], str],
    *,
    owners: Sequence[Standing] = (),
    capacity_gib: float | None = None,
) -> dict[str, Any]:
    """All facts of a report. `logs` gives the log excerpt of a trial; `capacity_gib` is the device's, if known."""
    names = {sha: clean(patch.name, 100) for sha, patch in patches.items()}
    winner = state.promoted()
    data: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "campaign": clean(str(state.opened["campaign"]), 100) if state.opened else contract.name,
        "contract_name": contract.name,
        "goal": clean(contract.goal, 2000),
        "is_closed": state.closed is not None,
        "closed_because": clean(str(state.closed.get("reason", ""))) if state.closed else "",
        "cost": _cost(state, doctor),
        "winner": _finalist(state, winner, contract, names) if winner else None,
        "finalists": [_finalist(state, result, contract, names) for result in state.promotions],
        "threshold": max(contract.measurement.min_speedup, doctor.detectable_speedup),
        "trials": _trials(state, contract, names, logs),
        "num_trials_left_out": max(0, len(state.trials) - MAX_TRIALS),
        "prices": [_price(price) for price in prices],
        "owners": [{**asdict(owner), "name": clean(owner.name, 100)} for owner in owners],
        "patches": _patches(state, patches, names),
        "baseline": _baseline(state, contract, doctor, capacity_gib),
        "environment": _environment(state, contract, doctor),
        "commands": _commands(state, contract, winner, names),
        "notes": [clean(note) for note in state.notes[-50:]],
    }
    data = _without_infinities(data)
    data["headline"] = headline(data)
    return data


def headline(data: Mapping[str, Any]) -> str:
    """The verdict in one sentence: how much faster, how sure, by what, and what it cost."""
    cost = data["cost"]
    price = f"the campaign cost {cost['device_hours']:.2f} device-hours over {_counts(cost)}"
    if cost["num_failed"]:
        price += f", {cost['num_failed']} of which failed"
    prefix = "" if data["is_closed"] else "Not finished yet. "
    winner = data["winner"]
    if winner:
        s = winner["speedup"]
        sure = (
            f" ({s['ratio']:.3f}x measured, {s['low']:.3f}x to {s['high']:.3f}x with {s['confidence']:.0%} confidence)"
            if s
            else ""
        )
        ratio = f"At least {s['low']:.3f}x" if s else "Proven"
        labels = f"; note: {', '.join(winner['labels'])}" if winner["labels"] else ""
        return f"{prefix}{ratio} faster{sure} by {changes_text(winner['changes'])}{labels}; {price}."
    if not cost["num_trials"]:
        return f"{prefix}No trial was made."
    if data["finalists"]:
        num = len(data["finalists"])
        who = "the finalist was" if num == 1 else f"{num} finalists were"
        above = f"and {'it was not' if num == 1 else 'none was'} believed above {data['threshold']:.3f}x"
        return f"{prefix}No speedup was proven: {who} re-verified {above}; {price}."
    if not cost["num_measured"] and cost["num_failed"] == cost["num_trials"]:
        kinds = ", ".join(f"{n} {name}" for name, n in cost["outcomes"].items())
        return f"{prefix}Every trial failed ({kinds}), so that nothing could be measured; {price}."
    return f"{prefix}No candidate was promoted; {price}."


def _counts(cost: Mapping[str, Any]) -> str:
    searched, runs = cost["num_search_trials"], cost["num_trials"] - cost["num_search_trials"]
    return f"{searched} search trials" + (f" and {runs} promotion runs" if runs else "")


def changes_text(changes: Sequence[Mapping[str, Any]]) -> str:
    """Changes in a line of words."""
    words = [
        f"{c['name']} {c['before']} → {c['after']}" if c["kind"] == "knob" else f"patch {c['name']}" for c in changes
    ]
    return ", ".join(words) or "no change"


def _changes(candidate: Candidate, contract: Contract, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """What differs from the baseline: knobs in the contract's order, then patches."""
    baseline = contract.knob_set.baseline()
    found: list[dict[str, Any]] = [
        {"kind": "knob", "name": name, "before": value, "after": candidate.configuration[name]}
        for name, value in baseline.items()
        if name in candidate.configuration and candidate.configuration[name] != value
    ]
    return found + [{"kind": "patch", "name": names.get(sha, sha[:12]), "sha256": sha} for sha in candidate.patches]


def _outcome(trial: TrialRecord) -> str:
    """The outcome as the search takes it: a trial that ran and was not believed counts as refused."""
    if trial.ending is None or not trial.is_final:
        return UNFINISHED
    if trial.ending.outcome is Outcome.OK and not (trial.verdict and trial.verdict.is_believed):
        return Outcome.REFUSED.value
    return trial.ending.outcome.value


def _cost(state: CampaignState, doctor: DoctorReport) -> dict[str, Any]:
    trials = list(state.trials.values())
    outcomes = Counter(_outcome(t) for t in trials)
    seconds: Counter[str] = Counter()
    purposes: Counter[str] = Counter()
    for trial in trials:
        seconds[_outcome(trial)] += trial.device_seconds  # type: ignore[assignment]
        purposes[trial.purpose] += trial.device_seconds  # type: ignore[assignment]
    failed = sum(n for name, n in outcomes.items() if name not in (Outcome.OK.value, UNFINISHED))
    started = float(state.opened["time"]) if state.opened else state.last_time
    return {
        "num_trials": len(trials),
        "num_search_trials": sum(t.purpose == "search" for t in trials),
        "num_failed": failed,
        "num_measured": outcomes[Outcome.OK.value],
        "num_unfinished": outcomes[UNFINISHED],
        "outcomes": dict(outcomes.most_common()),
        "device_seconds_by_outcome": dict(seconds.most_common()),
        "device_seconds_by_purpose": dict(purposes.most_common()),
        "device_seconds": state.device_seconds(),
        "device_hours": state.device_seconds() / 3600,
        "failed_device_seconds": sum(s for name, s in seconds.items() if name not in (Outcome.OK.value, UNFINISHED)),
        "doctor_device_seconds": doctor.device_seconds,
        "wall_seconds": max(0.0, state.last_time - started),
    }


def _trials(
    state: CampaignState, contract: Contract, names: Mapping[str, str], logs: Callable[[str], str]
) -> list[dict[str, Any]]:
    left = MAX_ALL_LOGS_CHARS
    rows = []
    for order, trial in enumerate(list(state.trials.values())[:MAX_TRIALS], start=1):
        log = clean(logs(trial.plan.trial), min(MAX_LOG_CHARS, left), keep_end=True) if left > 0 else ""
        left -= len(log)
        reading, ending = trial.reading, trial.ending
        rows.append(
            {
                "order": order,
                "trial": trial.plan.trial,
                "round": trial.round,
                "purpose": trial.purpose,
                "arm": trial.plan.arm,
                "candidate": trial.plan.candidate.id,
                "changes": _changes(trial.plan.candidate, contract, names),
                "source": clean(trial.plan.candidate.source, 64),
                "why": clean(trial.plan.candidate.reason),
                "outcome": _outcome(trial),
                "ending": ending.label if ending else UNFINISHED,
                "belief": trial.verdict.belief.value if trial.verdict else "",
                **_words(trial.verdict),
                "evidence": clean(ending.evidence) if ending else "",
                "step_seconds": _finite(reading.step_seconds) if reading else None,
                "slope_seconds": _finite(reading.slope_seconds) if reading else None,
                "step_noise": _finite(reading.step_noise) if reading else None,
                "peak_gib": _finite(reading.peak_gib) if reading else None,
                "phases": dict(reading.phases) if reading and reading.phases else None,
                "bound_gib": _finite(ending.bound_gib) if ending else None,
                "attempts": trial.attempt,
                "device_seconds": trial.device_seconds,
                "log": log,
            }
        )
    return rows


def _finalist(
    state: CampaignState, result: PromotionResult, contract: Contract, names: Mapping[str, str]
) -> dict[str, Any]:
    arms: dict[int, dict[str, float]] = {}
    for trial in state.trials.values():
        plan = trial.plan
        seconds = _finite(trial.reading.slope_seconds) if trial.reading else None
        if plan.finalist == result.candidate.id and plan.pair is not None and plan.arm is not None and seconds:
            arms.setdefault(plan.pair, {})[plan.arm] = seconds
    pairs = [
        {"pair": n, **{f"{arm}_seconds": s for arm, s in both.items()}, "ratio": both["baseline"] / both["candidate"]}
        for n, both in sorted(arms.items())
        if len(both) == 2
    ]
    return {
        "candidate": result.candidate.id,
        "configuration": dict(result.candidate.configuration),
        "changes": _changes(result.candidate, contract, names),
        "source": clean(result.candidate.source, 64),
        "why": clean(result.candidate.reason),
        "speedup": result.speedup.model_dump() if result.speedup else None,
        "belief": result.verdict.belief.value,
        **_words(result.verdict),
        "baseline_seconds": result.baseline_seconds,
        "candidate_seconds": result.candidate_seconds,
        "peak_gib": _peak(state, result.candidate),
        "pairs": pairs,
    }


def _peak(state: CampaignState, candidate: Candidate) -> float | None:
    """The highest peak that any run of a candidate showed."""
    peaks = [
        t.reading.peak_gib
        for t in state.trials.values()
        if t.plan.candidate.id == candidate.id and t.reading and t.reading.peak_gib is not None
    ]
    return max(peaks, default=None)


def _words(verdict: Verdict | None) -> dict[str, list[str]]:
    if verdict is None:
        return {"reasons": [], "labels": []}
    return {
        "reasons": [clean(reason) for reason in verdict.reasons[:20]],
        "labels": [clean(label, 200) for label in verdict.labels[:20]],
    }


def _price(price: Price) -> dict[str, Any]:
    def interval(value: Interval) -> dict[str, float]:
        return {"value": value.value, "low": value.low, "high": value.high}

    if price.kind == "patch":
        label = f"{'without' if price.is_removal else 'with'} patch {clean(price.name, 100)}"
    else:
        label = f"{clean(price.name, 100)} {price.instead_of} → {price.setting}"
    return {
        "kind": price.kind,
        "label": label,
        "num_trials": price.num_trials,
        "time_factor": interval(price.time_factor),
        "memory_gib": interval(price.memory_gib),
        "believed_time_factor": interval(price.believed_time_factor),
        "believed_memory_gib": interval(price.believed_memory_gib),
    }


def _patches(state: CampaignState, patches: Mapping[str, Patch], names: Mapping[str, str]) -> list[dict[str, Any]]:
    winner = state.promoted()
    found = []
    for sha, patch in patches.items():
        trials = [t for t in state.trials.values() if sha in t.plan.candidate.patches]
        lines = [clean(line, MAX_LINE_CHARS) for line in patch.text.splitlines()[: MAX_DIFF_LINES + 1]]
        refusals = {
            clean(reason)
            for t in trials
            if _outcome(t) == Outcome.REFUSED.value and t.verdict
            for reason in t.verdict.reasons
        }
        found.append(
            {
                "sha256": sha,
                "name": names[sha],
                "title": clean(patch.title, 200),
                "paths": [clean(path, 300) for path in patch.paths[:50]],
                "lines": lines[:MAX_DIFF_LINES],
                "is_cut": len(lines) > MAX_DIFF_LINES,
                "expected_time_factor": patch.expected_time_factor,
                "expected_memory_gib": patch.expected_memory_gib,
                "trials": dict(Counter(_outcome(t) for t in trials).most_common()),
                "refusals": sorted(refusals)[:10],
                "is_promoted": winner is not None and sha in winner.candidate.patches,
            }
        )
    return found


def _baseline(
    state: CampaignState, contract: Contract, doctor: DoctorReport, capacity_gib: float | None
) -> dict[str, Any]:
    baseline = Candidate(configuration=contract.knob_set.baseline())
    runs = [
        {"trial": t.plan.trial, "step_seconds": seconds, "how": "promotion" if t.plan.arm else t.purpose}
        for t in state.trials.values()
        if t.plan.candidate.id == baseline.id and t.reading
        for seconds in [_finite(t.reading.slope_seconds) or _finite(t.reading.step_seconds)]
        if seconds
    ]
    facts = doctor.model_dump(
        include={
            "num_runs", "step_seconds", "within_run_cv", "between_run_cv", "detectable_speedup", "pairs_needed",
            "peak_gib", "memory_kind", "matmul_ceiling_flops", "mfu", "phases", "num_parameters", "evaluation_loss",
            "loss_spread_relative", "evaluation_spread_relative", "update_spread_relative", "device_seconds",
            "noise_causes",
        }
    )  # fmt: skip
    limit = contract.limits.memory_gib
    facts["resolution"] = resolution_lines(doctor, contract.measurement.confidence)
    return {**facts, "runs": runs, "capacity_gib": limit if limit is not None else capacity_gib}


def _environment(state: CampaignState, contract: Contract, doctor: DoctorReport) -> dict[str, Any]:
    shape = contract.workload.shape
    return {
        "device": contract.workload.device,
        "device_key": clean(doctor.device_key, 200),
        "node": clean(doctor.node, 200),
        "site": clean(str(state.opened.get("site", "")), 100) if state.opened else "",
        "trial_nodes": _trial_nodes(state),
        "contract_sha256": doctor.contract_sha256,
        "baseline_commit": doctor.baseline_commit,
        "seed": state.opened.get("seed") if state.opened else None,
        "versions": {clean(k, 100): clean(v, 200) for k, v in sorted(doctor.versions.items())},
        "workload_kind": contract.workload.kind,
        "command": list(contract.workload.command),
        "shape": shape.model_dump(),
        "tokens_per_step": shape.tokens_per_step,
        "flops_per_step": shape.flops_per_step,
        "editable": list(contract.scope.editable),
        "locked": list(contract.scope.locked),
        "precision_floor": contract.invariants.precision_floor,
        "tolerances": contract.tolerances.model_dump(),
        "knobs": {name: {"values": list(k.values), "baseline": k.baseline} for name, k in contract.knobs.items()},
    }


def _trial_nodes(state: CampaignState) -> list[str]:
    """Nodes that trials ran on, those with the most trials first."""
    counts = Counter(node for visit in state.visits for node in visit.node.split(",") if node)
    return [clean(node, 100) for node, _ in counts.most_common(20)]


def _commands(
    state: CampaignState, contract: Contract, winner: PromotionResult | None, names: Mapping[str, str]
) -> dict[str, str]:
    """What to type next, in the project's folder."""
    named = state.opened["campaign"] if state.opened else contract.name
    campaign = "" if named == contract.name else f" --campaign {clean(str(named), 100)}"
    found = {"this report again": f"infrarsi report{campaign}"}
    if winner is not None:
        words = ["infrarsi try"]
        baseline = contract.knob_set.baseline()
        words += [f"--set {k}={v}" for k, v in winner.candidate.configuration.items() if baseline.get(k) != v]
        folder = contract.scope.patches or "patches"
        words += [f"--patch {folder}/{names.get(sha, sha[:12])}.diff" for sha in winner.candidate.patches]
        found["measure the winner once more"] = " ".join(words)
        found["audit it and commit it"] = f"infrarsi apply{campaign}"
        found["undo that commit"] = f"infrarsi apply{campaign} --revert"
    elif state.closed is None:
        found["go on with it"] = f"infrarsi run{campaign}"
    else:
        found["search on under another name"] = f"infrarsi run --campaign {contract.name}-2"
    found["what each setting costs"] = f"infrarsi prices{campaign}"
    return found


def _without_infinities(value: Any) -> Any:
    """The same data with none in place of NaN and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _without_infinities(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinities(item) for item in value]
    return _finite(value) if isinstance(value, float) else value


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
