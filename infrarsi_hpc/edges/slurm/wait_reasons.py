"""What Slurm's reasons for waiting mean: which pass by themselves, which pass when somebody acts, which never do.

Reasons are those of squeue(1), JOB REASON CODES. Some come with more words: `ReqNodeNotAvail, UnavailableNodes:r34n5`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

#: `passes`: wait. `told`: wait, and tell once, since somebody else has to act first. `never`: tell, since waiting
#: alone does not help.
Kind = Literal["passes", "told", "never"]


@dataclass(frozen=True)
class Meaning:
    """What a waiting job waits for."""

    kind: Kind
    words: str


_TOLD = {
    "PartitionDown": "the partition is down: it starts when the site brings it up again",
    "PartitionInactive": "the partition takes jobs and starts none: it starts when the site opens it again",
    "ReservationDeleted": "its reservation is gone: it starts if the job is given another, or none",
    "Reservation": "it starts when its reservation begins",
    "FrontEndDown": "no front end is up",
    "Licenses": "it starts when a licence is free",
}
_PASSES = {
    "ReqNodeNotAvail": (
        "nodes that it could have are down, reserved or kept free for maintenance now; it starts when one is back, "
        "or on another"
    ),
    "Priority": "others are before it",
    "Resources": "it is next, as soon as there is room",
    "Dependency": "it starts after another job",
    "BeginTime": "it starts at its own time",
}
_NEVER = {
    "AssociationJobLimit": "a limit of the account holds it back",
    "BadConstraints": "no node has what is asked for (partition.constraint)",
    "DependencyNeverSatisfied": "the job that it waits for has failed",
    "InvalidAccount": "the account may not be used here (user.account)",
    "InvalidQOS": "the QOS may not be used here (user.qos)",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "it is held: scontrol release",
    "JobLaunchFailure": "it could not be launched",
    "PartitionConfig": "the partition cannot run such a job",
    "PartitionNodeLimit": "more nodes than the partition gives (partition.num_nodes)",
    "PartitionTimeLimit": "more time than the partition gives (partition.max_time)",
    "QOSJobLimit": "a limit of the QOS holds it back",
    "QOSResourceLimit": "a limit of the QOS holds it back",
    "QOSTimeLimit": "more time than the QOS gives",
    "launch failed requeued held": "it failed to launch, and is held",
}
_DOWN = re.compile(r"nodes required for job are down,? drained or reserved", re.IGNORECASE)


def meaning(reason: str) -> Meaning:
    """What a reason means; one that is not known passes, since most do."""
    text = reason.strip().strip("()").replace("_", " ")
    if _DOWN.match(text):
        return Meaning("passes", "every node that it could have is down, drained or reserved now")
    name = text.partition(",")[0].strip()
    for kind, table in (("told", _TOLD), ("never", _NEVER), ("passes", _PASSES)):
        if (words := table.get(name) or table.get(text)) is not None:
            return Meaning(kind, words)  # type: ignore[arg-type]
    return Meaning("passes", "it waits its turn")
