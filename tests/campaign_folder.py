"""A campaign's folder written by hand: a real ledger, and beside it what agents would have left."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infrarsi_hpc.edges.ledger import Ledger

WINNER = {
    "candidate": {"configuration": {"delay": 0}, "source": "model"},
    "speedup": {"ratio": 1.25, "low": 1.2, "high": 1.3, "confidence": 0.95, "num_pairs": 4},
    "verdict": {"belief": "believed", "reasons": []},
}


class CampaignFolder:
    """Writes one campaign below `root/.infrarsi`; every call adds to its ledger as a head would."""

    def __init__(self, root: Path, name: str = "demo", *, at: float = 1.9e9, **opened: Any) -> None:
        self.folder = root / ".infrarsi" / name
        self.at = at
        self.round = 0
        self.num_trials = 0
        contract = {"budget": {"trials": 8, "device_hours": 4.0, "wall_minutes": None}}
        self.say(
            "opened",
            campaign=name,
            contract=contract,
            contract_sha256="ab" * 32,
            device_key="cpu-test",
            seed=7,
            doctor={"step_seconds": 0.5, "between_run_cv": 0.01},
            **opened,
        )

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.jsonl"

    def say(self, event: str, **fields: Any) -> None:
        self.at += 10
        with Ledger(self.ledger, clock=lambda: self.at) as ledger:
            ledger.append(event, **fields)

    def plan(self, num: int = 1, *, tasks: int | None = None) -> list[str]:
        """A new round of search trials, handed out in `tasks` tasks (one a trial)."""
        self.round += 1
        names = [f"t{self.num_trials + n:04d}" for n in range(1, num + 1)]
        self.num_trials += num
        candidate = {"configuration": {"delay": 0}, "source": "model", "reason": "a guess"}
        plans = [{"trial": name, "candidate": candidate, "lengths": [16], "seed": 1} for name in names]
        self.say("planned", round=self.round, purpose="search", trials=plans)
        self.hand_out([names[i :: tasks or num] for i in range(tasks or num)])
        return names

    def hand_out(self, tasks: Sequence[Sequence[str]], attempt: int = 1) -> None:
        for name in (name for task in tasks for name in task):
            self.write(f"trials/{name}/spec.json", json.dumps({"attempt": attempt}))
        listed = [[str(self.folder / "trials" / name) for name in task] for task in tasks]
        self.write(f"rounds/r{self.round:04d}/batch.json", json.dumps({"attempt": attempt, "tasks": listed}))

    def submit(self, attempt: int = 1, **job: Any) -> None:
        whole = {"kind": "slurm", "id": 4711, "cluster": "", "num_tasks": 2, "num_devices": 4, **job}
        self.write(f"rounds/r{self.round:04d}/submission-{attempt}.json", "{}")
        self.say("submitting", round=self.round, attempt=attempt)
        self.say("submitted", round=self.round, job=whole)

    def finish(self, name: str, outcome: str = "ok", step: float = 0.4, *, attempt: int = 1, log: str = "") -> None:
        reading = {"step_seconds": step, "peak_gib": 0.5} if outcome == "ok" else None
        self.write(f"trials/{name}/log.txt", log or f"log of {name}\n")
        self.write(f"trials/{name}/result.json", "{}")
        self.say(
            "finished",
            trial=name,
            attempt=attempt,
            ending={"outcome": outcome, "evidence": ""},
            reading=reading,
            device_seconds=36.0,
        )
        if outcome == "ok":
            self.say("judged", trial=name, verdict={"belief": "believed", "reasons": []})

    def close(self, *, is_promoted: bool = True) -> None:
        self.say("promoted", finalists=[WINNER] if is_promoted else [])
        self.say("closed", reason="promoted" if is_promoted else "nothing was promoted")

    def begin(self, task: int, trial: str, *, node: str = "node7", seconds: float = 100.0, age: float = 0.0) -> None:
        """An agent claims a task and says what it does."""
        now = time.time()
        folder = f"rounds/r{self.round:04d}"
        self.write(f"{folder}/claim-1-{task}", json.dumps({"node": node, "pid": 1, "by": "agent", "job": "1"}))
        beat = {"pid": 1, "node": node, "trial": trial, "started": now - seconds, "time": now - age}
        path = self.write(f"{folder}/heartbeat-{task}.json", json.dumps(beat))
        os.utime(path, (now - age, now - age))

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


def finished_campaign(root: Path, name: str = "demo", *, num: int = 3, **opened: Any) -> CampaignFolder:
    """A closed campaign of a few trials, with everything on disk that it would have left."""
    campaign = CampaignFolder(root, name, **opened)
    trials = campaign.plan(num)
    campaign.submit()
    for trial in trials:
        campaign.finish(trial)
    campaign.close()
    campaign.write("starter/infrarsi_hpc/__init__.py", "")
    campaign.write("report.html", "<html>the report</html>")
    return campaign
