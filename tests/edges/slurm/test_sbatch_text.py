"""What sbatch says: ids among other numbers, and every refusal with what is to be done about it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi_hpc.domain.job import JobId
from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.edges.slurm.refusals import AMBIGUOUS, FIXES, PERMANENT, TRANSIENT, WAIT
from infrarsi_hpc.edges.slurm.sbatch_text import classify_refusal, is_refusal_text, parse_submission
from infrarsi_hpc.edges.slurm.site_rules import OPTIONS, SUBJECTS, WANTED

BANNER = """-----------------------------------------------------------
      Welcome to Alder4, 560 nodes, 2031
-----------------------------------------------------------
--> Verifying valid submit host (login3)...OK
--> Checking available allocation (ABC-1234)...OK
--> Quota of /home/u77 at 3.10%...OK
"""
TAKEN = {
    "Submitted batch job 88123\n": JobId(88123),
    "Submitted batch job 88123 on cluster elm\n": JobId(88123, cluster="elm"),
    "88123;elm\n": JobId(88123, cluster="elm"),
    "88123\n": JobId(88123),
    f"{BANNER}Submitted batch job 88123\n": JobId(88123),
    f"{BANNER}2031\n\n88123;elm\n": JobId(88123, cluster="elm"),
    f"2031\n{BANNER}88123\n": JobId(88123),
    "\x1b[32mSubmitted batch job 88123\x1b[0m\r\nHave a nice day 7\n": JobId(88123),
    "sbatch: info: project abc charged 12 hours\nSubmitted batch job 88123\n": JobId(88123),
    "sbatch: Submitted batch job 88123\n": JobId(88123),
    BANNER: None,
    "": None,
    "0\n": None,
    "job 88123 was sent\n": None,
    "123456789012\n": None,
}


@pytest.mark.parametrize("text", TAKEN)
def test_the_id_is_found_among_other_numbers(text: str) -> None:
    assert parse_submission(text) == TAKEN[text]  # naive: the first or the last number of the text


SUBMIT = "sbatch: error: Batch job submission failed: "
UNSPECIFIED = f"\n{SUBMIT}Unspecified error"
POLICY = f"\n{SUBMIT}Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
CLI_FILTER = "\nsbatch: error: cli_filter plugin terminated with error"
NO_NODE = f"\n{SUBMIT}Requested node configuration is not available"

REFUSED: list[tuple[str, str, str]] = [
    # ---- Slurm's own words
    (f"{SUBMIT}Invalid partition name specified", "permanent", "partition.name"),
    (
        f"sbatch: error: invalid partition specified: gpux\n{SUBMIT}Invalid partition name specified",
        "permanent",
        "partition.name",
    ),
    (f"{SUBMIT}User's group not permitted to use this partition", "permanent", "partition.name"),
    (f"{SUBMIT}Invalid node name specified", "permanent", "partition.name"),
    (f"{SUBMIT}Invalid account or account/partition combination specified", "permanent", "user.account"),
    (f"{SUBMIT}Access/permission denied", "permanent", "user.account"),
    (f"{SUBMIT}Invalid qos specification", "permanent", "user.qos"),
    (f"{SUBMIT}Invalid wckey specification", "permanent", "request.wckey"),
    (f"{SUBMIT}Requested time limit is invalid (missing or exceeds some limit)", "permanent", "partition.max_time"),
    ("sbatch: error: Invalid --time specification", "permanent", "partition.max_time"),
    (f"{SUBMIT}Node count specification invalid", "permanent", "partition.num_nodes"),
    (f"{SUBMIT}More processors requested than permitted", "permanent", "partition.cpus_per_node"),
    (f"{SUBMIT}Requested node configuration is not available", "permanent", "partition.gpus_per_node"),
    (f"sbatch: error: Memory specification can not be satisfied{NO_NODE}", "permanent", "request.memory_gib"),
    (f"sbatch: error: CPU count per node can not be satisfied{NO_NODE}", "permanent", "partition.cpus_per_node"),
    (f"{SUBMIT}Invalid feature specification", "permanent", "partition.constraint"),
    (f"{SUBMIT}Invalid job array specification", "permanent", "limits.array_size"),
    (f"{SUBMIT}Requested reservation is invalid", "permanent", "partition.reservation"),
    (f"{SUBMIT}Access denied to requested reservation", "permanent", "partition.reservation"),
    (f"{SUBMIT}Invalid generic resource (gres) specification", "permanent", "request.gpu"),
    ("sbatch: error: Invalid generic resource (gres) specification", "permanent", "request.gpu"),
    (f"{SUBMIT}Invalid GRES specification (with and without type identification)", "permanent", "request.gpu"),
    (f"{SUBMIT}Invalid Trackable RESource (TRES) specification", "permanent", "request.gpu"),
    ("sbatch: fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.", "permanent", "request.memory"),
    ("sbatch: error: --mem-per-cpu and --mem are mutually exclusive", "permanent", "request.memory"),
    ("sbatch: fatal: --gpus-per-node and --gpus-per-task are mutually exclusive", "permanent", "request.gpu"),
    ("sbatch: unrecognized option '--gpus-per-node=2'\nTry \"sbatch --help\"", "permanent", "request.gpu"),
    ("sbatch: unrecognized option '--wckey=none'", "permanent", "request.wckey"),
    ("sbatch: unrecognized option '--colour'", "permanent", ""),
    ('sbatch: error: Invalid numeric value "abc" for --mem.', "permanent", "request.memory"),
    ("sbatch: error: No cluster 'maple' known by database.", "permanent", "scheduler.cluster"),
    ("sbatch: error: Unable to open file run.sh", "permanent", ""),
    ("bash: line 1: sbatch: command not found", "permanent", "scheduler.kind"),
    (f"{SUBMIT}Job dependency problem", "permanent", ""),
    # ---- limits
    (f"sbatch: error: AssocMaxSubmitJobLimit{POLICY}", "wait", "limits.submit_jobs"),
    (f"sbatch: error: AssocGrpSubmitJobsLimit{POLICY}", "wait", "limits.submit_jobs"),
    (f"sbatch: error: QOSMaxSubmitJobPerUserLimit{POLICY}", "wait", "limits.submit_jobs"),
    (POLICY.strip(), "wait", "limits.submit_jobs"),
    ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying", "wait", "limits.submit_jobs"),
    (f"{SUBMIT}MaxJobCount limit reached", "wait", "limits.submit_jobs"),
    (f"{SUBMIT}Resource temporarily unavailable", "wait", "limits.submit_jobs"),
    (f"{SUBMIT}Rate limit exceeded, please retry momentarily", "wait", ""),
    (f"{SUBMIT}System submissions disabled", "wait", ""),
    (f"sbatch: error: QOSMaxWallDurationPerJobLimit{POLICY}", "permanent", "partition.max_time"),
    (f"sbatch: error: QOSMaxGRESPerUser{POLICY}", "permanent", "user.qos"),
    (f"sbatch: error: QOSMaxNodePerUserLimit{POLICY}", "permanent", "user.qos"),
    (f"sbatch: error: QOSMinGRES{POLICY}", "permanent", "request.gpu"),
    (f"sbatch: error: AssocGrpGRESMinutes{POLICY}", "permanent", "user.account"),
    (f"sbatch: error: AssocGrpMemMinutes{POLICY}", "permanent", "user.account"),
    # ---- the site is in trouble
    (f"{SUBMIT}I/O error writing script/environment to file", "transient", ""),
    (f"{SUBMIT}Unable to contact slurm controller (connect failure)", "transient", ""),
    (f"{SUBMIT}Slurm backup controller in standby mode", "transient", ""),
    (f"{SUBMIT}Required partition not available (inactive or drain)", "transient", "partition.name"),
    (f"{SUBMIT}Required node not available (down, drained or reserved)", "transient", ""),
    (
        f"sbatch: error: Munge encode failed: no access to /run/munge\n{SUBMIT}Protocol authentication error",
        "transient",
        "",
    ),
    ("sbatch: fatal: Could not establish a configuration source", "transient", "environment.keep"),
    # ---- the job may exist
    (f"{SUBMIT}Socket timed out on send/recv operation", "ambiguous", ""),
    (f"{SUBMIT}Zero Bytes were transmitted or received", "ambiguous", ""),
    (f"{SUBMIT}Unable to contact slurm controller (receive failure)", "ambiguous", ""),
    (f"{SUBMIT}Message receive failure", "ambiguous", ""),
    (f"{SUBMIT}Unexpected message received", "ambiguous", ""),
    # ---- rules of a site
    (
        f"sbatch: error: lua: Memory per node cannot be asked for here. Use --mem-per-cpu.{CLI_FILTER}",
        "permanent",
        "request.memory",
    ),
    (f"sbatch: error: Do not specify memory on whole-node partitions.{UNSPECIFIED}", "permanent", "request.memory"),
    (
        f"sbatch: error: No GPU found: jobs without GPUs may not use a GPU partition, partition: h100{UNSPECIFIED}",
        "permanent",
        "request.gpu",
    ),
    (f"sbatch: error: lua: name the GPU type, e.g. --gres=gpu:a100:1{CLI_FILTER}", "permanent", "request.gpu"),
    (f"sbatch: error: ERROR: The number of GPUs is not specified.{UNSPECIFIED}", "permanent", "request.gpu"),
    (
        f"sbatch: error: please use --gpus-per-node and try again\n{SUBMIT}Access/permission denied",
        "permanent",
        "request.gpu",
    ),
    (f"sbatch: error: GPU jobs must go to the gpu partition{UNSPECIFIED}", "permanent", "partition.name"),
    (f"sbatch: error: This cluster requires you to list the partition{UNSPECIFIED}", "permanent", "partition.name"),
    (
        f"sbatch: error: ERROR 1: Invalid project.\nsbatch: error: Use -A to name one{UNSPECIFIED}",
        "permanent",
        "user.account",
    ),
    (f"sbatch: error: job sent to gpu32 without specifying a GPU account{UNSPECIFIED}", "permanent", "user.account"),
    (f"sbatch: error: Your budget is exhausted{UNSPECIFIED}", "permanent", "user.account"),
    (f"sbatch: error: A Quality of Service (QoS) has not been provided{UNSPECIFIED}", "permanent", "user.qos"),
    (f"sbatch: error: job_submit/lua: wckeys are not used here{UNSPECIFIED}", "permanent", "request.wckey"),
    (f"sbatch: error: lua: you must set a walltime{UNSPECIFIED}", "permanent", "partition.max_time"),
    (f"sbatch: error: at most 8 cores per GPU{UNSPECIFIED}", "permanent", "request.cpus_per_gpu"),
    (f"sbatch: error: You have too many jobs queued{UNSPECIFIED}", "wait", "limits.submit_jobs"),
    (f"sbatch: error: Cluster under maintenance until Monday{UNSPECIFIED}", "wait", ""),
    # ---- nobody knows
    (f"{SUBMIT}Unspecified error", "unknown", ""),
    (f"{SUBMIT}Something new in version 31", "unknown", ""),
    ("", "unknown", ""),
]


@pytest.mark.parametrize(("text", "kind", "field"), REFUSED)
def test_a_refusal_is_told_apart(text: str, kind: str, field: str) -> None:
    refusal = classify_refusal(text, 1)
    assert (refusal.kind, refusal.field) == (kind, field)
    assert refusal.evidence
    assert refusal.evidence in text or not text
    assert refusal.fix
    assert is_refusal_text(text) == bool(text)


def test_a_form_that_the_rule_asks_for_is_named() -> None:
    text = f"sbatch: error: lua: Memory per node cannot be asked for here. Use --mem-per-cpu.{CLI_FILTER}"
    assert classify_refusal(text).fix.endswith('set request.memory = "mem-per-cpu"')
    text = f"sbatch: error: lua: name the GPU type, e.g. --gres=gpu:a100:1{CLI_FILTER}"
    assert classify_refusal(text).fix.endswith('set request.gpu = "typed-gres"')


def test_the_last_word_counts_after_a_wait() -> None:
    waited = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n"
    refusal = classify_refusal(f"{waited}{SUBMIT}Invalid qos specification")
    assert (refusal.kind, refusal.field) == ("permanent", "user.qos")


@pytest.mark.parametrize("returncode", [124, 137, -9, -15])
def test_a_command_that_was_ended_may_have_left_a_job(returncode: int) -> None:
    waited = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n"
    assert classify_refusal(waited, returncode).kind == "ambiguous"
    assert classify_refusal("", None, timed_out=True).kind == "ambiguous"


def test_every_field_named_is_one_of_the_site_profile() -> None:
    rows = (*AMBIGUOUS, *PERMANENT, *TRANSIENT, *WAIT)
    fields = {row.field for row in rows} | {field for _, field in OPTIONS} | {field for _, field in SUBJECTS}
    fields |= {re.split(r" = ", setting)[0] for _, setting in WANTED}
    for field in fields - {""}:
        section, _, name = field.partition(".")
        annotation = SiteProfile.model_fields[section].annotation
        model = getattr(annotation, "__args__", (annotation,))[0]  # the partitions are a tuple
        assert name in model.model_fields, field
        assert field in FIXES


@given(st.text(), st.none() | st.integers(-20, 255))
def test_any_text_is_taken(text: str, returncode: int | None) -> None:
    classify_refusal(text, returncode)
    is_refusal_text(text)
    job = parse_submission(text)
    assert job is None or job.number > 0


@given(st.integers(1, 10**10 - 1), st.sampled_from(["", "elm", "oak-2"]), st.text("abc. -\n", max_size=50))
def test_reading_a_written_answer_gives_the_job(number: int, cluster: str, banner: str) -> None:
    plain = f"{banner}\nSubmitted batch job {number}" + (f" on cluster {cluster}" if cluster else "")
    parsable = f"{banner}\n{number}" + (f";{cluster}" if cluster else "")
    assert parse_submission(plain) == parse_submission(parsable) == JobId(number, cluster=cluster)
