"""Real trials of a real torch program by the real agent."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tiny_program import commit_all, git, make_tiny_project, run_specs, spec

from infrarsi_hpc.edges.agent import ranks
from infrarsi_hpc.edges.agent.main import claim_task, run_task

pytestmark = pytest.mark.training


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("project")
    return folder, make_tiny_project(folder)


def trial(project: tuple[Path, str], **changes: object) -> dict[str, object]:
    return spec(project[0], project[1], **changes)


def test_a_trial_brings_back_times_memory_tokens_losses_and_a_held_out_loss(project, tmp_path: Path) -> None:
    changes = {"lengths": [4, 12], "evidence": {"evaluation_seed": 5}}
    [result] = run_specs(tmp_path, trial(project, **changes))
    assert result.problem is None
    short, long = result.runs
    assert short.exit_codes == long.exit_codes == (0,)
    assert len(long.step_ends) == len(long.steps) == 12
    assert list(long.step_ends) == sorted(long.step_ends)
    assert long.step_ends[-1] < long.wall_seconds
    assert {step.tokens for step in long.steps} == {2 * 512}
    assert len({step.token_hash for step in long.steps}) == 12
    assert [s.token_hash for s in short.steps] == [s.token_hash for s in long.steps[:4]]
    assert all(step.moved_share == 1.0 for step in long.steps)
    assert long.steps[-1].loss < long.steps[0].loss
    assert long.num_parameters == 256 * 64 + 64 * 256 + 256 + 256 * 256 + 256
    assert long.linear_flops_per_token == 2 * (64 * 256 + 256 * 256)
    assert long.matmul_dtypes == ("float32",)
    assert 0.001 < long.peak_gib[0] < 1.0
    assert long.evaluation_loss is not None
    assert short.evaluation_loss is None


def test_two_ranks_see_the_same_tokens_and_loss_as_one(project, tmp_path: Path) -> None:
    one, two = run_specs(tmp_path, trial(project, trial="t1"), trial(project, trial="t2", ranks=2))
    assert two.runs[0].exit_codes == (0, 0)
    for alone, shared in zip(one.runs[0].steps, two.runs[0].steps, strict=True):
        assert alone.tokens == shared.tokens
        assert alone.token_hash == shared.token_hash
        assert alone.loss == pytest.approx(shared.loss, rel=1e-4)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.full)])
def test_the_smallest_limit_that_passes_is_the_reported_peak(project, tmp_path: Path, ranks: int) -> None:
    """RLIMIT_DATA and the measured growth are one axis: bisect the limit and compare."""
    arguments = ["--rows", str(8 * ranks), "--depth", "24"]  # many small tensors: the allocator's own waste stays small
    free = [trial(project, trial=f"f{k}", arguments=arguments, ranks=ranks) for k in range(5)]
    peaks = [max(result.runs[0].peak_gib) for result in run_specs(tmp_path / "free", *free)]
    low, high = 0.5 * min(peaks), 1.5 * max(peaks)
    for k in range(6):
        middle = (low + high) / 2
        limits = {"memory_gib": middle, "memory_set_by": "harness"}
        tries = [trial(project, trial=f"b{i}", arguments=arguments, limits=limits, ranks=ranks) for i in range(2)]
        fits = any(set(result.runs[0].exit_codes) == {0} for result in run_specs(tmp_path / str(k), *tries))
        low, high = (low, middle) if fits else (middle, high)
    # the allocator's own chance moves the peak itself by a few percent from run to run
    assert 0.95 * min(peaks) <= high <= 1.05 * max(peaks)


def test_a_trial_over_its_limit_ends_with_the_allocators_own_words(project, tmp_path: Path) -> None:
    limits = {"memory_gib": 0.01, "memory_set_by": "harness"}
    [result] = run_specs(tmp_path, trial(project, arguments=["--rows", "64"], limits=limits))
    assert result.runs[0].exit_codes == (1,)
    assert "DefaultCPUAllocator: can't allocate memory" in result.runs[0].log_tail
    assert result.runs[0].peak_gib[0] <= 0.01


@pytest.mark.parametrize(
    ("do", "stopped", "codes", "num_steps"),
    [
        ("crash", None, (1,), 0),
        ("nothing", None, (0,), 0),
        ("exit", None, (9,), 3),
    ],
)
def test_a_program_that_misbehaves_is_ended_and_described(
    project, tmp_path: Path, do: str, stopped: str | None, codes: tuple[int], num_steps: int
) -> None:
    [result] = run_specs(tmp_path, trial(project, arguments=["--do", do]))
    run = result.runs[0]
    assert (run.stopped, run.exit_codes, len(run.steps)) == (stopped, codes, num_steps)


class AgentsClock:
    """The agent's clock, turned by what it sees: it stands until the third step is in, however slow the machine is.

    From then on it goes by `seconds` at every glance, or once if it is to jump.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float, *, jumps: bool = False) -> None:
        self.now, self.seconds, self.jumps, self.num_steps = 100.0, seconds, jumps, 0
        understand = ranks._Watch._understand

        def understood(watch: ranks._Watch, rank: ranks.Rank, message: dict[str, object], now: float) -> None:
            understand(watch, rank, message, now)
            self.num_steps += message.get("event") == "step"

        monkeypatch.setattr(ranks._Watch, "_understand", understood)
        monkeypatch.setattr(ranks, "time", self)

    def monotonic(self) -> float:
        if self.num_steps >= 3:
            self.now += self.seconds
            self.seconds = 0.0 if self.jumps else self.seconds
        return self.now


@pytest.mark.parametrize(
    ("limits", "stopped"),
    [
        ({"idle_seconds": 60.0, "wall_seconds": 3600.0}, "idle"),
        ({"idle_seconds": 3600.0, "wall_seconds": 60.0}, "wall"),
    ],
)
def test_a_program_that_hangs_is_ended_at_the_limit_that_it_meets(
    project, tmp_path: Path, monkeypatch, limits: dict[str, float], stopped: str
) -> None:
    AgentsClock(monkeypatch, 0.5)
    [result] = run_specs(tmp_path, trial(project, arguments=["--do", "hang"], limits=limits))
    run = result.runs[0]
    assert (run.stopped, run.exit_codes, len(run.steps)) == (stopped, (-9,), 3)


def test_a_job_that_was_suspended_is_told_from_one_that_hangs(project, tmp_path: Path, monkeypatch) -> None:
    AgentsClock(monkeypatch, 3600.0, jumps=True)
    limits = {"wall_seconds": 600.0, "idle_seconds": 600.0}
    [result] = run_specs(tmp_path, trial(project, arguments=["--do", "hang"], limits=limits))
    run = result.runs[0]
    assert (run.stopped, run.exit_codes, len(run.steps)) == ("suspended", (-9,), 3), "naive: wall"


def test_a_dead_rank_ends_the_one_that_waits_for_it(project, tmp_path: Path) -> None:
    [result] = run_specs(tmp_path, trial(project, ranks=2, arguments=["--do", "desert"]))
    run = result.runs[0]
    assert (run.stopped, run.exit_codes, len(run.steps)) == ("rank_died", (-9, 9), 3)


def test_a_flood_of_output_is_counted_and_cut(project, tmp_path: Path) -> None:
    [result] = run_specs(tmp_path, trial(project, arguments=["--do", "flood"]))
    run = result.runs[0]
    assert run.log_bytes == 6 * (6 * 2_000_000 + 1)
    assert (tmp_path / "trials" / "t1" / "log.txt").stat().st_size < 3 * 2**20
    assert len(run.steps) == 6


def test_patches_change_the_private_copy_and_nothing_else(project, tmp_path: Path) -> None:
    import hashlib

    folder, _ = project
    diff = (
        "--- a/prog/__main__.py\n+++ b/prog/__main__.py\n@@ -1,3 +1,3 @@\n \n-import argparse, os, sys, time\n"
        "+import argparse, os, sys, time; print('patched')\n"
        " import torch, torch.distributed as dist, torch.nn.functional as F\n"
    )
    home = tmp_path / "trials" / "t1"
    home.mkdir(parents=True)
    (home / "p.diff").write_text(diff)
    sha256 = hashlib.sha256(diff.encode()).hexdigest()
    [result] = run_specs(tmp_path, trial(project, patches=[{"sha256": sha256, "path": "p.diff"}], lengths=[3]))
    assert result.problem is None
    assert "patched" in result.runs[0].log_tail
    assert "patched" not in (folder / "prog" / "__main__.py").read_text()
    assert git(folder, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("diff", "words"),
    [
        ("--- a/prog/none.py\n+++ b/prog/none.py\n@@ -1 +1 @@\n-a\n+b\n", "No such file"),
        ("this is prose\n", "No valid patches"),
    ],
)
def test_a_patch_that_does_not_apply_is_a_problem_not_a_run(project, tmp_path: Path, diff: str, words: str) -> None:
    import hashlib

    home = tmp_path / "trials" / "t1"
    home.mkdir(parents=True)
    (home / "p.diff").write_text(diff)
    sha256 = hashlib.sha256(diff.encode()).hexdigest()
    [result] = run_specs(tmp_path, trial(project, patches=[{"sha256": sha256, "path": "p.diff"}]))
    assert result.problem == "patch"
    assert words in result.problem_text
    assert result.runs == ()


def test_a_locked_file_that_differs_stops_the_trial(project, tmp_path: Path) -> None:
    [result] = run_specs(tmp_path, trial(project, locked_files={"prog/__main__.py": "0" * 64}))
    assert result.problem == "locked_files_before"


def test_a_python_without_the_workloads_imports_is_named(project, tmp_path: Path) -> None:
    [result] = run_specs(tmp_path, trial(project, warm_imports=["no_such_module_here"]))
    assert result.problem == "agent"
    assert "no_such_module_here" in result.problem_text


def test_uncommitted_work_is_not_what_runs(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    commit = make_tiny_project(folder)
    (folder / "prog" / "__main__.py").write_text("raise SystemExit(7)\n")
    [result] = run_specs(tmp_path / "b", spec(folder, commit, lengths=[3]))
    assert result.runs[0].exit_codes == (0,)
    commit_all(folder)
    [result] = run_specs(tmp_path / "c", spec(folder, git(folder, "rev-parse", "HEAD"), lengths=[3]))
    assert result.runs[0].exit_codes == (7,)


def test_leaked_variables_do_not_reach_the_program(project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from infrarsi_hpc.edges.agent.surroundings import clean_environment

    inherited = {"PATH": "/bin", "PYTHONPATH": "/x", "LD_PRELOAD": "y.so", "SLURM_JOB_ID": "7", "NCCL_DEBUG": "INFO"}
    clean = clean_environment(inherited, {"MINE": "1"}, tmp_path)
    assert clean["PATH"] == "/bin"
    assert clean["NCCL_DEBUG"] == "INFO"
    assert clean["MINE"] == "1"
    assert not {"PYTHONPATH", "LD_PRELOAD", "SLURM_JOB_ID"} & set(clean)


def test_a_batch_is_made_once_and_a_made_trial_is_not_made_again(project, tmp_path: Path) -> None:
    [first] = run_specs(tmp_path, trial(project, lengths=[3]))
    assert run_task(str(tmp_path), 1) == "claimed"
    batch = json.loads((tmp_path / "batch.json").read_text())
    (tmp_path / "batch.json").write_text(json.dumps(batch | {"attempt": 2}))
    before = (tmp_path / "trials" / "t1" / "result.json").stat().st_mtime_ns
    assert run_task(str(tmp_path), 1) == "claimed", "a submission of an earlier attempt is void"
    assert run_task(str(tmp_path), 2) == "done"
    assert (tmp_path / "trials" / "t1" / "result.json").stat().st_mtime_ns == before
    assert first.attempt == 1


def test_only_one_of_two_claims_succeeds(tmp_path: Path) -> None:
    assert claim_task(tmp_path, 1, 0)
    assert not claim_task(tmp_path, 1, 0)
    assert json.loads((tmp_path / "claim-1-0").read_text())["pid"] == os.getpid()


def test_a_requeued_job_takes_up_its_own_claim_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert claim_task(tmp_path, 1, 0)
    assert not claim_task(tmp_path, 1, 0), "the same job a second time, not restarted"
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert claim_task(tmp_path, 1, 0)
    assert not claim_task(tmp_path, 1, 0), "once a restart"
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    assert not claim_task(tmp_path, 1, 0), "another job's claim"
    assert claim_task(tmp_path, 1, 1, by="head")
    assert not claim_task(tmp_path, 1, 1), "the head has given the task up"


def test_a_cancelled_batch_ends_its_running_trial(project, tmp_path: Path) -> None:
    (tmp_path / "cancel").touch()
    home = tmp_path / "trials" / "t1"
    home.mkdir(parents=True)
    (home / "spec.json").write_text(json.dumps(trial(project)))
    (tmp_path / "batch.json").write_text(json.dumps({"schema_version": 1, "attempt": 1, "tasks": [[str(home)]]}))
    assert run_task(str(tmp_path), 1) == "cancelled"
    assert not (home / "result.json").exists()
