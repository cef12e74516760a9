"""What a person sees while a campaign runs: a small table on a terminal, one line a trial in a pipe or a log."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any

from infrarsi_hpc.cli.output import clean, note
from infrarsi_hpc.domain.campaign import CampaignState, TrialRecord
from infrarsi_hpc.domain.outcome import Outcome
from infrarsi_hpc.stages.campaign import Observer

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


class Live:
    """Draws the state as it changes; plain lines where stderr is not a terminal."""

    def __init__(self, baseline_seconds: float | None = None) -> None:
        self.baseline_seconds = baseline_seconds
        self.is_terminal = sys.stderr.isatty()
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
            note(text)

    def changed(self, state: CampaignState, heartbeat: dict[str, Any] | None) -> None:
        """The campaign moved on, or somebody looked."""
        if self.baseline_seconds is None and state.opened is not None:
            self.baseline_seconds = float(state.opened["doctor"]["step_seconds"])
        if self.is_terminal:
            try:
                self._draw(state, heartbeat)
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
                note(trial_line(trial, self.baseline_seconds))

    def _draw(self, state: CampaignState, heartbeat: dict[str, Any] | None) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive
        from rich.text import Text

        if self._display is None:
            self._display = RichLive(
                console=Console(stderr=True), refresh_per_second=REFRESH_A_SECOND, transient=False, auto_refresh=False
            )
            self._display.start()
        lines = [self._headline(state, heartbeat)]
        finished = [t for t in state.trials.values() if t.ending is not None]
        lines += [trial_line(t, self.baseline_seconds) for t in finished[-RECENT:]]
        self._display.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)

    def _headline(self, state: CampaignState, heartbeat: dict[str, Any] | None) -> str:
        done = [t for t in state.trials.values() if t.is_final]
        outcomes = Counter(t.ending.label for t in done if t.ending is not None)
        times = [
            t.reading.step_seconds
            for t in done
            if t.purpose == "search" and t.reading and t.reading.step_seconds and t.verdict and t.verdict.is_believed
        ]
        best = (
            f"best {self.baseline_seconds / min(times):.2f}x"
            if times and self.baseline_seconds
            else "no measurement yet"
        )
        running = f"running {heartbeat['trial']}" if heartbeat and heartbeat.get("trial") else "between trials"
        counts = ", ".join(f"{n} {label}" for label, n in outcomes.most_common())
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        return f"{minutes}:{seconds:02d}  {len(done)}/{len(state.trials)} trials ({counts})  {best}  {running}"

    def close(self) -> None:
        """Leave the last picture standing."""
        if self._display is not None:
            self._display.stop()
            self._display = None
