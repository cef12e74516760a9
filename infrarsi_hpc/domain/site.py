"""A site profile: what one machine or cluster offers and demands, in one model.

The shared part (`site_profiles/NAME.toml`, or `NAME.toml` in the user's own folder) travels between people; what is a
person's own stands in `[user]`, kept in a second file (`NAME.user.toml`) that is never exported.

Covers: types, ranges, unknown keys, characters that could leave their line in a job script.
Does not cover: whether the cluster really is so; `infrarsi site check` asks it.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

SCHEMA_VERSION = 1

#: Characters that leave their line, or show a reader another text than the one that runs: control characters, Unicode's
#: line ends, invisible and direction-changing ones.
_UNSEEN = r"\x00-\x1f\x7f-\x9f\x{200b}-\x{200f}\x{2028}-\x{202e}\x{2060}-\x{2069}\x{feff}"
_ONE_LINE = rf"^[^{_UNSEEN}]*$"
_VARIABLE = r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})"

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
#: A word of Slurm's: a partition, account, QOS, feature, cluster or reservation.
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:+-]{0,99}$")]
OptionalWord = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9][A-Za-z0-9_.:+-]{0,99})?$")]
#: One shell line that stays one line wherever it is written, and reads as it runs.
Line = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=_ONE_LINE)]
Text = Annotated[str, StringConstraints(max_length=2000)]
#: An absolute path, which may use `$NAME` of the job's environment and nothing else of the shell; empty: none.
Folder = Annotated[
    str, StringConstraints(pattern=rf"^((?:/|{_VARIABLE})(?:[\w.,+@%=:/ ~-]|{_VARIABLE})*)?$", max_length=300)
]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]
#: A variable's name, or the beginning of names followed by `*`.
VariablePattern = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}\*?$")]
VariableValue = Annotated[str, StringConstraints(max_length=1000, pattern=_ONE_LINE)]
_TIME = re.compile(r"(?:(\d{1,4})-)?(\d{1,3})(?::(\d{1,2}))?(?::(\d{1,2}))?\Z", re.ASCII)


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def parse_time_limit(text: str) -> int | None:
    """Seconds of one of Slurm's time limits; none for UNLIMITED.

    Raises
    ------
    ValueError
        It is no such limit.

    Notes
    -----
    sbatch(1), --time: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes and
    days-hours:minutes:seconds.
    """
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return None
    match = _TIME.match(text)
    if match is None:
        raise ValueError(f"{text!r} is no time limit: write 90, 30:00, 12:30:00 or 2-00:00:00")
    days, *rest = match.groups()
    parts = [int(part) for part in rest if part is not None]
    if days is not None:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        return ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds
    if len(parts) == 3:
        return (parts[0] * 60 + parts[1]) * 60 + parts[2]
    return parts[0] * 60 + (parts[1] if len(parts) == 2 else 0)


def format_time_limit(seconds: float) -> str:
    """A time limit as Slurm reads it, rounded up to a whole second: `D-HH:MM:SS`, or `HH:MM:SS` below a day."""
    whole = max(1, int(-(-seconds // 1)))
    days, rest = divmod(whole, 86400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


class Scheduler(_Section):
    """Who starts trials: this machine itself, or Slurm."""

    kind: Literal["local", "slurm"] = "local"
    #: Name of the cluster; where several share one login node, every command is told (`-M`).
    cluster: OptionalWord = ""
    #: Whether commands must name the cluster.
    names_cluster: bool = False
    login_host: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.-]{0,253}$")] = ""
    #: Folder of sbatch, squeue and the others where they are not on PATH.
    bin: Folder = ""
    #: Whether sacct answers; none: asked when first needed.
    has_accounting: bool | None = None
    #: Whether a job that lost its node or was preempted starts again by itself.
    requeue: bool = True


class Partition(_Section):
    """A partition, and what a node of it has."""

    name: Word
    #: Type in `--gres=gpu:TYPE:N`; empty where GPUs have none.
    gpu_type: OptionalWord = ""
    #: Product names as nvidia-smi prints them: what the device key is made of.
    gpu_names: tuple[Line, ...] = ()
    gpu_memory_gib: float | None = Field(default=None, gt=0, le=10_000)
    gpus_per_node: int = Field(default=0, ge=0, le=64)
    cpus_per_node: int | None = Field(default=None, ge=1, le=10_000)
    memory_gib_per_node: float | None = Field(default=None, gt=0, le=1_000_000)
    num_nodes: int | None = Field(default=None, ge=1, le=1_000_000)
    #: Slurm's form: 30, 12:30:00, 2-00:00:00 or UNLIMITED.
    max_time: str = "UNLIMITED"
    qos: tuple[Word, ...] = ()
    #: `--constraint` of this partition's nodes.
    constraint: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.&|()\[\]*-]{0,200}$")] = ""
    reservation: OptionalWord = ""
    #: Links between the GPUs of a node, and between nodes.
    intranode: OptionalWord = ""
    internode: OptionalWord = ""
    is_default: bool = False
    #: Nodes that are one machine in truth (a test cluster): timed trials run one at a time, speeds are not compared.
    shares_host: bool = False

    @field_validator("max_time")
    @classmethod
    def _is_time(cls, value: str) -> str:
        parse_time_limit(value)
        return value

    @property
    def max_seconds(self) -> int | None:
        """The time limit in seconds; none without one."""
        return parse_time_limit(self.max_time)


class Request(_Section):
    """Which one of its forms the site wants for GPUs and for memory."""

    gpu: Literal["gres", "typed-gres", "gpus-per-node", "gpus-per-task", "constraint", "none"] = "gres"
    memory: Literal["mem", "mem-per-cpu", "mem-per-gpu", "none"] = "mem"
    #: GiB of host memory for a trial's node; none: the whole node's.
    memory_gib: float | None = Field(default=None, gt=0, le=1_000_000)
    #: Timed trials own their host.
    exclusive: bool = True
    cpus_per_gpu: int | None = Field(default=None, ge=1, le=1000)
    #: submitit's default would send one; sites without wckeys refuse it.
    wckey: OptionalWord = ""


class Environment(_Section):
    """How a job's environment is made: shell lines, and variables kept, removed and set."""

    setup: tuple[Line, ...] = ()
    #: Kept although `scrub` names them.
    keep: tuple[VariablePattern, ...] = ("SLURM_CONF",)
    #: Removed before a job is submitted: a head inside a job would hand its own job's variables on.
    scrub: tuple[VariablePattern, ...] = ("SLURM_*", "SBATCH_*", "SRUN_*", "SALLOC_*", "PMI*", "PMIX_*")
    variables: dict[VariableName, VariableValue] = {}


class Launch(_Section):
    """Where the Python of a job comes from, and what starts it on the nodes."""

    #: `python`: the one that runs infrarsi; `venv`: that of `venv`; else inside a container.
    kind: Literal["python", "venv", "apptainer", "pyxis"] = "python"
    venv: Folder = ""
    #: A path, or for pyxis also `registry#image:tag`.
    image: Annotated[str, StringConstraints(max_length=500, pattern=_ONE_LINE)] = ""
    #: `SOURCE:TARGET` or `PATH`, visible inside the container beside the project and the campaign's folder.
    mounts: tuple[Line, ...] = ()
    #: Command inside the container's Python; empty: `python3`.
    python: Annotated[str, StringConstraints(max_length=300, pattern=_ONE_LINE)] = ""
    srun_options: tuple[Line, ...] = ()

    @model_validator(mode="after")
    def _has_its_place(self) -> Launch:
        if self.kind == "venv" and not self.venv:
            raise ValueError('kind = "venv" needs venv, the folder of the virtual environment')
        if self.kind in ("apptainer", "pyxis") and not self.image:
            raise ValueError(f'kind = "{self.kind}" needs image')
        return self


class Fabric(_Section):
    """The network between nodes: variables of NCCL, UCX, gloo and libfabric."""

    name: OptionalWord = ""
    variables: dict[VariableName, VariableValue] = {}


class Storage(_Section):
    """Where private copies of the code and temporary files go; empty: the system's temporary folder."""

    scratch: Folder = ""
    tmpdir: Folder = ""
    #: A result may be seen this long after its job has ended (NFS attribute caches, Lustre).
    result_grace_seconds: float = Field(default=90.0, ge=0, le=3600)


class SiteLimits(_Section):
    """How often the head looks, and what the site accepts."""

    #: First interval between two looks at running trials; it grows up to `poll_seconds_max` while nothing changes.
    poll_seconds: float = Field(default=0.2, ge=0.05, le=3600)
    poll_seconds_max: float = Field(default=60.0, ge=0.05, le=3600)
    #: Tasks of one array (MaxArraySize: the highest index is one less).
    array_size: int = Field(default=1000, ge=1, le=4_000_000)
    #: Jobs that a user may have submitted at a time, array tasks counted one by one; none: no limit known.
    submit_jobs: int | None = Field(default=None, ge=1, le=10_000_000)
    #: Array tasks that run at a time; none: as many as fit.
    throttle: int | None = Field(default=None, ge=1, le=100_000)
    #: A command of the scheduler's that does not answer in this time is not waited for.
    command_seconds: float = Field(default=30.0, ge=1, le=600)


class LoginNode(_Section):
    """What the site allows on its login nodes."""

    allows_model_server: bool = False
    #: Partition for the head as a job, where those for trials refuse jobs without GPUs; empty: the trials' own.
    head_partition: OptionalWord = ""
    #: Resident memory of the head at most.
    memory_mib: int = Field(default=512, ge=64, le=1_000_000)
    #: Longest life of a process there; none: no limit known. The head then runs as a job.
    process_minutes: int | None = Field(default=None, ge=1, le=1_000_000)
    #: argv that sends a mail's text on standard input; `{subject}` and `{to}` are filled in. Empty: Slurm's own mail.
    mail_command: tuple[Line, ...] = ()


class User(_Section):
    """What is a person's own: kept in a second file, never exported."""

    account: OptionalWord = ""
    qos: OptionalWord = ""
    partition: OptionalWord = ""
    reservation: OptionalWord = ""
    mail_user: Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,190})?$")] = ""
    scratch: Folder = ""


class UserPart(_Section):
    """The second file, `NAME.user.toml`: what wins over the first one's `[user]`, key by key."""

    schema_version: Literal[1]
    user: User = User()


class Notes(_Section):
    """Free text for people; no part of a job, and never exported."""

    comment: Text = ""


class SiteProfile(_Section):
    """A site profile with its user's part merged in."""

    schema_version: Literal[1]
    name: Name
    description: Annotated[str, StringConstraints(max_length=300, pattern=_ONE_LINE)] = ""
    scheduler: Scheduler = Scheduler()
    partition: tuple[Partition, ...] = ()
    request: Request = Request()
    environment: Environment = Environment()
    launch: Launch = Launch()
    fabric: Fabric = Fabric()
    storage: Storage = Storage()
    limits: SiteLimits = SiteLimits()
    login_node: LoginNode = LoginNode()
    user: User = User()
    notes: Notes = Notes()

    @model_validator(mode="after")
    def _partitions_are_told_apart(self) -> SiteProfile:
        names = [p.name for p in self.partition]
        if len(set(names)) != len(names):
            raise ValueError("two partitions have the same name")
        if sum(p.is_default for p in self.partition) > 1:
            raise ValueError("more than one partition is the default")
        if self.login_node.head_partition and self.login_node.head_partition not in names:
            raise ValueError("login_node.head_partition is none of the partitions")
        if self.scheduler.kind == "slurm" and not self.partition:
            raise ValueError('scheduler.kind = "slurm" needs at least one [[partition]]')
        return self

    def chosen_partition(self, name: str = "") -> Partition | None:
        """The partition of that name; without one the user's, the default, or the first. None: there is none such."""
        wanted = name or self.user.partition
        if wanted:
            return next((p for p in self.partition if p.name == wanted), None)
        return next((p for p in self.partition if p.is_default), self.partition[0] if self.partition else None)
