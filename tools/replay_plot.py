"""Regret curves of replays as one page: best so far over the best, by trial, over all tables and for each."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from infrarsi_hpc.edges.atomic import write_text

#: Okabe and Ito's colours, told apart by colour-blind readers too.
_COLOURS = ("#0072B2", "#6b6b6b", "#D55E00", "#009E73", "#CC79A7", "#E69F00")


def write_plot(path: Path, summary: Mapping[str, Any]) -> None:
    """Write the page; it holds plotly.js and needs no network."""
    import plotly.graph_objects as go

    parts = {"all tables": {method: found["regret"] for method, found in summary["overall"].items()}}
    for table, methods in summary["by_table"].items():
        parts[table] = {method: found["regret"] for method, found in methods.items()}
    pages = []
    for i, (title, regrets) in enumerate(parts.items()):
        figure = go.Figure(_traces(regrets), _layout(title))
        pages.append(figure.to_html(full_html=False, include_plotlyjs=i == 0, div_id=f"regret-{i}"))
    head = '<!doctype html><meta charset="utf-8"><title>Replays</title>'
    write_text(path, f"{head}\n" + "\n".join(pages) + "\n")


def _traces(regrets: Mapping[str, Mapping[str, list[float]]]) -> list[dict[str, Any]]:
    traces: list[dict[str, Any]] = []
    for (method, regret), colour in zip(regrets.items(), _COLOURS * len(regrets), strict=False):
        x = list(range(1, len(regret["mean_log"]) + 1))
        low, middle, high = (list(np.exp(regret[name])) for name in ("low", "mean_log", "high"))
        shared = {"type": "scatter", "mode": "lines", "legendgroup": method, "name": method}
        traces.append(
            {**shared, "x": x + x[::-1], "y": high + low[::-1], "fill": "toself", "fillcolor": colour, "opacity": 0.12}
            | {"line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        )
        traces.append({**shared, "x": x, "y": middle, "line": {"color": colour, "width": 2}})
    return traces


def _layout(title: str) -> dict[str, Any]:
    return {
        "title": {"text": html.escape(title)},
        "height": 420,
        "template": "plotly_white",
        "xaxis": {"title": {"text": "trials"}},
        "yaxis": {"title": {"text": "best so far / best (mean of logs, 95% band)"}, "type": "log"},
    }
