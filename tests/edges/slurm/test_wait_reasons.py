"""What a waiting job waits for: most reasons pass, some need somebody, a few never do."""

from __future__ import annotations

import pytest

from infrarsi_hpc.edges.slurm.wait_reasons import meaning

REASONS = [
    ("Priority", "passes"),
    ("Resources", "passes"),
    ("(Resources)", "passes"),
    ("ReqNodeNotAvail", "passes"),  # naive: it can never start
    ("ReqNodeNotAvail, UnavailableNodes:r34n5", "passes"),
    ("ReqNodeNotAvail, May be reserved for other job", "passes"),
    ("ReqNodeNotAvail, Reserved for maintenance", "passes"),
    ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", "passes"),
    ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions", "passes"),
    ("PartitionDown", "told"),
    ("PartitionInactive", "told"),
    ("InvalidAccount", "never"),
    ("launch failed requeued held", "never"),
    ("launch_failed_requeued_held", "never"),
    ("BadConstraints", "never"),
    ("SomethingNew", "passes"),
    ("", "passes"),
]


@pytest.mark.parametrize(("reason", "kind"), REASONS)
def test_a_reason_says_whether_waiting_helps(reason: str, kind: str) -> None:
    assert meaning(reason).kind == kind
    assert meaning(reason).words
