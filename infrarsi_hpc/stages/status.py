"""Where a campaign stands, from its ledger alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

from infrarsi_hpc.domain.campaign import CampaignState


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
