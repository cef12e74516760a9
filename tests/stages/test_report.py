"""The report: right in every state of a campaign, alone without a network, and deaf to what trials wrote into it."""

from __future__ import annotations

import itertools
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infrarsi_hpc.domain.campaign import CampaignState, replay
from infrarsi_hpc.domain.contract import Contract
from infrarsi_hpc.domain.noise import DoctorReport
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.models.owners import Standing
from infrarsi_hpc.models.prices import Interval, Price
from infrarsi_hpc.stages.report.data import MAX_LOG_CHARS, clean
from infrarsi_hpc.stages.report.page import ReportFiles, render_report

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31mred\x1b[0m\u202eback `|*{{ 7*7 }}"
PATCH = Patch(
    name="fused_loss",
    title="fuse the loss",
    text=f"--- a/train/loss.py\n+++ b/train/loss.py\n@@ -1,2 +1,2 @@\n-old\n+new {EVIL}\n",
    paths=("train/loss.py",),
    expected_time_factor=0.93,
)


def contract(**changes: Any) -> Contract:
    shape = {
        "layers": 2, "hidden": 64, "heads": 4, "feed_forward": 256, "vocabulary": 256, "sequence_length": 64,
        "global_batch": 8,
    }  # fmt: skip
    fields: dict[str, Any] = {
        "schema_version": 1,
        "name": "demo",
        "goal": "make it faster",
        "scope": {
            "editable": ["train/loss.py"],
            "locked": ["train/loop.py"],
            "settings": "launch.toml",
            "patches": "p",
        },
        "workload": {
            "kind": "torch-gpt",
            "command": ["-m", "train", "--steps", "{steps}", "--seed", "{seed}"],
            "shape": shape,
        },
        "knobs": {
            "micro_batch": {"values": [1, 2, 4], "baseline": 2, "flag": "--micro-batch"},
            "recompute": {"values": ["off", "on"], "baseline": "off", "flag": "--recompute"},
        },
        "limits": {"memory_gib": 1.5},
    }
    return Contract.model_validate({**fields, **changes})


def doctor() -> DoctorReport:
    return DoctorReport(
        contract_sha256="ab" * 32, baseline_commit="cd" * 20, device_key="cpu-test", node="here", measured_at=1e9,
        num_runs=5, step_seconds=0.5, within_run_cv=0.02, between_run_cv=0.01, detectable_speedup=1.02, pairs_needed=4,
        peak_gib=0.8, memory_kind="vmdata_growth", matmul_ceiling_flops=5e10, mfu=0.3,
        phases={"data": 0.01, "forward": 0.15, "backward": 0.3, "optimizer": 0.04}, num_parameters=1000,
        parameters_digest="x", matmul_dtypes=("torch.float32",), evaluation_loss=5.0, loss_spread_relative=0.001,
        evaluation_spread_relative=0.001, update_spread_relative=0.01, wall_seconds=60, device_seconds=60,
        reference={}, versions={"torch": "2.13.0"},
    )  # fmt: skip


class Ledger:
    """Events of a campaign, one line each."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.add("opened", campaign="demo", seed=7, contract_sha256="ab" * 32, device_key="cpu-test")

    def add(self, event: str, **fields: Any) -> None:
        n = len(self.events) + 1
        self.events.append({"schema_version": 1, "seq": n, "time": 1e9 + 10 * n, "event": event, **fields})

    def trial(
        self, name: str, *, outcome: str = "ok", step: float | None = 0.5, belief: str = "believed", **more: Any
    ) -> None:
        settings = {"micro_batch": more.get("micro_batch", 2), "recompute": "off"}
        candidate = {
            "configuration": settings,
            "patches": more.get("patches", []),
            "source": "model",
            "reason": more.get("why", ""),
        }
        plan = {"trial": name, "candidate": candidate, "lengths": [16], "seed": 1, **more.get("plan", {})}
        purpose = "verify" if "plan" in more else "search"
        self.add("planned", round=len(self.events), purpose=purpose, trials=[plan])
        ending = {
            "outcome": outcome,
            "detail": more.get("detail"),
            "bound_gib": more.get("bound_gib"),
            "evidence": more.get("evidence", ""),
        }
        reading = (
            {"step_seconds": step, "slope_seconds": more.get("slope"), "peak_gib": more.get("peak", 0.8)}
            if outcome == "ok"
            else None
        )
        self.add(
            "finished", trial=name, attempt=1, ending=ending, reading=reading, device_seconds=more.get("cost", 10.0)
        )
        self.add(
            "judged",
            trial=name,
            verdict={"belief": belief, "reasons": more.get("reasons", []), "labels": more.get("labels", [])},
        )

    def state(self) -> CampaignState:
        return replay(self.events)


def promoted_ledger() -> Ledger:
    ledger = Ledger()
    ledger.trial("t0001")
    ledger.trial("t0002", micro_batch=4, step=0.4, peak=1.3)
    ledger.trial(
        "t0003", micro_batch=1, outcome="device_oom", detail="limit", bound_gib=1.5, belief="undecided", evidence=EVIL
    )
    ledger.trial("t0004", patches=[PATCH.sha256], belief="refused", reasons=[EVIL], why=EVIL)
    ledger.trial("t0005", outcome="crashed", belief="undecided", cost=5.0)
    candidate = {"configuration": {"micro_batch": 4, "recompute": "off"}, "patches": [PATCH.sha256]}
    from infrarsi_hpc.domain.candidate import Candidate

    finalist = Candidate.model_validate(candidate).id
    number = 0
    for pair in (1, 2, 3):
        for arm, seconds in (("baseline", 0.5), ("candidate", 0.4)):
            number += 1
            more = {"micro_batch": 4, "patches": [PATCH.sha256]} if arm == "candidate" else {}
            ledger.trial(f"v{number:04d}", slope=seconds, plan={"finalist": finalist, "pair": pair, "arm": arm}, **more)
    speedup = {"ratio": 1.25, "low": 1.2, "high": 1.3, "confidence": 0.95, "num_pairs": 3}
    verdict = {"belief": "believed", "reasons": ["interval above 1.02"], "labels": ["matrix products run in bf16"]}
    result = {
        "candidate": candidate,
        "speedup": speedup,
        "verdict": verdict,
        "baseline_seconds": 0.5,
        "candidate_seconds": 0.4,
    }
    ledger.add("promoted", finalists=[result])
    ledger.add("closed", reason="promoted")
    return ledger


def nothing_promoted() -> Ledger:
    ledger = promoted_ledger()
    for finalist in ledger.events[-2]["finalists"]:
        finalist["verdict"] = {"belief": "undecided", "reasons": ["the interval holds 1.02"], "labels": []}
    return ledger


def all_failed() -> Ledger:
    ledger = Ledger()
    for n in range(3):
        ledger.trial(
            f"t000{n}", outcome="device_oom" if n else "crashed", belief="undecided", bound_gib=1.5 if n else None
        )
    ledger.add("closed", reason="nothing was promoted")
    return ledger


def no_trials() -> Ledger:
    ledger = Ledger()
    ledger.add("closed", reason="no time")
    return ledger


def unfinished() -> Ledger:
    ledger = promoted_ledger()
    del ledger.events[6:]
    plan = {"trial": "t0009", "candidate": {"configuration": {"micro_batch": 2}}, "lengths": [16], "seed": 1}
    ledger.add("planned", round=99, purpose="search", trials=[plan])
    return ledger


PRICES = [
    Price("knob", "micro_batch", "4", "2", False, Interval(0.8, 0.78, 0.82), Interval(0.5, 0.4, 0.6),
          Interval(0.9, 0.6, 1.2), Interval(0.4, 0.1, 0.9), 2),
    Price("patch", f"fused{EVIL}"[:90], PATCH.sha256, "", False, Interval(0.95, 0.9, 1.0), Interval(0.0, -0.1, 0.1),
          Interval(0.93, 0.8, 1.1), Interval(0.0, -0.2, 0.2), 1),
]  # fmt: skip


def render(ledger: Ledger, prices: list[Price] | None = None, log: str = "") -> ReportFiles:
    shown = PRICES if prices is None else prices
    owners = [Standing("textbook", 0, 0.25, 0.04, 1.0), Standing(f"your store: {EVIL}", 72, 0.75, 0.96, 0.0)]
    return render_report(
        ledger.state(), contract(), doctor(), shown, {PATCH.sha256: PATCH}, lambda _: log, owners=owners
    )


class Page(HTMLParser):
    """The page's elements, its text outside scripts, and every place that could load something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.handlers: list[str] = []
        self.text = ""
        self._within: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [
            f"{tag} {k}={v}"
            for k, v in attrs
            if k in ("src", "href", "srcset", "data", "action") and not str(v).startswith("#")
        ]
        self.handlers += [k for k, _ in attrs if k.startswith("on")]
        if tag in ("script", "style"):
            self._within.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._within and self._within[-1] == tag:
            self._within.pop()

    def handle_data(self, data: str) -> None:
        if not self._within:
            self.text += data


COST = "the campaign cost 0.03 device-hours over 5 search trials and 6 promotion runs, 3 of which failed."
STATES = {
    "promoted": (
        promoted_ledger,
        "At least 1.200x faster (1.250x measured, 1.200x to 1.300x with 95% confidence) by micro_batch 2 → 4, "
        f"patch fused_loss; note: matrix products run in bf16; {COST}",
    ),
    "nothing promoted": (
        nothing_promoted,
        "No speedup was proven: the finalist was re-verified and it was not believed above 1.020x; " + COST,
    ),
    "all failed": (
        all_failed,
        "Every trial failed (2 device_oom, 1 crashed), so that nothing could be measured; "
        "the campaign cost 0.01 device-hours over 3 search trials, 3 of which failed.",
    ),
    "no trials": (no_trials, "No trial was made."),
    "unfinished": (
        unfinished,
        "Not finished yet. No candidate was promoted; the campaign cost 0.01 device-hours over 3 search trials.",
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_a_campaign_in_any_state_has_a_report_with_its_verdict_first(name: str) -> None:
    make, sentence = STATES[name]
    files = render(make(), None if name != "no trials" else [])
    assert files.headline == sentence
    page = Page(files.html)
    assert page.text.index(sentence) < 600 + page.text.index("InfraRSI-HPC report")
    assert sentence.split(";")[0].split("(")[0].strip() in files.markdown.replace("\\", "")
    assert json.loads(json.dumps(files.data, allow_nan=False)) == files.data


@pytest.mark.parametrize("name", STATES)
def test_the_page_loads_nothing_and_holds_no_markup_of_a_trials_making(name: str) -> None:
    page = Page(render(STATES[name][0](), log=EVIL).html)
    assert page.loads == []
    assert page.handlers == []
    assert "img" not in page.tags
    assert page.tags.count("script") in (1, 3)
    assert "49" not in re.findall(r"back `\|\*(\S+)", page.text)


def test_text_from_trials_is_shown_as_text_without_terminal_codes() -> None:
    files = render(promoted_ledger(), log=EVIL)
    page = Page(files.html)
    shown = "<img src=x onerror=alert(2)>red\ufffdback"
    # log and evidence, refusal, proposer's words, diff
    assert page.text.count(shown) >= 4
    assert "\x1b" not in files.html
    assert "\u202e" not in files.html
    assert "\u202e" not in files.markdown


def test_whose_beliefs_the_prices_rest_on_is_shown() -> None:
    page = Page(render(promoted_ledger()).html)
    assert "Trust in what was believed" in page.text
    assert re.search(r"textbook\s*–\s*25\.?0*\s?%\s*4\.?0*\s?%\s*100", page.text)


def test_the_plots_data_is_json_that_cannot_end_its_script_and_plotly_accepts_it() -> None:
    import plotly.graph_objects as go

    files = render(promoted_ledger(), log=EVIL)
    found = re.search(r'<script type="application/json" id="plots-data">(.*?)</script>', files.html, re.S)
    assert found is not None
    assert "<" not in found[1]
    plots = json.loads(found[1])
    assert list(plots) == ["progress", "memory", "prices", "noise", "verification", "phases"]
    for plot in plots.values():
        go.Figure(plot)
    text = json.dumps(plots)
    assert "onerror" in text
    assert "<img" not in text
    assert {f'data-plot="{name}"' for name in plots} <= set(re.findall(r'data-plot="\w+"', files.html))


def test_an_out_of_memory_trial_stands_at_its_bound_and_apart_from_measured_ones() -> None:
    from infrarsi_hpc.stages.report.plots import memory

    figure = memory(render(promoted_ledger()).data)
    assert figure is not None
    by_name = {trace["name"]: trace for trace in figure["data"]}
    oom = by_name["out of memory: at least"]
    assert (oom["x"], oom["marker"]["symbol"], oom["yaxis"]) == ([1.5], "triangle-right", "y2")
    assert oom["marker"]["symbol"] != by_name["ok"]["marker"]["symbol"]
    assert figure["layout"]["shapes"][0]["x0"] == 1.5


def test_the_best_so_far_ignores_a_faster_trial_that_was_refused() -> None:
    from infrarsi_hpc.stages.report.plots import progress

    ledger = Ledger()
    ledger.trial("t0001", step=0.5)
    ledger.trial("t0002", step=0.1, belief="refused", reasons=["tokens differ"])
    ledger.trial("t0003", step=0.45)
    figure = progress(render(ledger).data)
    assert figure is not None
    best = next(trace for trace in figure["data"] if trace["name"] == "best so far")
    assert best["y"] == [0.5, 0.45]  # min over all would say 0.1


def test_failed_trials_and_their_cost_are_in_the_table() -> None:
    files = render(promoted_ledger())
    cost = files.data["cost"]
    assert cost["num_failed"] == 3
    assert cost["failed_device_seconds"] == 25.0
    assert cost["device_seconds_by_outcome"] == {"ok": 80.0, "device_oom": 10.0, "refused": 10.0, "crashed": 5.0}
    for name in ("t0003", "t0005", "device_oom/limit", "≥ 1.500 GiB"):
        assert name in Page(files.html).text


def test_commands_say_how_to_measure_apply_and_undo() -> None:
    commands = render(promoted_ledger()).data["commands"]
    assert commands["measure the winner once more"] == "infrarsi try --set micro_batch=4 --patch p/fused_loss.diff"
    assert commands["audit it and commit it"] == "infrarsi apply"
    assert "audit it and commit it" not in render(nothing_promoted()).data["commands"]


def test_the_page_can_be_read_without_sight_of_the_plots() -> None:
    html = render(promoted_ledger()).html
    assert html.count('role="img" aria-label="') == html.count("<figcaption>") == 6
    assert '<html lang="en">' in html
    assert "@media print" in html
    levels = [int(level) for level in re.findall(r"<h([1-6])", html[: html.index("plots-data")])]
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


def test_a_huge_log_and_a_thousand_trials_stay_bounded() -> None:
    ledger = Ledger()
    for n in range(1000):
        ledger.trial(f"t{n:04d}", micro_batch=(1, 2, 4)[n % 3])
    files = render(ledger, log="x" * 10_000_000)
    assert len(files.html) < 16_000_000
    assert len(files.data["trials"][0]["log"]) <= MAX_LOG_CHARS + 2
    assert files.data["trials"][-1]["trial"] == "t0999"


def test_a_price_that_is_infinite_is_a_dash_and_leaves_the_plot() -> None:
    endless = Interval(1.0, 0.0, float("inf"))
    price = Price("knob", "recompute", "on", "off", False, endless, endless, endless, endless, 0)
    files = render(promoted_ledger(), [*PRICES, price])
    assert json.loads(json.dumps(files.data, allow_nan=False))["prices"][2]["time_factor"]["high"] is None
    assert "recompute off → on" in Page(files.html).text


def test_a_table_in_the_mail_survives_what_a_patch_is_called() -> None:
    ledger = nothing_promoted()
    ledger.events[-2]["finalists"][0]["verdict"]["reasons"] = ["a | b\n# not a heading <b>"]
    markdown = render(ledger).markdown
    row = next(line for line in markdown.splitlines() if "not a heading" in line)
    assert row.replace("\\|", "").count("|") == 7
    assert "<b>" not in markdown.replace("\\<", "")


@settings(max_examples=200)
@given(text=st.text(max_size=300), limit=st.integers(1, 100), keep_end=st.booleans())
def test_cleaned_text_is_short_and_printable(text: str, limit: int, keep_end: bool) -> None:
    cleaned = clean(text, limit, keep_end=keep_end)
    assert len(cleaned) <= limit + 2
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", cleaned)
    cleaned.encode("utf-8")
