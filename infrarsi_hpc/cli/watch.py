"""`infrarsi watch`: a campaign that another process runs, seen from the outside; nothing is locked or written."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from infrarsi_hpc.cli.live import Live, clock, headline, recent_lines
from infrarsi_hpc.cli.output import say
from infrarsi_hpc.cli.saved_arguments import RunArguments, known_arguments, saved_site
from infrarsi_hpc.domain.campaign import CampaignState
from infrarsi_hpc.edges.ledger_tail import LedgerTail
from infrarsi_hpc.edges.project import CAMPAIGNS, campaign_ledger, read_contract
from infrarsi_hpc.edges.saved_run import SAVED_RUN
from infrarsi_hpc.stages.campaigns import state_text
from infrarsi_hpc.stages.run.activity import Activity, RunningTask, WaitingTask, activity_of
from infrarsi_hpc.stages.run.waiting import WaitingReasons
from infrarsi_hpc.stages.status import not_begun

#: Rows for running and for waiting trials on one screen.
MAX_ROWS = 12


@dataclass(frozen=True)
class Limits:
    """What the campaign may cost, as far as contract and saved arguments tell. The deadline is in Unix seconds."""

    max_trials: int | None = None
    device_hours: float | None = None
    deadline: float | None = None


class Watcher:
    """Looks at one campaign; what it knows is only ever read on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tail = LedgerTail(folder / "ledger.jsonl")
        self.arguments = known_arguments(folder)
        site = saved_site(self.arguments)
        self._reasons = WaitingReasons(site) if site is not None and site.scheduler.kind == "slurm" else None

    @property
    def state(self) -> CampaignState:
        """The campaign as far as its ledger was read."""
        return self.tail.state

    def look(self, now: float) -> tuple[Activity, dict[tuple[int, int], str]]:
        """Read on; gives what goes on now, and why jobs wait, by round and task.

        Raises
        ------
        LedgerError
            The ledger is damaged.
        """
        self.tail.poll()
        activity = activity_of(self.folder, self.state, now)
        return activity, self._reasons.look(activity.jobs) if self._reasons and activity.waiting else {}

    def picture(self, activity: Activity, reasons: dict[tuple[int, int], str], now: float) -> list[str]:
        """Everything of interest, a line each."""
        state = self.state
        if state.opened is None:
            return [self.situation(activity)]
        doing = f"{len(activity.running)} running, {len(activity.waiting)} waiting" if activity.jobs else "between jobs"
        lines = [
            self.situation(activity),
            headline(state, (now if state.closed is None else state.last_time) - float(state.opened["time"]), doing),
            _spent(state, activity, limits_of(state, self.arguments), now),
        ]
        if activity.running:
            lines += ["running:", *_first(["  " + running_line(task) for task in activity.running])]
        if activity.waiting:
            lines += ["waiting:", *_first(["  " + waiting_line(task, reasons) for task in activity.waiting])]
        recent = recent_lines(state)
        return [*lines, *(["last results:", *("  " + line for line in recent)] if recent else [])]

    def situation(self, activity: Activity) -> str:
        """Who runs the campaign, or what to do where nobody does."""
        what = state_text(self.state, activity.head, activity.jobs)
        if self.state.opened is None:
            return not_begun(self.folder.name, self.folder, activity.head is not None)
        is_left = self.state.closed is None and activity.head is None
        return f"campaign {self.folder.name}: {what}" + (
            f"; no head: infrarsi campaigns resume {self.folder.name}" if is_left else ""
        )


def watch(project: Path, contract: str, campaign: str | None, interval_seconds: float, once: bool) -> None:
    """Show a campaign until it is closed."""
    root = project.resolve()
    folder = root / CAMPAIGNS / (campaign or read_contract(root / contract).name)
    if not (folder / SAVED_RUN).exists():  # one that was only just started may have no ledger yet
        folder = campaign_ledger(root, contract, campaign).parent
    watcher = Watcher(folder)
    if once:
        now = time.time()
        for line in watcher.picture(*watcher.look(now), now):
            say(line)
        return
    with contextlib.suppress(KeyboardInterrupt):  # the way to stop watching
        follow(watcher, Live(stream=sys.stdout, tell=_say_now), lambda: time.sleep(interval_seconds))


def follow(watcher: Watcher, live: Live, pause: Callable[[], None]) -> None:
    """Show what changes until the campaign is closed; `pause` comes between two looks."""
    begun: set[str] = set()
    situation = ""
    try:
        while True:
            now = time.time()
            activity, reasons = watcher.look(now)
            if not live.is_terminal and watcher.situation(activity) != situation:
                situation = watcher.situation(activity)
                live.say(situation)
            live.show(watcher.state, watcher.picture(activity, reasons, now))
            for task in activity.running if not live.is_terminal else ():
                if not task.is_silent and task.trial not in begun:
                    begun.add(task.trial)
                    live.say(f"{task.trial}  runs on {task.node}")
            if watcher.state.closed is not None:
                return
            pause()
    finally:
        live.close()


def running_line(task: RunningTask) -> str:
    """A trial that runs, in one line."""
    where = task.node or "an unknown node"
    return f"{task.trial}  {where}  " + ("no word from its agent of late" if task.is_silent else clock(task.seconds))


def waiting_line(task: WaitingTask, reasons: dict[tuple[int, int], str]) -> str:
    """A task that waits, in one line, with Slurm's reason where it is known."""
    shown = ", ".join(task.trials[:6]) + (f" and {len(task.trials) - 6} more" if len(task.trials) > 6 else "")
    job = f"job {task.job.id}" if task.job.kind == "slurm" else "not submitted yet, or without an answer"
    why = reasons.get((task.round, task.task)) or reasons.get((task.round, 0), "")
    return f"{shown}  {job}" + (f"  ({why})" if why else "")


def limits_of(state: CampaignState, arguments: RunArguments | None) -> Limits:
    """The limits in force: the contract's, where the command line does not say otherwise."""
    opened = state.opened or {}
    budget = opened.get("contract", {}).get("budget", {})
    wall_minutes = budget.get("wall_minutes")
    ends = [float(opened["time"]) + 60 * float(wall_minutes)] if wall_minutes else []
    trials, hours = budget.get("trials"), budget.get("device_hours")
    if arguments is not None:
        trials = _number(arguments.value("--max-trials")) or trials
        hours = _number(arguments.value("--budget")) or hours
        ends += [arguments.end] if arguments.end is not None else []
    return Limits(int(trials) if trials else None, float(hours) if hours else None, min(ends, default=None))


def _spent(state: CampaignState, activity: Activity, limits: Limits, now: float) -> str:
    searched = sum(t.purpose == "search" and t.is_final for t in state.trials.values())
    hours = state.device_seconds() / 3600
    running = activity.running_device_seconds / 3600
    parts = [
        f"{searched}" + (f" of {limits.max_trials}" if limits.max_trials else "") + " search trials",
        f"{hours:.3f}"
        + (f" of {limits.device_hours:g}" if limits.device_hours else "")
        + " device-hours"
        + (f" and {running:.3f} running" if running else ""),
    ]
    if limits.deadline is not None and state.closed is None:
        left = limits.deadline - now
        until = datetime.fromtimestamp(limits.deadline).strftime("%Y-%m-%d %H:%M")
        parts.append(f"until {until} " + (f"({clock(left)} left)" if left > 0 else "(passed)"))
    return ", ".join(parts)


def _first(lines: list[str]) -> list[str]:
    more = len(lines) - MAX_ROWS
    return lines if more <= 0 else [*lines[:MAX_ROWS], f"  and {more} more"]


def _say_now(text: str) -> None:
    say(text)
    sys.stdout.flush()  # whoever reads from a pipe reads now


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
