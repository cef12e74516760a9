"""What a person sees while a campaign runs: a small table on a terminal, one line a trial in a pipe or a log.

Fed by the head itself through an `Observer`, or by a watcher with lines of its own (`cli/watch.py`).
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from infrarsi_hpc.cli.output import clean, note
from infrarsi_hpc.domain.campaign import CampaignState, TrialRecord
from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.stages.run.campaign import Observer

RECENT = 8
REFRESH_A_SECOND = 2


def trial_line(trial: TrialRecord, baseline_seconds: float | None) -> str:
    """One finished trial in one line."""
    name, ending, reading = trial.plan.trial, trial.ending, trial.reading
    if ending is None:
        return f"{name}  waiting"
    what = ending.label if trial.verdict is None or ending.outcome is not Outcome.OK else trial.verdict.belief.value
    parts = [name, f"{what:<18}"]
    seconds = (reading.slope_seconds or reading.step_seconds) if reading else None
    if ending.outcome is Outcome.OK and seconds:
        parts.append(f"{1000 * seconds:8.1f} ms")
        if baseline_seconds:
            parts.append(f"{baseline_seconds / seconds:5.2f}x")
        if reading and reading.peak_gib is not None:
            parts.append(f"{reading.peak_gib:7.3f} GiB")
    reason = trial.plan.candidate.reason
    if trial.verdict is not None and not trial.verdict.is_believed and trial.verdict.reasons:
        reason = trial.verdict.reasons[0]
    if trial.plan.arm is not None:
        reason = f"pair {trial.plan.pair}, {trial.plan.arm}"
    return clean("  ".join([*parts, reason]))


def recent_lines(state: CampaignState) -> list[str]:
    """The last finished trials, a line each."""
    finished = [t for t in state.trials.values() if t.ending is not None]
    finished.sort(key=lambda t: t.finished_at or 0.0)
    return [trial_line(t, baseline_seconds(state)) for t in finished[-RECENT:]]


def baseline_seconds(state: CampaignState) -> float | None:
    """The baseline's step time as the doctor measured it, none before the campaign was opened."""
    return float(state.opened["doctor"]["step_seconds"]) if state.opened is not None else None


def headline(state: CampaignState, elapsed_seconds: float, doing: str) -> str:
    """Time, progress, endings and the best so far in one line, with what goes on at its end."""
    done = [t for t in state.trials.values() if t.is_final]
    outcomes = Counter(t.ending.label for t in done if t.ending is not None)
    times = [
        t.reading.step_seconds
        for t in done
        if t.purpose == "search" and t.reading and t.reading.step_seconds and t.verdict and t.verdict.is_believed
    ]
    baseline = baseline_seconds(state)
    best = f"best {baseline / min(times):.2f}x" if times and baseline else "no measurement yet"
    counts = ", ".join(f"{n} {label}" for label, n in outcomes.most_common())
    return f"{clock(elapsed_seconds)}  {len(done)}/{len(state.trials)} trials ({counts})  {best}  {doing}"


def clock(seconds: float) -> str:
    """A duration as minutes and seconds, with hours where there are any."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Live:
    """Draws the state as it changes; plain lines, through `tell`, where `stream` is not a terminal."""

    def __init__(self, *, stream: TextIO | None = None, tell: Callable[[str], None] = note) -> None:
        self.stream = stream or sys.stderr
        self.tell = tell
        self.is_terminal = self.stream.isatty()
        self._shown: set[tuple[str, int]] = set()
        self._display: Any = None
        self._started = time.monotonic()

    def observer(self) -> Observer:
        """What a stage tells."""
        return Observer(said=self.say, changed=self.changed)

    def say(self, text: str) -> None:
        """A remark; above the table where there is one."""
        if self._display is not None:
            self._display.console.print(clean(text), markup=False, highlight=False)
        else:
            self.tell(text)

    def changed(self, state: CampaignState, heartbeat: dict[str, Any] | None) -> None:
        """The campaign moved on, or somebody looked."""
        running = f"running {heartbeat['trial']}" if heartbeat and heartbeat.get("trial") else "between trials"
        self.show(state, [headline(state, time.monotonic() - self._started, running), *recent_lines(state)])

    def show(self, state: CampaignState, lines: Sequence[str]) -> None:
        """These lines on a terminal; elsewhere, a line for every trial that was judged since the last time."""
        if self.is_terminal:
            try:
                self._draw(lines)
            except OSError:  # the terminal is gone; the campaign is not
                self.is_terminal, self._display = False, None
            return
        for trial in state.trials.values():
            key = (trial.plan.trial, trial.attempt)
            is_judged = trial.verdict is not None or (
                trial.ending is not None and trial.ending.outcome is not Outcome.OK
            )
            if is_judged and key not in self._shown:
                self._shown.add(key)
                self.tell(trial_line(trial, baseline_seconds(state)))

    def _draw(self, lines: Sequence[str]) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive
        from rich.text import Text

        if self._display is None:
            self._display = RichLive(
                console=Console(file=self.stream),
                refresh_per_second=REFRESH_A_SECOND,
                transient=False,
                auto_refresh=False,
            )
            self._display.start()
        text = "\n".join(clean(line) for line in lines)
        self._display.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

    def close(self) -> None:
        """Leave the last picture standing."""
        if self._display is not None:
            self._display.stop()
            self._display = None
