"""Why sbatch refused, as a table: words, what to do about it, and the field of the site profile that is wrong.

Sources: Slurm's own error texts (slurm_errno.c) and sbatch's checks before it asks the controller; what sites' own
plugins say is in `site_rules`. Rows are tried in order; the first that matches any line decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["permanent", "wait", "transient", "ambiguous", "unknown"]


@dataclass(frozen=True)
class Row:
    """One refusal: `words` is a regular expression, `field` a site-profile field (empty: none is to blame)."""

    words: re.Pattern[str]
    kind: Kind
    field: str
    fix: str


#: What to do about a field of the site profile, where a row says nothing more precise.
FIXES = {
    "environment.keep": "check that SLURM_CONF is set and kept: environment.keep",
    "limits.array_size": "lower limits.array_size to MaxArraySize of `scontrol show config` (highest index: one less)",
    "limits.submit_jobs": "wait until jobs have ended; limits.submit_jobs keeps the head below the site's limit",
    "launch.image": "correct launch.image, or the site's name for its container option",
    "partition.constraint": "correct partition.constraint to a feature that `sinfo -o %f` lists",
    "partition.cpus_per_node": "lower the CPUs asked for: partition.cpus_per_node or request.cpus_per_gpu",
    "partition.gpus_per_node": "compare partition.gpus_per_node and partition.gpu_type with `sinfo -o '%P %G'`",
    "partition.max_time": "set partition.max_time to what `sinfo -o '%P %l'` shows, or use a QOS that allows more",
    "partition.name": "correct partition.name (or user.partition) to one that `sinfo -o %P` lists and you may use",
    "partition.num_nodes": "lower partition.num_nodes to what the partition allows a job",
    "partition.reservation": "correct or remove partition.reservation or user.reservation (`scontrol show res`)",
    "request.cpus_per_gpu": "set request.cpus_per_gpu to what the site wants for each GPU",
    "request.exclusive": "set request.exclusive to what the partition allows",
    "request.gpu": "choose another request.gpu (gres, typed-gres, gpus-per-node, ...) or correct partition.gpu_type",
    "request.memory": "choose another form in request.memory (mem, mem-per-cpu, mem-per-gpu or none)",
    "request.memory_gib": "lower request.memory_gib to what a node has",
    "request.wckey": "leave request.wckey empty, so that none is sent, or name one that the site knows",
    "scheduler.cluster": "correct scheduler.cluster to a name that `sacctmgr show clusters` lists",
    "scheduler.kind": "load Slurm's commands in this shell, or set scheduler.kind to local",
    "storage.scratch": "free some space, or move storage.scratch and the campaign's folder",
    "user.account": "set user.account to one that `sacctmgr show associations user=$USER` lists for this partition",
    "user.mail_user": "correct user.mail_user",
    "user.qos": "set user.qos to one that your association and the partition allow (`sacctmgr show associations`)",
    "": "",
}


def _row(words: str, kind: Kind, field: str = "", fix: str = "") -> Row:
    return Row(re.compile(words, re.IGNORECASE), kind, field, fix or FIXES[field])


_LOOK_FIRST = "look for the job by its unique name and comment before any other try: adopt it, never send it twice"
_ALERT = (
    "tried again later; if it stays so, tell the site's administrators: the controller's disk or spool is in trouble"
)
_AGAIN = "tried again later; the controller or the network is away"

#: The job may have been taken although sbatch failed: the request was sent and the reply was lost.
AMBIGUOUS = (
    _row(
        r"timed out on send/recv|zero bytes were transmitted|message (?:receive|send) failure|"
        r"controller \((?:send|receive|shutdown) failure\)|timed out (?:reading|writing)|"
        r"unexpected message received|insane message length|header lengths are longer|communication shutdown failure|"
        r"kernel reported delayed socket error|connection reset by peer|broken pipe|duplicate job id|"
        r"connection closed by .{0,40}controller|forced closed by quiesce",
        "ambiguous",
        fix=_LOOK_FIRST,
    ),
    _row(
        r"no answer within|killed by (?:our|a) time-?out|command timed out|\btimeoutexpired\b",
        "ambiguous",
        fix=_LOOK_FIRST,
    ),
)

#: Limits that pass when other jobs end.
WAIT = (
    _row(
        r"(?:QOS|Assoc)\w*Submit\w*|Max_?Submit_?Jobs?|(?:QOS|Assoc)\w*Jobs\w*Limit|"
        r"submit(?:ted)? job limit|MaxJobCount|job submit limit|temporarily unable to accept|"
        r"job queue full|resource temporarily unavailable|too many jobs|(?:max(?:imum)?|limit) (?:number )?of "
        r"(?:submitted |queued |running |active )?jobs|jobs? limit (?:is )?reached",
        "wait",
        "limits.submit_jobs",
        "wait until jobs have ended; limits.submit_jobs keeps the head below the limit. If none are queued, "
        "user.account is not allowed in this partition",
    ),
    _row(r"rate limit exceeded", "wait", fix="ask less often: limits.poll_seconds"),
    _row(
        r"submissions disabled|under(?:going)? maintenance|maintenance reservation",
        "wait",
        fix="wait for the maintenance to end",
    ),
)

#: Trouble of the site's that has nothing to do with what was asked.
TRANSIENT = (
    _row(
        r"munge|authentication (?:error|credential)|invalid authentication|credential expired|"
        r"error generating job credential",
        "transient",
        fix="tried again later; if it stays so, munge does not run on this machine or its clock is wrong",
    ),
    _row(
        r"I/O error writing script|no space left on device|input/output error",
        "transient",
        fix=_ALERT,
    ),
    _row(
        r"unable to contact slurm controller|connect(?:ion)? (?:failure|refused)|connection timed out|"
        r"timed out establishing|communication connection failure|backup controller in standby|in standby mode|"
        r"socket|network is unreachable|no route to host|name or service not known|failure in name resolution|"
        r"shutting down|try again later|slurm_persist_conn|slurm internal error",
        "transient",
        fix=_AGAIN,
    ),
    _row(
        r"could not establish a configuration source|unable to process configuration file|"
        r"resolve_ctls_from_dns|slurm\.conf.*no such file",
        "transient",
        "environment.keep",
    ),
    _row(
        r"required partition not available|partition in down state|partition configuration not available now",
        "transient",
        "partition.name",
        "tried again later; if it stays drained, choose another partition.name",
    ),
    _row(
        r"required node not available|requested nodes are busy|licenses currently unavailable",
        "transient",
        fix="tried again later",
    ),
)

#: What this request will never be granted.
PERMANENT = (
    _row(r"over (?:your |its )?(?:disk )?quota|quota (?:is )?exceeded", "permanent", "storage.scratch"),
    _row(
        r"(?:QOS|Assoc)Grp\w*(?:Minutes|RunMinutes|Billing)\w*|breached requested QOS usage threshold",
        "permanent",
        "user.account",
        "the allocation of user.account is used up: name another account",
    ),
    _row(r"wckey", "permanent", "request.wckey"),
    _row(r"mem[\w-]*.{0,60}mutually exclusive", "permanent", "request.memory"),
    _row(r"mutually exclusive.{0,60}\bmem", "permanent", "request.memory"),
    _row(r"gpu[\w-]*.{0,80}mutually exclusive|mutually exclusive.{0,80}gpu", "permanent", "request.gpu"),
    _row(
        r"min tres\(gres/gpu|(?:QOS|Assoc)MinGRES|QOSMinGRES",
        "permanent",
        "request.gpu",
        "this QOS wants GPUs: correct request.gpu",
    ),
    _row(r"(?:QOS|Assoc)(?:Grp|Max)\w*(?:Wall|Time)\w*", "permanent", "partition.max_time"),
    _row(
        r"(?:QOS|Assoc)(?:Grp|Max)\w*(?:Mem)\w*",
        "permanent",
        "request.memory_gib",
        "lower request.memory_gib, or choose another user.qos",
    ),
    _row(
        r"(?:QOS|Assoc)(?:Grp|Max|Min)\w*(?:GRES|Cpu|Node|TRES)\w*",
        "permanent",
        "user.qos",
        "the job is larger than the QOS allows: choose another user.qos, or fewer nodes and GPUs",
    ),
    _row(r"invalid account|invalid or unknown association|account/partition combination", "permanent", "user.account"),
    _row(
        r"access/permission denied",
        "permanent",
        "user.account",
        "check that user.account and partition.name are yours to use",
    ),
    _row(r"invalid qos", "permanent", "user.qos"),
    _row(
        r"invalid partition|requested nodes not in this partition|no partition specified|"
        r"not permitted to use this partition",
        "permanent",
        "partition.name",
    ),
    _row(
        r"requested time limit|invalid --?time|invalid time (?:limit|specified)|time-min specification",
        "permanent",
        "partition.max_time",
    ),
    _row(r"memory specification can ?not be satisfied|memory required by task", "permanent", "request.memory_gib"),
    _row(r"invalid --mem|invalid memory (?:constraint|specification)", "permanent", "request.memory"),
    _row(
        r"node count specification|invalid node count|more nodes requested|too many nodes",
        "permanent",
        "partition.num_nodes",
    ),
    _row(
        r"more processors requested|cpu count|task count specification|cpus? per (?:node|task)",
        "permanent",
        "partition.cpus_per_node",
    ),
    _row(
        r"invalid generic resource|invalid gres|duplicate generic resource|unsupported_gres|GRES option unsupported|"
        r"trackable resource|--(?:gpus|gres)\S* .{0,40}(?:invalid|requires|must)|invalid --?(?:gres|gpus)",
        "permanent",
        "request.gpu",
        "choose another request.gpu (gres, typed-gres, gpus-per-node, ...), and compare partition.gpu_type and "
        "partition.gpus_per_node with `sinfo -o '%P %G'`",
    ),
    _row(r"restrictedcorespergpu", "permanent", "request.cpus_per_gpu"),
    _row(
        r"invalid (?:preferred )?feature|batch option is invalid|multiple constraint",
        "permanent",
        "partition.constraint",
    ),
    _row(r"invalid job array|array index|invalid array", "permanent", "limits.array_size"),
    _row(
        r"requested reservation|invalid reservation|reservation .{0,40}(?:invalid|denied|found)",
        "permanent",
        "partition.reservation",
    ),
    _row(
        r"requested node configuration is not available",
        "permanent",
        "partition.gpus_per_node",
        "no node has all of it: compare partition.gpus_per_node, cpus_per_node, constraint and request.memory_gib with "
        "`sinfo -N -o '%P %G %c %m %f'`",
    ),
    _row(r"invalid node name", "permanent", "partition.name"),
    _row(
        r"invalid cluster|no cluster .{0,80}known|is not a (?:known|valid) cluster|can't reach cluster|cluster name",
        "permanent",
        "scheduler.cluster",
    ),
    _row(r"invalid .{0,20}mail|--?mail-(?:type|user)", "permanent", "user.mail_user"),
    _row(
        r"incompatible versions",
        "permanent",
        "environment.keep",
        "these commands and the controller are of different Slurm versions: load the cluster's own",
    ),
    _row(
        r"(?:sbatch|srun)\W+(?:command )?not found|no such file or directory:? .?sbatch", "permanent", "scheduler.kind"
    ),
    _row(
        r"unable to open (?:file|batch)|batch script (?:contains|empty|is empty)|DOS line breaks|exec format|"
        r"not look like a batch script|pathname .{0,60}too long|current working directory|chdir",
        "permanent",
        fix="the job script or its folder cannot be used; see the line",
    ),
    _row(r"invalid (?:user|group) id", "permanent", "user.account"),
    _row(
        r"dependency problem|circular job dependency|--dependency",
        "permanent",
        fix="the job that this one waits for cannot be named so",
    ),
)
