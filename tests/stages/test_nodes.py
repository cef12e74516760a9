"""Nodes that the next job leaves out: the ledger's blame, a person's list, and the command that shows both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_program import make_tiny_campaign_project
from typer.testing import CliRunner

from infrarsi_hpc.cli.app import app
from infrarsi_hpc.domain.campaign import CampaignState, replay
from infrarsi_hpc.domain.noise import DoctorReport
from infrarsi_hpc.edges.project import read_contract
from infrarsi_hpc.errors import InputRefused, UsageError
from infrarsi_hpc.stages.run.nodes import change_node_list, excluded_nodes, node_visits, nodes_report, read_node_list

Attempt = tuple[str, str, float | None]
#: Node, outcome and step time of each attempt, in order: n1 loses what it gets, n2 is slow, n3 to n6 are well.
LOST: list[Attempt] = [("n1", "infra", None)] * 4
WELL: list[Attempt] = [
    (f"n{i}", "ok", (1.31 if i == 2 else 1.0) + 0.002 * k) for k in range(4) for i in (2, 3, 4, 5, 6, 10)
]


def events(attempts: list[Attempt], job: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """A ledger without its opening: every attempt is a trial of its own, measured ones are of the baseline."""
    plans = [
        {
            "trial": f"t{i}",
            "candidate": {"configuration": {"x": 0 if seconds else i}, "source": "baseline" if seconds else "search"},
            "lengths": [8],
            "seed": 1,
        }
        for i, (_, _, seconds) in enumerate(attempts)
    ]
    found: list[dict[str, Any]] = [
        {"event": "planned", "round": 1, "purpose": "search", "trials": plans},
        {"event": "submitting", "round": 1, "attempt": 1},
        {"event": "submitted", "round": 1, "job": job or {"kind": "slurm", "num_devices": 8}},
    ]
    for i, (node, outcome, seconds) in enumerate(attempts):
        found.append(
            {
                "event": "finished",
                "trial": f"t{i}",
                "attempt": 1,
                "ending": {"outcome": outcome, "evidence": f"Slurm: 7_{i}"},
                "reading": {"step_seconds": seconds} if seconds else None,
                "device_seconds": 40.0,
                "node": node,
            }
        )
    return [{"schema_version": 1, "seq": i, "time": 1e9 + i, **event} for i, event in enumerate(found, start=2)]


@pytest.fixture
def state() -> CampaignState:
    return replay(events(LOST + WELL))


def excluded(state: CampaignState, folder: Path, *, shares_host: bool = False) -> tuple[str, ...]:
    return excluded_nodes(state, folder, noise_cv=0.01, shares_host=shares_host)


def test_blamed_nodes_are_left_out_and_a_person_has_the_last_word(state: CampaignState, tmp_path: Path) -> None:
    assert excluded(state, tmp_path) == ("n1", "n2")
    assert excluded(state, tmp_path, shares_host=True) == ("n1",)
    change_node_list(tmp_path, allow=["n1"], exclude=["n99"])
    assert excluded(state, tmp_path) == ("n99", "n2")
    # the latest word counts
    change_node_list(tmp_path, allow=["n99"], exclude=["n1"])
    assert excluded(state, tmp_path) == ("n1", "n2")
    assert read_node_list(tmp_path).allow == ["n99"]


def test_a_campaign_without_visits_leaves_nothing_out(tmp_path: Path) -> None:
    assert excluded(CampaignState(), tmp_path) == ()
    assert nodes_report(CampaignState(), tmp_path, noise_cv=0.01, shares_host=False) == []


def test_the_report_says_why_of_every_node(state: CampaignState, tmp_path: Path) -> None:
    change_node_list(tmp_path, allow=["n2"], exclude=["n99"])
    rows = nodes_report(state, tmp_path, noise_cv=0.01, shares_host=False)
    assert [row.node for row in rows] == ["n1", "n2", "n3", "n4", "n5", "n6", "n10", "n99"]
    assert [(r.num_visits, r.num_failures) for r in rows[:3]] == [(4, 4), (4, 0), (4, 0)]
    assert [r.verdict for r in rows] == ["excluded", "allowed", *["used"] * 5, "excluded"]
    assert rows[0].reason.startswith("fails: 4 of 4 attempts failed as infra, after 5 s")
    assert rows[1].reason.startswith("by you; slow: 1.31x")
    assert rows[1].speed_ratio == pytest.approx(1.31, abs=0.01)
    assert rows[7].reason == "by you"


def test_trials_that_one_job_lost_are_one_failure_of_its_node() -> None:
    ledger = events(LOST + WELL)
    for event in ledger:
        if event["event"] == "finished" and event["node"] == "n1":
            event["ending"]["evidence"] = "Slurm: 7 NODE_FAIL on n1"
    state = replay(ledger)
    assert sum(v.node == "n1" for v in state.visits) == 4
    assert sum(v.node == "n1" for v in node_visits(state)) == 1


@pytest.mark.parametrize(
    "node",
    ["", "n1;boot", "n1 --nodelist=n2", "../n1", "n1,,n2", "n[1-4]", "-n1", "n" * 64, "n1\n", "n1," * 2000 + "n2"],
)
def test_a_name_that_slurm_would_not_write_never_reaches_a_job(node: str, tmp_path: Path) -> None:
    state = replay(events([(node, "infra", None)] * 6 + WELL))
    assert all(v.node != node for v in node_visits(state))
    assert excluded(state, tmp_path, shares_host=True) == ()
    if node:
        with pytest.raises(UsageError, match="no node's name"):
            change_node_list(tmp_path, exclude=[node])
        assert not (tmp_path / "nodes.json").exists()


FAULTS = {
    "not JSON": ("{", "not valid JSON"),
    "a list": ("[]", "does not hold a table"),
    "no schema": ('{"allow": []}', "schema_version|a problem"),
    "from the future": ('{"schema_version": 2, "allow": []}', "newer|has schema 2"),
    "an unknown key": ('{"schema_version": 1, "deny": []}', "unknown key"),
    "a text for a list": ('{"schema_version": 1, "exclude": "n1"}', "exclude"),
    "a number for a name": ('{"schema_version": 1, "exclude": [1]}', "exclude.0"),
    "an option for a name": ('{"schema_version": 1, "exclude": ["--help"]}', "exclude.0"),
    "a line's end in a name": ('{"schema_version": 1, "exclude": ["n1\\n"]}', "exclude.0"),
    "both at once": ('{"schema_version": 1, "allow": ["n1"], "exclude": ["n1"]}', "allowed and excluded"),
    "too many": (json.dumps({"schema_version": 1, "exclude": [f"n{i}" for i in range(51)]}), "at most 50"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_list_that_is_not_what_it_should_be_is_refused_with_its_place(name: str, tmp_path: Path) -> None:
    text, words = FAULTS[name]
    (tmp_path / "nodes.json").write_text(text)
    with pytest.raises(InputRefused, match=words) as refused:
        read_node_list(tmp_path)
    assert "nodes.json" in refused.value.what
    assert "infrarsi nodes --exclude" in refused.value.fix or "pip install" in refused.value.fix


def test_at_most_fifty_nodes_are_left_out_a_persons_first(state: CampaignState, tmp_path: Path) -> None:
    own = [f"x{i}" for i in range(49)]
    change_node_list(tmp_path, exclude=own)
    found = excluded(state, tmp_path)
    assert (set(found[:49]), found[49:]) == (set(own), ("n1",))
    second = next(row for row in nodes_report(state, tmp_path, noise_cv=0.01, shares_host=False) if row.node == "n2")
    assert (second.verdict, second.reason[-31:]) == ("used", "; 50 nodes are left out already")
    with pytest.raises(UsageError, match="at most 50"):
        change_node_list(tmp_path, exclude=[f"y{i}" for i in range(50)])


# ---- the command


def doctor(digest: str) -> dict[str, Any]:
    report = DoctorReport(
        contract_sha256=digest, baseline_commit="cd" * 20, device_key="cpu-test", node="n3", measured_at=1e9,
        num_runs=5, step_seconds=1.0, within_run_cv=0.01, between_run_cv=0.01, detectable_speedup=1.02, pairs_needed=4,
        peak_gib=0.8, memory_kind="vmdata_growth", matmul_ceiling_flops=5e10, mfu=0.3, phases={}, num_parameters=1000,
        parameters_digest="x", matmul_dtypes=("torch.float32",), evaluation_loss=5.0, loss_spread_relative=0.001,
        evaluation_spread_relative=0.001, update_spread_relative=0.01, wall_seconds=60, device_seconds=60, reference={},
    )  # fmt: skip
    return report.model_dump(mode="json")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    make_tiny_campaign_project(root)
    contract = read_contract(root / "infrarsi.toml")
    opened = {
        "schema_version": 1, "seq": 1, "time": 1e9, "event": "opened", "campaign": contract.name, "seed": 7,
        "contract": contract.model_dump(mode="json"), "contract_sha256": contract.digest, "baseline_commit": "cd" * 20,
        "device_key": "cpu-test", "doctor": doctor(contract.digest), "patches": [], "fixed": {},
    }  # fmt: skip
    folder = root / ".infrarsi" / contract.name
    folder.mkdir(parents=True)
    lines = [opened, *events(LOST + WELL)]
    (folder / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root


def infrarsi_nodes(project: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["nodes", "--project", str(project), "--site", "local", *arguments])


def test_the_command_shows_every_node_and_edits_the_list(project: Path) -> None:
    shown = infrarsi_nodes(project)
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert [line.split()[0] for line in lines[2:9]] == ["n1", "n2", "n3", "n4", "n5", "n6", "n10"]
    assert lines[-1].startswith("left out from the next submission on: n1, n2 (infrarsi nodes --allow NODE")
    changed = infrarsi_nodes(project, "--allow", "n1", "--exclude", "n5", "--exclude", "n77", "--json")
    assert changed.exit_code == 0, changed.output
    assert "no trial of this campaign has run on n77 so far" in changed.stderr
    facts = json.loads(changed.stdout)
    assert facts["excluded"] == ["n5", "n77", "n2"]
    assert {row["node"]: row["verdict"] for row in facts["nodes"]}["n1"] == "allowed"
    assert facts["compares_speed"] is True


def test_wrong_use_changes_nothing_and_says_what_to_do(project: Path) -> None:
    both = infrarsi_nodes(project, "--allow", "n1", "--exclude", "n1")
    assert isinstance(both.exception, UsageError)
    assert both.exception.exit_code == 2
    assert not list(project.glob(".infrarsi/*/nodes.json"))
