"""Why jobs wait, in Slurm's words: asked seldom, and never in the way of what asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.edges.slurm.commands import SlurmCommands
from infrarsi_hpc.edges.slurm.squeue_text import FORMAT, parse_squeue
from infrarsi_hpc.stages.run.activity import OpenJob

#: Between two questions; a watcher is one of many guests of the controller.
PAUSE_SECONDS = 30.0


class WaitingReasons:
    """Slurm's reasons for open jobs, by round and task; what was said last stands until it says something else."""

    def __init__(self, site: SiteProfile, clock: Callable[[], float] = time.monotonic) -> None:
        self.commands, self.clock = SlurmCommands(site), clock
        self.pause_seconds = max(PAUSE_SECONDS, site.limits.poll_seconds)
        self._known: dict[tuple[int, int], str] = {}
        self._next = 0.0

    def look(self, jobs: Sequence[OpenJob]) -> dict[tuple[int, int], str]:
        """The reasons; asks squeue once a cluster when it is time to."""
        asked = {job.cluster: [j for j in jobs if j.cluster == job.cluster] for job in jobs if job.kind == "slurm"}
        if asked and self.clock() >= self._next:
            for cluster, listed in asked.items():
                self._ask(cluster, listed)
            self._next = self.clock() + self.pause_seconds
        return self._known

    def _ask(self, cluster: str, jobs: Sequence[OpenJob]) -> None:
        numbers = ",".join(job.id for job in jobs)
        said = self.commands.run(
            "squeue", "--noheader", "--states=PENDING", f"--format={FORMAT}", f"--jobs={numbers}", cluster=cluster
        )
        answer = parse_squeue(said.stdout, said.stderr, said.returncode)
        if not answer.is_answer:
            return
        rounds = {job.id: job.round for job in jobs}
        for record in answer.records:
            number = rounds.get(str(record.job.number))
            if number is not None:
                self._known[number, record.job.task or 0] = record.reason[:100]
