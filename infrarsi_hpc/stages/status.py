"""Where a campaign stands: from its ledger alone, and with what goes on around it now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infrarsi_hpc.domain.campaign import CampaignState
from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.errors import InputRefused
from infrarsi_hpc.stages.run.activity import Activity
from infrarsi_hpc.stages.run.nodes import excluded_nodes


def status_of(state: CampaignState) -> dict[str, Any]:
    """The campaign in short, as JSON-able data."""
    final = [t for t in state.trials.values() if t.is_final and t.ending is not None]
    search = [t for t in final if t.purpose == "search"]
    best = min(
        (
            (t.reading.step_seconds, t.plan.trial)
            for t in search
            if t.reading and t.reading.step_seconds and t.verdict and t.verdict.is_believed
        ),
        default=None,
    )
    baseline = float(state.opened["doctor"]["step_seconds"]) if state.opened else None
    winner = state.promoted()
    return {
        "campaign": state.opened["campaign"] if state.opened else None,
        "is_closed": state.closed is not None,
        "closed_because": state.closed["reason"] if state.closed else None,
        "num_search_trials": len(search),
        "num_promotion_runs": len(final) - len(search),
        "num_unfinished": len(state.unfinished()),
        "outcomes": dict(Counter(t.ending.label for t in search if t.ending)),
        "refused": sum(1 for t in search if t.verdict and t.verdict.belief == "refused"),
        "baseline_step_seconds": baseline,
        "best_trial": best[1] if best else None,
        "best_step_seconds": best[0] if best else None,
        "device_hours": state.device_seconds() / 3600,
        "promoted": winner.model_dump(mode="json") if winner else None,
        "finalists": [p.model_dump(mode="json") for p in state.promotions],
    }


def activity_status(
    state: CampaignState, activity: Activity, excluded: Sequence[str] | None, now: float
) -> dict[str, Any]:
    """What goes on now, as JSON-able data beside `status_of`; `excluded` are nodes kept away from, none if unknown."""
    head = activity.head
    running = activity.running_device_seconds / 3600
    return {
        "head": {"host": head.host, "pid": head.pid} if head is not None else None,
        "is_asked_to_stop": activity.is_asked_to_stop,
        "open_jobs": [
            {
                "round": job.round,
                "kind": job.kind,
                "id": job.id or None,
                "cluster": job.cluster or None,
                "num_tasks": len(job.trials),
                "num_running": sum(task.round == job.round for task in activity.running),
                "num_waiting": sum(task.round == job.round for task in activity.waiting),
            }
            for job in activity.jobs
        ],
        "running": [
            {"trial": task.trial, "node": task.node, "seconds": round(task.seconds, 1), "is_silent": task.is_silent}
            for task in activity.running
        ],
        "excluded_nodes": list(excluded) if excluded is not None else None,
        "device_hours_running": running,
        "device_hours_with_running": state.device_seconds() / 3600 + running,
        "last_event_at": state.last_time or None,
        "last_event_age_seconds": max(0.0, now - state.last_time) if state.last_time else None,
    }


def activity_text(data: dict[str, Any]) -> str:
    """The same for people."""
    head, age = data["head"], data["last_event_age_seconds"]
    lines = [
        (f"head: process {head['pid']} on {head['host']}" if head else "no head runs it")
        + (f"; last event {_ago(age)} ago" if age is not None else "")
    ]
    if data["is_asked_to_stop"]:
        lines.append("it was asked to stop (infrarsi cancel)" + (", and does so at its next look" if head else ""))
    for job in data["open_jobs"]:
        where = f" on cluster {job['cluster']}" if job["cluster"] else ""
        name = f"{job['kind']} job {job['id']}" if job["id"] else f"{job['kind']} submission"
        lines.append(
            f"round {job['round']}: {name}{where}, {job['num_tasks']} tasks open "
            f"({job['num_running']} running, {job['num_waiting']} waiting)"
        )
    if data["device_hours_running"]:
        lines.append(f"running trials have cost {data['device_hours_running']:.3f} device-hours so far")
    if data["excluded_nodes"]:
        lines.append("excluded nodes: " + ", ".join(data["excluded_nodes"]))
    return "\n".join(lines)


def nodes_left_out(state: CampaignState, folder: Path, site: SiteProfile | None) -> tuple[str, ...] | None:
    """Nodes that the next job leaves out; none where the site is not known, or `nodes.json` cannot be used."""
    partition = site.chosen_partition() if site is not None else None
    if partition is None or state.opened is None:
        return None
    try:
        noise_cv = float(state.opened["doctor"]["between_run_cv"])
        return excluded_nodes(state, folder, noise_cv=noise_cv, shares_host=partition.shares_host)
    except (InputRefused, KeyError, TypeError, ValueError):
        return None  # `infrarsi nodes` says what is wrong


def _ago(seconds: float) -> str:
    for unit, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} seconds"


def not_begun(name: str, folder: Path, has_head: bool) -> str:
    """What to say of a campaign whose ledger is still empty: before its first trial the baseline is examined."""
    what = "its head waits for its time or examines the baseline" if has_head else "it has not begun"
    return f"campaign {name}: {what}; its log: {folder / 'head.log'}"


def status_text(summary: dict[str, Any]) -> str:
    """The same for people."""
    outcomes = ", ".join(f"{n} {label}" for label, n in summary["outcomes"].items()) or "none yet"
    lines = [
        f"campaign {summary['campaign']}: "
        + ("closed, " + summary["closed_because"] if summary["is_closed"] else "open"),
        f"search trials: {summary['num_search_trials']} ({outcomes}); refused: {summary['refused']}",
        f"promotion runs: {summary['num_promotion_runs']}; cost: {summary['device_hours']:.3f} device-hours",
    ]
    if summary["best_step_seconds"]:
        ratio = summary["baseline_step_seconds"] / summary["best_step_seconds"]
        lines.append(
            f"baseline {1000 * summary['baseline_step_seconds']:.1f} ms a step; best trial {summary['best_trial']}: "
            f"{1000 * summary['best_step_seconds']:.1f} ms ({ratio:.2f}x, not yet verified)"
        )
    for finalist in summary["finalists"]:
        speedup = finalist["speedup"]
        shown = f"{speedup['ratio']:.3f}x [{speedup['low']:.3f}, {speedup['high']:.3f}]" if speedup else "no interval"
        lines.append(f"finalist {finalist['verdict']['belief']}: {shown}: " + "; ".join(finalist["verdict"]["reasons"]))
    return "\n".join(lines)
