"""What tools/slurm-testbed writes for its daemons: the cluster's shape, and what differs between testbeds."""

from __future__ import annotations

import getpass
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template

NODES = ("h100-0", "h100-1", "a100-0", "a100-1")
PORT_OFFSETS = (0, 1, 2, 10, 11, 12, 13)  # controller, slurmdbd, MariaDB, one for each node

#: Files below etc/. Times are short for quick tests: a real cluster takes minutes where this one takes seconds.
CONFIGURATION = {
    "slurm.conf": """\
ClusterName=testbed
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$port0
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$base/munge/socket,cred_expire=10
StateSaveLocation=$base/state
SlurmdSpoolDir=$base/spool/%n
SlurmctldPidFile=$base/run/slurmctld.pid
SlurmdPidFile=$base/run/slurmd.%n.pid
SlurmctldLogFile=$base/log/slurmctld.log
SlurmdLogFile=$base/log/slurmd.%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
MailProg=/bin/true
MpiDefault=none
SwitchType=switch/none
JobCompType=jobcomp/none
PropagateResourceLimitsExcept=ALL
ProctrackType=proctrack/linuxproc
TaskPlugin=$task_plugin
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=$over_memory
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
PriorityType=priority/basic
EnforcePartLimits=ALL
JobRequeue=1
ReturnToService=1
MaxArraySize=$max_array_size
MaxJobCount=5000
MinJobAge=300
SchedulerType=sched/backfill
SchedulerParameters=$scheduling
BatchStartTimeout=10
MessageTimeout=10
SlurmctldTimeout=10
SlurmdTimeout=10
TCPTimeout=2
CompleteWait=0
EpilogMsgTime=0
InactiveLimit=0
KillWait=3
$accounting_client
GresTypes=gpu
NodeName=DEFAULT CPUs=4 Boards=1 SocketsPerBoard=1 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=4000 State=UNKNOWN
NodeName=h100-[0-1] NodeHostname=localhost NodeAddr=$address_h100 Port=[$port10-$port11] Gres=gpu:h100:2 Feature=h100
NodeName=a100-[0-1] NodeHostname=localhost NodeAddr=$address_a100 Port=[$port12-$port13] Gres=gpu:a100:2 Feature=a100
PartitionName=DEFAULT State=UP DefMemPerCPU=500 DefaultTime=10 MaxTime=60 PriorityTier=10 PreemptMode=OFF
PartitionName=h100 Nodes=h100-[0-1] Default=YES
PartitionName=a100 Nodes=a100-[0-1]
PartitionName=all Nodes=h100-[0-1],a100-[0-1]
PartitionName=low Nodes=h100-[0-1],a100-[0-1] PriorityTier=1 PreemptMode=REQUEUE GraceTime=$grace_seconds
PartitionName=lowc Nodes=h100-[0-1],a100-[0-1] PriorityTier=1 PreemptMode=CANCEL GraceTime=$grace_seconds
PartitionName=vip Nodes=h100-[0-1] AllowAccounts=vip
""",
    "gres.conf": """\
AutoDetect=off
NodeName=h100-[0-1] Name=gpu Type=h100 File=$base/gpu/h100-[0-1]
NodeName=a100-[0-1] Name=gpu Type=a100 File=$base/gpu/a100-[0-1]
""",
    "cgroup.conf": """\
CgroupPlugin=cgroup/v1
CgroupAutomount=no
CgroupMountpoint=$base/cgroup
ConstrainCores=no
ConstrainDevices=no
ConstrainRAMSpace=$enforced
ConstrainSwapSpace=$enforced
AllowedSwapSpace=0
""",
    "slurmdbd.conf": """\
AuthType=auth/munge
AuthInfo=socket=$base/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=$port1
SlurmUser=$user
PidFile=$base/run/slurmdbd.pid
LogFile=$base/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$port2
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
""",
}
SCHEDULING = (
    "sched_interval=2,sched_min_interval=0,batch_sched_delay=0,bf_interval=1,"
    "default_queue_depth=1000,partition_job_depth=1000"
)
NO_ACCOUNTING = "AccountingStorageType=accounting_storage/none"
DBD_ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$port1
AccountingStoragePass=$base/munge/socket
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu,gres/gpu:h100,gres/gpu:a100
AccountingStoreFlags=job_comment,job_script"""


@dataclass(frozen=True)
class Settings:
    """What `up` fixed for one testbed; kept in its folder for the other commands."""

    port_base: int
    accounting: str
    grace_seconds: int
    max_array_size: int
    memory_cgroup: str | None
    own_hostnames: bool


def write_configuration(base: Path, settings: Settings) -> None:
    """Make the folders, links and files of a testbed in `base`; files that are there are written anew."""
    for folder in ("etc", "log", "run", "state", "gpu", "sql/tmp", "munge", "cgroup", *(f"spool/{n}" for n in NODES)):
        (base / folder).mkdir(parents=True, exist_ok=True)
        (base / folder).chmod(0o755)
    links = {f"gpu/{gpu}-{index}": "/dev/null" for gpu in ("h100", "a100") for index in (0, 1)}  # must be devices
    links |= {"cgroup/memory": settings.memory_cgroup} if settings.memory_cgroup else {}
    for name, target in links.items():
        (base / name).unlink(missing_ok=True)
        (base / name).symlink_to(target)
    if not (base / "munge" / "key").exists():
        write_private(base / "munge" / "key", os.urandom(128))
    enforced = settings.memory_cgroup is not None
    words = asdict(settings) | {f"port{offset}": settings.port_base + offset for offset in PORT_OFFSETS}
    words |= {"base": base, "user": getpass.getuser(), "scheduling": SCHEDULING, "accounting_client": NO_ACCOUNTING}
    words |= {"address_h100": "127.0.1.[1-2]", "address_a100": "127.0.1.[3-4]"}
    if not settings.own_hostnames:
        words |= {"address_h100": "127.0.0.1", "address_a100": "127.0.0.1"}
    # slurmd refuses to start with both ways of ending a job that is over its memory
    words["enforced"] = "yes" if enforced else "no"
    words["task_plugin"] = "task/cgroup" if enforced else "task/none"
    words["over_memory"] = "NoOverMemoryKill" if enforced else "OverMemoryKill"
    if settings.accounting == "dbd":
        words["accounting_client"] = Template(DBD_ACCOUNTING).substitute(words)
    for name, text in CONFIGURATION.items():
        written = Template(text).substitute(words).encode()
        if name == "slurmdbd.conf":
            write_private(base / "etc" / name, written)
        else:
            (base / "etc" / name).write_bytes(written)


def write_private(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)  # munged and slurmdbd refuse what others can read
    path.write_bytes(data)
