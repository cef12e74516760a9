"""The report of a campaign: one page that needs no network, a short text for a mail, and the facts as data.

The page holds the plotting library and its data; a content policy in it forbids every connection, so that opening a
report tells nobody. What trials, patches and models wrote is escaped wherever it appears.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from infrarsi_hpc.domain.campaign import CampaignState
from infrarsi_hpc.domain.contract import Contract
from infrarsi_hpc.domain.noise import DoctorReport
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.models.owners import Standing
from infrarsi_hpc.models.prices import Price
from infrarsi_hpc.stages.report.data import changes_text, report_data
from infrarsi_hpc.stages.report.plots import figures


@dataclass(frozen=True)
class ReportFiles:
    """A report in its three forms, and its first sentence."""

    html: str
    markdown: str
    data: dict[str, Any]

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        return str(self.data["headline"])


def render_report(
    state: CampaignState,
    contract: Contract,
    doctor: DoctorReport,
    prices: Sequence[Price],
    patches: Mapping[str, Patch],
    logs: Callable[[str], str],
    *,
    owners: Sequence[Standing] = (),
    capacity_gib: float | None = None,
) -> ReportFiles:
    """Render what a campaign found so far: promoted, nothing promoted, all failed, or not begun.

    Parameters
    ----------
    patches
        The campaign's patches by SHA-256, tried or not.
    logs
        Gives a trial's log excerpt by trial id; empty where there is none.
    owners
        Whose beliefs the prices rest on.
    capacity_gib
        The device's memory, where the contract sets no limit of its own.
    """
    data = report_data(state, contract, doctor, prices, patches, logs, owners=owners, capacity_gib=capacity_gib)
    return ReportFiles(html=_html(data), markdown=_markdown(data), data=data)


def _html(data: Mapping[str, Any]) -> str:
    import jinja2
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(_FILTERS)
    plots = figures(data)
    return environment.from_string(_template("report.html.j2")).render(
        data=data,
        plots=plots,
        plots_json=_script_json(plots),
        plotly_js=get_plotlyjs() if plots else "",
    )


def _markdown(data: Mapping[str, Any]) -> str:
    import jinja2

    # not HTML: `line` escapes what Markdown would read as markup
    environment = jinja2.Environment(
        autoescape=False, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update({**_FILTERS, "line": _markdown_line})
    return environment.from_string(_template("report.md.j2")).render(data=data)


def _template(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _script_json(value: Any) -> str:
    """JSON that stays JSON inside a script element, whatever text is in it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _markdown_line(text: str) -> str:
    """One line of text that Markdown shows as it is."""
    # an underscore inside a word is no markup, and a knob's name reads better without a backslash in a mail
    return re.sub(r"([\\`*\[\]<>|#~!&]|\b_|_\b)", r"\\\1", " ".join(str(text).split()))


def _seconds(value: float | None) -> str:
    """A step time with four digits; a dash where there is none."""
    if value is None:
        return "–"
    return f"{value:.4g} s" if value >= 1 else f"{1000 * value:.4g} ms"


def _gib(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f} GiB"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.3g}%"


def _interval(value: Mapping[str, float | None]) -> str:
    if None in value.values():
        return "–"
    return f"{value['value']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"


def _duration(seconds: float) -> str:
    """Hours, minutes or seconds, whichever reads best."""
    if seconds >= 5400:
        return f"{seconds / 3600:.2f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 90 else f"{seconds:.1f} s"


def _diff_class(line: str) -> str:
    """The style of one line of a diff."""
    if line.startswith(("+++", "---", "diff ", "index ")):
        return "file"
    return {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], "")


_FILTERS: dict[str, Callable[..., str]] = {
    "seconds": _seconds,
    "gib": _gib,
    "percent": _percent,
    "interval": _interval,
    "duration": _duration,
    "changes": changes_text,
    "diff_class": _diff_class,
}
