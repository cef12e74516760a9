"""A report's plots as plotly figures, in plain data: plotly.js draws them in the reader's browser.

Colours are told apart by colour-blind readers too (Okabe and Ito), and every outcome has a marker of its own. Text that
comes from trials is escaped, since plotly reads a few HTML tags in labels.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.stages.report.data import UNFINISHED, changes_text

Figure = dict[str, Any]

_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#6b6b6b"
_MARKERS: dict[str, tuple[str, str]] = {
    Outcome.OK.value: (_BLUE, "circle"),
    Outcome.DEVICE_OOM.value: (_ORANGE, "triangle-right"),
    Outcome.HOST_OOM.value: ("#E69F00", "triangle-left"),
    Outcome.TIMEOUT.value: ("#CC79A7", "hourglass"),
    Outcome.INVALID.value: ("#56B4E9", "square"),
    Outcome.CRASHED.value: ("#000000", "x"),
    Outcome.DIVERGED.value: ("#8a5a00", "diamond"),
    Outcome.REFUSED.value: ("#a40000", "octagon"),
    Outcome.INFRA.value: (_GREY, "cross"),
    Outcome.CANCELLED.value: (_GREY, "line-ew-open"),
    Outcome.UNKNOWN.value: (_GREY, "star"),
    UNFINISHED: (_GREY, "circle-open"),
}


def figures(data: Mapping[str, Any]) -> dict[str, Figure]:
    """The plots that there is something to show in, by the name that the page knows them by."""
    made = {
        "progress": progress(data),
        "memory": memory(data),
        "prices": prices(data),
        "noise": noise(data),
        "verification": verification(data),
        "phases": phases(data),
    }
    return {name: figure for name, figure in made.items() if figure is not None}


def progress(data: Mapping[str, Any]) -> Figure | None:
    """Step time over trials with the best so far; below it, the trials that gave none, by outcome."""
    trials = [t for t in data["trials"] if t["purpose"] != "verify"]
    if not trials:
        return None
    traces = [*_points(trials, "order", "step_seconds")]
    best, xs, ys = None, [], []
    for t in trials:
        if t["outcome"] == Outcome.OK.value and t["step_seconds"] is not None:
            best = t["step_seconds"] if best is None else min(best, t["step_seconds"])
            xs.append(t["order"])
            ys.append(best)
    if xs:
        line = {"shape": "hv", "color": _GREEN, "width": 2}
        traces.insert(0, {"x": xs, "y": ys, "mode": "lines", "name": "best so far", "line": line, "hoverinfo": "skip"})
    traces += _strip(trials, "order")
    layout = _layout("trial, in the order planned", "step time (s)", has_strip=True)
    layout["shapes"] = [_line("y", data["baseline"]["step_seconds"])]
    layout["annotations"] = [_note("baseline", x=1, y=data["baseline"]["step_seconds"], xref="paper")]
    return {"data": traces, "layout": layout}


def memory(data: Mapping[str, Any]) -> Figure | None:
    """Step time against peak memory; trials out of memory stand at their bound, for "at least that much"."""
    trials = data["trials"]
    shown = [t for t in trials if t["peak_gib"] is not None and t["step_seconds"] is not None]
    bounded = [t for t in trials if t["outcome"] == Outcome.DEVICE_OOM.value and t["bound_gib"] is not None]
    if not shown and not bounded:
        return None
    layout = _layout("peak memory per device (GiB)", "step time (s)", has_strip=True)
    capacity = data["baseline"]["capacity_gib"]
    if capacity is not None:
        layout["shapes"] = [_line("x", capacity)]
        layout["annotations"] = [_note(f"limit {capacity:g} GiB ", x=capacity, y=0.92, yref="paper")]
    return {"data": [*_points(shown, "peak_gib", "step_seconds"), *_strip(bounded, "bound_gib")], "layout": layout}


def prices(data: Mapping[str, Any]) -> Figure | None:
    """What each change does to step time and memory: measured with intervals, and what was believed before."""
    rows = [row for row in data["prices"] if not any(None in v.values() for v in row.values() if isinstance(v, dict))]
    if not rows:
        return None
    labels = [_plain(row["label"]) for row in rows]
    traces = []
    for axis, measured, believed in (
        ("", "time_factor", "believed_time_factor"),
        ("2", "memory_gib", "believed_memory_gib"),
    ):
        for key, name, colour, symbol in (
            (believed, "believed before", _GREY, "circle-open"),
            (measured, "measured", _BLUE, "circle"),
        ):
            values = [row[key] for row in rows]
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": name,
                    "legendgroup": name,
                    "showlegend": not axis,
                    "x": [v["value"] for v in values],
                    "y": labels,
                    "xaxis": f"x{axis}",
                    "marker": {"color": colour, "symbol": symbol, "size": 8},
                    "error_x": {
                        "type": "data",
                        "symmetric": False,
                        "array": [v["high"] - v["value"] for v in values],
                        "arrayminus": [v["value"] - v["low"] for v in values],
                        "color": colour,
                        "thickness": 1.5,
                    },
                }
            )
    layout = _layout("step-time factor (below 1: faster)", "", height=160 + 26 * len(rows))
    layout["xaxis"]["domain"] = [0, 0.48]
    layout["xaxis2"] = {**layout["xaxis"], "domain": [0.54, 1], "title": {"text": "change of peak memory (GiB)"}}
    layout["yaxis"].update({"autorange": "reversed", "automargin": True})
    layout["shapes"] = [_line("x", 1.0), {**_line("x", 0.0), "xref": "x2"}]
    return {"data": traces, "layout": layout}


def noise(data: Mapping[str, Any]) -> Figure | None:
    """Every run of the unmodified baseline in this campaign, against what the doctor measured."""
    baseline = data["baseline"]
    runs = baseline["runs"]
    if not runs:
        return None
    middle, spread = baseline["step_seconds"], baseline["between_run_cv"]
    layout = _layout("run of the baseline, in order", "step time (s)", height=300)
    layout["shapes"] = [
        {
            "type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": middle * (1 - 2 * spread), "layer": "below",
            "y1": middle * (1 + 2 * spread), "fillcolor": _BLUE, "opacity": 0.12, "line": {"width": 0},
        },
        _line("y", middle),
    ]  # fmt: skip
    layout["annotations"] = [_note("doctor's median and two deviations", x=1, y=middle, xref="paper")]
    how = sorted({run["how"] for run in runs})
    traces = []
    for name in how:
        rows = [(i, run) for i, run in enumerate(runs, start=1) if run["how"] == name]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": _plain(name),
                "x": [i for i, _ in rows],
                "y": [run["step_seconds"] for _, run in rows],
                "text": [_plain(run["trial"]) for _, run in rows],
                "hovertemplate": "%{text}: %{y:.4g} s<extra></extra>",
                "marker": {"size": 9, "symbol": ("circle", "diamond", "square")[how.index(name) % 3]},
            }
        )
    return {"data": traces, "layout": layout}


def verification(data: Mapping[str, Any]) -> Figure | None:
    """Speedup of every pair of runs, and the interval that decides, one line a finalist."""
    finalists = [f for f in data["finalists"] if f["pairs"] or f["speedup"]]
    if not finalists:
        return None
    traces: list[dict[str, Any]] = []
    labels = [f"{f['candidate']} ({f['belief']})" for f in finalists]
    for label, finalist in zip(labels, finalists, strict=True):
        pairs, speedup, is_first = finalist["pairs"], finalist["speedup"], finalist is finalists[0]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "one pair of runs",
                "legendgroup": "pair",
                "showlegend": is_first,
                "x": [pair["ratio"] for pair in pairs],
                "y": [label] * len(pairs),
                "text": [f"pair {pair['pair']}" for pair in pairs],
                "hovertemplate": "%{text}: %{x:.4f}x<extra></extra>",
                "marker": {"color": _GREY, "symbol": "line-ns-open", "size": 12},
            }
        )
        if speedup:
            colour = _GREEN if finalist["belief"] == "believed" else _ORANGE
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": "speedup and its interval",
                    "legendgroup": "interval",
                    "showlegend": is_first,
                    "x": [speedup["ratio"]],
                    "y": [label],
                    "marker": {"color": colour, "symbol": "diamond", "size": 11},
                    "error_x": {
                        "type": "data",
                        "symmetric": False,
                        "array": [speedup["high"] - speedup["ratio"]],
                        "arrayminus": [speedup["ratio"] - speedup["low"]],
                        "color": colour,
                        "thickness": 3,
                    },
                }
            )
    layout = _layout("speedup over the baseline (times)", "", height=170 + 60 * len(finalists))
    layout["yaxis"].update({"autorange": "reversed", "automargin": True, "type": "category"})
    layout["shapes"] = [_line("x", 1.0), _line("x", data["threshold"])]
    layout["annotations"] = [_note("needed", x=data["threshold"], y=0, yref="paper", xanchor="left")]
    return {"data": traces, "layout": layout}


def phases(data: Mapping[str, Any]) -> Figure | None:
    """Where a step's time goes: the baseline, and every trial that was profiled."""
    rows = [("baseline", data["baseline"]["phases"])]
    rows += [(t["trial"], t["phases"]) for t in data["trials"] if t["phases"]][:20]
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    if not names:
        return None
    colours = (_BLUE, _ORANGE, _GREEN, "#CC79A7", "#56B4E9", "#E69F00", _GREY)
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": _plain(name),
            "y": [label for label, _ in rows],
            "x": [1000 * row.get(name, 0.0) for _, row in rows],
            "marker": {"color": colours[i % len(colours)]},
        }
        for i, name in enumerate(names)
    ]
    layout = _layout("time of a step (ms)", "", height=190 + 30 * len(rows))
    layout["barmode"] = "stack"
    layout["yaxis"].update({"autorange": "reversed", "automargin": True, "type": "category"})
    return {"data": traces, "layout": layout}


def _points(trials: Sequence[Mapping[str, Any]], x: str, y: str) -> list[dict[str, Any]]:
    """One trace an outcome, of the trials that have both values."""
    traces = []
    for outcome, (colour, symbol) in _MARKERS.items():
        rows = [t for t in trials if t["outcome"] == outcome and t[x] is not None and t[y] is not None]
        if rows:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": outcome,
                    "legendgroup": outcome,
                    "x": [t[x] for t in rows],
                    "y": [t[y] for t in rows],
                    "text": [_hover(t) for t in rows],
                    "hovertemplate": "%{text}<br>%{x:.5g}, %{y:.4g} s<extra></extra>",
                    "marker": {"color": colour, "symbol": symbol, "size": 9},
                }
            )
    return traces


def _strip(trials: Sequence[Mapping[str, Any]], x: str) -> list[dict[str, Any]]:
    """The trials without a step time, one row an outcome, in a strip under the plot."""
    traces = []
    for outcome, (colour, symbol) in _MARKERS.items():
        rows = [t for t in trials if t["outcome"] == outcome and t[x] is not None and t["step_seconds"] is None]
        if rows:
            name = "out of memory: at least" if x == "bound_gib" else outcome
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": name,
                    "x": [t[x] for t in rows],
                    "y": [outcome] * len(rows),
                    "yaxis": "y2",
                    "text": [_hover(t) for t in rows],
                    "hovertemplate": "%{text}<extra></extra>",
                    "marker": {"color": colour, "symbol": symbol, "size": 9},
                }
            )
    return traces


def _hover(trial: Mapping[str, Any]) -> str:
    return f"<b>{_plain(trial['trial'])}</b> {_plain(trial['ending'])}<br>{_plain(changes_text(trial['changes']))}"


def _plain(text: str) -> str:
    return html.escape(text[:160], quote=False)


def _layout(x: str, y: str, *, height: int = 420, has_strip: bool = False) -> dict[str, Any]:
    axis = {"gridcolor": "#e5e5e5", "zeroline": False, "linecolor": "#888", "ticks": "outside", "automargin": True}
    layout: dict[str, Any] = {
        "height": height,
        "margin": {"l": 70, "r": 30, "t": 30, "b": 55},
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1a1a1a"},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "legend": {"orientation": "h", "traceorder": "normal", "y": 1.02, "yanchor": "bottom", "x": 0},
        "xaxis": {**axis, "title": {"text": x}},
        "yaxis": {**axis, "title": {"text": y}},
    }
    if has_strip:
        layout["yaxis"]["domain"] = [0.3, 1]
        layout["yaxis2"] = {**axis, "domain": [0, 0.22], "type": "category"}
        layout["xaxis"]["anchor"] = "y2"
    return layout


def _line(axis: str, value: float) -> dict[str, Any]:
    """A dashed line across the plot at a value of one axis."""
    other = "y" if axis == "x" else "x"
    ends = {f"{axis}0": value, f"{axis}1": value, f"{other}0": 0, f"{other}1": 1, f"{other}ref": "paper"}
    return {"type": "line", f"{axis}ref": axis, **ends, "line": {"color": "#444", "dash": "dash", "width": 1.2}}


def _note(text: str, **where: Any) -> dict[str, Any]:
    return {"text": text, "showarrow": False, "xanchor": "right", "yanchor": "bottom", "font": {"size": 12}, **where}
