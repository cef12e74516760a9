"""What a machine can tell from noise, in words that say what to do: gains and the pairs of runs that they take."""

from __future__ import annotations

from infrarsi_hpc.domain.noise import DoctorReport
from infrarsi_hpc.verify.noise import resolution

#: Assumed for reports of versions that did not measure it: a pair of runs of a minute each.
_PAIR_SECONDS = 120.0


def resolution_lines(report: DoctorReport, confidence: float) -> list[str]:
    """Two lines: what an hour of pairs tells from noise, and what common gains take."""
    seconds = report.pair_seconds or _PAIR_SECONDS
    told = resolution(report.between_run_cv, seconds, confidence)
    takes = {
        gain: f"{pairs:,} pairs ({_duration(pairs * seconds)})" if pairs else "more than can be made"
        for gain, pairs in told.pairs_for
    }
    parts = [f"{gain - 1:.0%} takes {words}" for gain, words in takes.items()]
    return [
        f"in an hour, {told.pairs_an_hour} pairs of runs, a gain of {told.speedup_in_an_hour - 1:.1%} or more is told "
        "from noise here",
        "to tell a gain from noise: " + "; ".join(parts),
    ]


def _duration(seconds: float) -> str:
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
