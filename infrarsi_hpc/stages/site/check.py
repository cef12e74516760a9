"""Check: send one harmless job through the profile, as a trial would go, and say what does not fit, with its field.

The probe asks for one node in the profile's own forms, looks round (GPUs, Python, scratch, variables that leaked in),
and writes its answers into a folder of the user's; how late they are seen is measured on the way.

Does not cover: several nodes and the fabric between them, speed, other partitions than the chosen one.
"""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from infrarsi_hpc.domain.job import JobId
from infrarsi_hpc.domain.site import Partition, SiteProfile
from infrarsi_hpc.edges.sites import USER_SUFFIX, profile_folders
from infrarsi_hpc.edges.slurm.commands import SlurmCommands, clean_variables
from infrarsi_hpc.edges.slurm.config_text import SINFO_FORMAT
from infrarsi_hpc.edges.slurm.request import JobRequest, partition_of, script
from infrarsi_hpc.edges.slurm.sbatch_text import classify_refusal, parse_submission
from infrarsi_hpc.edges.slurm.wait_reasons import meaning
from infrarsi_hpc.edges.user_folders import cache_folder
from infrarsi_hpc.stages.site.claims import claim_findings, gpu_findings, private_file_findings
from infrarsi_hpc.stages.site.findings import Finding, probe_findings

MAX_RESULT_BYTES = 128 * 1024
_PROBE_SECONDS = 300.0
_ACCOUNTING_SECONDS = 10.0


@dataclass(frozen=True)
class CheckReport:
    """What the check found; `facts` are the probe's own answers."""

    site: str
    partition: str
    findings: tuple[Finding, ...]
    facts: dict[str, str]
    folder: Path

    @property
    def is_good(self) -> bool:
        """Whether nothing stands in a trial's way."""
        return not any(finding.level == "wrong" for finding in self.findings)


def check(
    site: SiteProfile,
    environment: Mapping[str, str],
    home: Path,
    *,
    partition: str = "",
    deadline_seconds: float = 600.0,
    on_progress: Callable[[str], None] = lambda _: None,
) -> CheckReport:
    """Probe a site and report.

    Raises
    ------
    ProfileError
        The profile has no such partition.
    SiteError
        The probe's folder cannot be made, or a value of the profile cannot stand in a job script.
    """
    is_slurm = site.scheduler.kind == "slurm"
    chosen = partition_of(site, partition) if is_slurm else Partition(name="local", max_time="UNLIMITED")
    folder = (
        cache_folder(environment, home)
        / "site-check"
        / f"{site.name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    )
    folder.mkdir(parents=True)
    path = folder / "probe.sh"
    path.write_text(_script(site, chosen, folder), encoding="utf-8")
    probe = _Probe(site, chosen, folder, path, deadline_seconds, on_progress)
    findings, facts = probe.through_slurm() if is_slurm else probe.on_this_machine(environment)
    findings += private_file_findings(profile_folders(environment, home)[0] / f"{site.name}{USER_SUFFIX}")
    if facts:
        findings += probe_findings(site, chosen, facts, environment)
    return CheckReport(site.name, chosen.name if is_slurm else "", tuple(findings), facts, folder)


def _script(site: SiteProfile, partition: Partition, folder: Path) -> str:
    gpus = partition.gpus_per_node if site.request.gpu != "none" else 0
    request = JobRequest(
        name="infrarsi-probe",
        log=folder / "log.txt",
        seconds=_PROBE_SECONDS,
        gpus_per_node=gpus,
        exclusive=site.request.exclusive,
        requeue=False,
        values={
            "result": str(folder / "result"),
            "scratch": site.user.scratch or site.storage.scratch,
            "folders": (str(folder),),
        },
    )
    return script("probe.sbatch.j2", site, partition, request)


@dataclass
class _Probe:
    site: SiteProfile
    partition: Partition
    folder: Path
    script: Path
    deadline_seconds: float
    on_progress: Callable[[str], None]

    def on_this_machine(self, environment: Mapping[str, str]) -> tuple[list[Finding], dict[str, str]]:
        """Run the probe as a child of this process, as trials are run here."""
        try:
            done = subprocess.run(
                ["bash", self.script],
                env=clean_variables(self.site, environment),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=min(self.deadline_seconds, _PROBE_SECONDS),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return [
                Finding("wrong", "the probe did not end in time", "environment.setup", "run its script by hand")
            ], {}
        facts = read_answers(self.folder / "result")
        if facts:
            return [], facts
        said = done.stderr.decode("utf-8", "replace").strip()[-300:]
        return [Finding("wrong", f"the probe wrote no answers: {said}", "environment.setup", f"bash {self.script}")], {}

    def through_slurm(self) -> tuple[list[Finding], dict[str, str]]:
        """Submit the probe, wait for its answers, and ask accounting about it."""
        commands = SlurmCommands(self.site)
        answer = commands.run("sbatch", str(self.script))
        job = parse_submission(answer.stdout) if answer.is_good else None
        if job is None:
            timed_out = answer.returncode is None
            refusal = classify_refusal(answer.stderr or answer.stdout, answer.returncode, timed_out=timed_out)
            said = refusal.evidence or "sbatch said nothing"
            if "node configuration" in said:
                sinfo = commands.run("sinfo", f"--partition={self.partition.name}", f"--format={SINFO_FORMAT}")
                if found := gpu_findings(self.site, self.partition, sinfo.stdout):
                    return found, {}
            return [Finding("wrong", f"the job is not accepted: {said}", refusal.field, refusal.fix)], {}
        self.on_progress(f"job {job} is submitted to {self.partition.name}")
        config, partition = (
            commands.run("scontrol", "show", *what).stdout
            for what in (["config"], ["partition", self.partition.name, "-o"])
        )
        findings = claim_findings(self.site, self.partition, config, partition)
        facts = self._wait(commands, job, findings)
        if facts:
            findings += self._accounting(commands, job)
        return findings, facts

    def _wait(self, commands: SlurmCommands, job: JobId, findings: list[Finding]) -> dict[str, str]:
        """Answers of the probe as soon as they can be seen; the reason why there are none goes to `findings`."""
        result, grace = self.folder / "result", self.site.storage.result_grace_seconds
        end = time.monotonic() + self.deadline_seconds
        next_look, gone_since, state = 0.0, None, ""
        while True:
            if facts := read_answers(result):
                findings += _visibility(facts, time.time(), gone_since is not None, grace)
                return facts
            now = time.monotonic()
            if now >= next_look:
                seen, state_now = _state(commands, job)
                if state_now and state_now != state:
                    self.on_progress(f"job {job}: {state_now}")
                state = state_now or state
                gone_since = None if seen is not False else gone_since or now
                next_look = now + max(1.0, self.site.limits.poll_seconds)
            if gone_since is not None and now - gone_since > grace:
                findings.append(self._no_answers(state))
                return {}
            if now >= end:
                commands.run("scancel", str(job), cluster=job.cluster)
                findings.append(_never_ran(state, self.deadline_seconds))
                return {}
            time.sleep(0.2)

    def _no_answers(self, state: str) -> Finding:
        log = self.folder / "log.txt"
        try:
            with open(log, "rb") as file:
                tail = file.read(MAX_RESULT_BYTES)[-400:].decode("utf-8", "replace").strip()
        except OSError:
            what = f"the job ended ({state or 'no state seen'}) and left neither answers nor a log in {self.folder}"
            fix = "the nodes do not see this folder: work below one that they share with the login node"
            return Finding("wrong", what, "storage.result_grace_seconds", fix)
        what = f"the job ended ({state or 'no state seen'}) without answers; its log ends with: {tail or 'nothing'}"
        return Finding("wrong", what, "environment.setup", f"see {log}, and correct the line that failed")

    def _accounting(self, commands: SlurmCommands, job: JobId) -> list[Finding]:
        field, believed = "scheduler.has_accounting", self.site.scheduler.has_accounting
        end = time.monotonic() + _ACCOUNTING_SECONDS
        while True:
            answer = commands.run(
                "sacct", "-j", str(job), "--noheader", "--parsable2", "--format=State", cluster=job.cluster
            )
            if answer.is_good and answer.stdout.strip():
                if believed is False:
                    return [Finding("note", "sacct answers, and the profile says it does not", field, "set it to true")]
                return [Finding("good", "sacct answers", field)]
            if "disabled" in answer.stderr + answer.stdout or time.monotonic() >= end:
                said = (answer.stderr.strip() or "no row of the job").splitlines()[0][:200]
                if believed:
                    return [Finding("wrong", f"sacct does not answer: {said}", field, "set it to false")]
                note = f"sacct does not answer ({said}): squeue and result files decide alone"
                return [Finding("note", note, field, "" if believed is False else "set it to false")]
            time.sleep(0.5)


def read_answers(path: Path) -> dict[str, str]:
    """The probe's answers by name; empty while they are not whole."""
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_RESULT_BYTES).decode("utf-8", "replace")
    except OSError:
        return {}
    facts = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {name: value.strip() for name, value in facts.items()} if "written" in facts else {}


def _state(commands: SlurmCommands, job: JobId) -> tuple[bool | None, str]:
    """Whether the job is in the queue (none: nobody answered), and its state with the reason."""
    answer = commands.run("squeue", "-h", "-j", str(job), "-o", "%T %r", cluster=job.cluster)
    if answer.is_good:
        line = answer.stdout.strip().removesuffix(" None")  # squeue's word for: no reason yet
        return bool(line) and not line.startswith(("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")), line
    return (False, "") if "Invalid job id" in answer.stderr else (None, "")


def _visibility(facts: Mapping[str, str], seen_at: float, job_was_gone: bool, grace: float) -> list[Finding]:
    """How late the answers were seen, by the node's clock and ours."""
    try:
        late = seen_at - float(facts["written"])
    except ValueError:
        return []
    field = "storage.result_grace_seconds"
    if late < -2:
        what = f"the node's clock is {-late:.0f} s ahead of this one: how late results are seen cannot be told"
        return [Finding("note", what, field, "tell the site: clocks should agree")]
    late = max(0.0, late)
    after = ", after the job had left the queue" if job_was_gone else ""
    if late > grace / 2:
        fix = f"set it to {max(30, round(4 * late))}"
        return [Finding("wrong", f"a result is seen {late:.1f} s after it was written{after}", field, fix)]
    return [Finding("good", f"a result is seen {late:.1f} s after it was written{after}", field)]


def _never_ran(state: str, waited: float) -> Finding:
    """A job that still waits at the deadline: by its reason, wrong or only late."""
    word, _, reason = state.partition(" ")
    fields = {
        "PartitionTimeLimit": ("partition.max_time", "the partition's limit is shorter than the profile says"),
        "PartitionNodeLimit": ("partition.num_nodes", "more nodes than the partition gives"),
        "PartitionConfig": ("partition.name", "the partition cannot run such a job"),
        "BadConstraints": ("partition.constraint", "no node has what is asked for"),
        "InvalidAccount": ("user.account", "the account may not be used here"),
        "InvalidQOS": ("user.qos", "the QOS may not be used here"),
        "Reservation": ("partition.reservation", "the reservation is not active, or not yours"),
    }
    hit = next((value for name, value in fields.items() if reason.strip("()").startswith(name)), None)
    if hit is None and reason.startswith(("Assoc", "QOS")):
        hit = ("user.qos", "a limit of the account or QOS holds it back")
    what = f"the probe did not end within {waited:.0f} s; it was {state or 'never seen in the queue'}, and is cancelled"
    if hit is not None:
        return Finding("wrong", what, hit[0], hit[1])
    fix = f"{meaning(reason).words}: try again with --wait, or another --partition"
    finding = Finding("wrong", what, "", fix)
    return finding if word != "RUNNING" else replace(finding, field="environment.setup", fix="a setup line hangs")
