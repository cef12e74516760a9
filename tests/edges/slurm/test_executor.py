"""submitit with our script: what reaches sbatch for one job, an array and a batch, and what is made of its answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from infrarsi_hpc.domain.job import JobId
from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.domain.trial import TrialLimits, TrialSpec
from infrarsi_hpc.edges.slurm.commands import SlurmCommands, clean_variables
from infrarsi_hpc.edges.slurm.dispatcher import MAX_UNKNOWN_REFUSALS, SlurmDispatcher
from infrarsi_hpc.edges.slurm.executor import SubmitFailed, TemplateExecutor
from infrarsi_hpc.errors import SiteError

SITE = {"schema_version": 1, "name": "t", "scheduler": {"kind": "slurm"}, "partition": [{"name": "gpu"}]}


def stand_in(folder: Path, text: str, seconds: float = 300.0) -> SlurmCommands:
    """Slurm's commands with an `sbatch` that keeps the script it was given and answers as told."""
    folder.mkdir()
    program = folder / "sbatch"
    program.write_text(f'#!/bin/bash\ncat "${{@: -1}}" >> {folder}/seen\nenv > {folder}/env\n{text}\n')
    program.chmod(0o755)
    site = SITE | {"scheduler": {"kind": "slurm", "bin": str(folder)}, "limits": {"command_seconds": seconds}}
    return SlurmCommands(SiteProfile.model_validate(site))


def executor(tmp_path: Path, text: str, seconds: float = 300.0) -> TemplateExecutor:
    commands = stand_in(tmp_path / "bin", text, seconds)
    return TemplateExecutor(tmp_path / "jobs", commands, lambda num: f"#!/bin/bash\n# ours for {num}\n")


def seen(tmp_path: Path) -> str:
    return (tmp_path / "bin" / "seen").read_text()


def test_a_single_job_an_array_and_a_batch_all_run_our_script(tmp_path: Path) -> None:
    ours = executor(tmp_path, "echo 'Submitted batch job 71'")
    assert ours.submit(print, 1).job_id == "71"
    assert seen(tmp_path) == "#!/bin/bash\n# ours for None\n"
    jobs = ours.map_array(print, [1, 2, 3])
    assert [job.job_id for job in jobs] == ["71_0", "71_1", "71_2"]
    assert seen(tmp_path).endswith("# ours for 3\n"), "naive: submitit's own script for arrays"
    with ours.batch():
        batched = [ours.submit(print, n) for n in range(2)]
    assert [job.job_id for job in batched] == ["71_0", "71_1"]
    assert seen(tmp_path).endswith("# ours for 2\n")
    assert seen(tmp_path).count("# ours") == 3, "one sbatch each"
    assert not list((tmp_path / "jobs").glob("*.pkl")), "nothing is pickled"


@pytest.mark.parametrize(
    ("answer", "job"),
    [
        ("echo 'Submitted batch job 410022'", JobId(410022)),
        ("echo '410024;willow'", JobId(410024, cluster="willow")),
        ("echo 'quota 12% of 7'; echo 410025", JobId(410025)),
    ],
)
def test_the_number_and_the_cluster_are_kept(tmp_path: Path, answer: str, job: JobId) -> None:
    ours = executor(tmp_path, answer)
    ours.submit(print)
    assert ours.submitted == job


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("echo 'sbatch: error: Invalid qos specification' >&2; exit 1", 1),
        ("sleep 300", None),
        ("echo 'no number at all'", 0),
    ],
)
def test_every_other_answer_is_kept_as_it_was(
    tmp_path: Path, answer: str, code: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = executor(tmp_path, answer, seconds=1.0 if code is None else 300.0)
    with pytest.raises(SubmitFailed) as caught:
        ours.submit(print)
    assert caught.value.answer.returncode == code
    if code == 1:
        assert "Invalid qos" in caught.value.answer.stderr
    assert "Invalid" not in capsys.readouterr().err, "submitit's own print is caught"


def test_a_missing_sbatch_is_an_answer_too(tmp_path: Path) -> None:
    ours = executor(tmp_path, "true")
    (tmp_path / "bin" / "sbatch").unlink()
    with pytest.raises(SubmitFailed) as caught:
        ours.submit(print)
    assert caught.value.answer.returncode not in (0, None)


def test_what_a_surrounding_job_left_is_not_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "100")
    monkeypatch.setenv("SBATCH_PARTITION", "debug")
    monkeypatch.setenv("SLURM_CONF", "/etc/other.conf")
    ours = executor(tmp_path, "echo 'Submitted batch job 71'")
    ours.submit(print)
    environment = (tmp_path / "bin" / "env").read_text()
    assert "SLURM_MEM_PER_CPU" not in environment
    assert "SBATCH_PARTITION" not in environment
    assert "SLURM_CONF=/etc/other.conf" in environment


def test_a_site_may_keep_some_of_what_it_scrubs() -> None:
    site = SiteProfile.model_validate(SITE | {"environment": {"keep": ["SLURM_CONF", "SLURM_CLUSTERS"]}})
    inherited = {"SLURM_CLUSTERS": "a", "SLURM_NTASKS": "4", "PMIX_RANK": "0", "PATH": "/bin", "SLURM_CONF": "/c"}
    assert clean_variables(site, inherited) == {"SLURM_CLUSTERS": "a", "PATH": "/bin", "SLURM_CONF": "/c"}


def dispatcher(tmp_path: Path, sbatch: str, words: list[str], **options: object) -> SlurmDispatcher:
    stand_in(tmp_path / "bin", sbatch)
    site = SITE | {"scheduler": {"kind": "slurm", "bin": str(tmp_path / "bin")}, "limits": {"command_seconds": 300.0}}
    return SlurmDispatcher(
        SiteProfile.model_validate(site), tmp_path, "tag", said=words.append, pause=lambda _: None, **options
    )


def spec(name: str) -> TrialSpec:
    limits = TrialLimits(wall_seconds=1, idle_seconds=1)
    return TrialSpec(
        trial=name, purpose="search", project="/p", baseline_commit="c", configuration={}, command=("x",), lengths=(1,),
        seed=1, limits=limits,
    )  # fmt: skip


def submit(ours: SlurmDispatcher, tmp_path: Path) -> dict[str, object]:
    folder = tmp_path / "rounds" / "r0001"
    folder.mkdir(parents=True)
    return ours.submit(folder, 1, [[spec("t1")]])


def test_a_left_out_node_that_is_gone_does_not_end_the_night(tmp_path: Path) -> None:
    words: list[str] = []
    refuse = 'if grep -q exclude "${@: -1}"; then echo "sbatch: error: Batch job submission failed: Invalid node name '
    refuse += 'specified" >&2; exit 1; fi; echo 71'
    ours = dispatcher(tmp_path, refuse, words, exclude=lambda: ["n9"])
    assert submit(ours, tmp_path)["id"] == 71
    assert any("no longer there" in word for word in words)


def test_words_that_nobody_has_seen_are_tried_a_few_times_and_then_shown(tmp_path: Path) -> None:
    words: list[str] = []
    ours = dispatcher(tmp_path, "echo 'sbatch: error: the moon is full' >&2; exit 1", words)
    with pytest.raises(SiteError, match="the moon is full"):
        submit(ours, tmp_path)
    assert (tmp_path / "bin" / "seen").read_text().count("#!/bin/bash") == MAX_UNKNOWN_REFUSALS + 1


def test_a_submit_limit_is_waited_for_as_long_as_it_takes(tmp_path: Path) -> None:
    words: list[str] = []
    limited = f'n=$(cat {tmp_path}/n 2>/dev/null || echo 0); echo $((n + 1)) > {tmp_path}/n; if [ "$n" -lt 12 ]; then '
    limited += (
        'echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; echo "sbatch: error: Batch job submission failed: '
    )
    limited += 'Job violates accounting/QOS policy (job submit limit)" >&2; exit 1; fi; echo 72'
    assert submit(dispatcher(tmp_path, limited, words), tmp_path)["id"] == 72
    assert int((tmp_path / "n").read_text()) == 13
    assert len(words) == 1  # said once, and again after a quarter of an hour
