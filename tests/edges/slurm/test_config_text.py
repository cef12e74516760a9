"""What a cluster says of itself, from scontrol and sinfo."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrarsi_hpc.edges.slurm.config_text import (
    Gpus,
    headless_rows,
    parse_config,
    parse_gpus,
    parse_partitions,
    parse_sinfo,
)

CONFIG = """Configuration data as of 2031-05-01T10:00:00
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = elm
JobRequeue              = 1
KillWait                = 45 sec
MaxArraySize            = 40001
MaxJobCount             = 20000
MinJobAge               = 600 sec
PreemptMode             = GANG,SUSPEND
SelectTypeParameters    = CR_CPU
SLURM_VERSION           = 24.05.3

Slurmctld(primary) at elm-ctl is UP
"""


def test_a_configuration_is_read() -> None:
    config = parse_config(CONFIG)
    assert (config.cluster, config.version, config.preempt_mode) == ("elm", "24.05.3", "GANG,SUSPEND")
    assert config.max_array_index == 40000  # naive: 40001, which the controller refuses
    assert (config.max_jobs, config.min_job_age_seconds, config.kill_wait_seconds) == (20000, 600, 45)
    assert (config.has_accounting, config.requeues, config.counts_memory) == (True, True, False)


@pytest.mark.parametrize("word", ["(null)", "accounting_storage/none", "none", ""])
def test_a_cluster_without_accounting_is_known(word: str) -> None:
    assert parse_config(f"AccountingStorageType = {word}\nMaxArraySize = 1001\n").has_accounting is False


def test_what_is_not_said_is_not_known() -> None:
    config = parse_config("SelectTypeParameters = CR_CORE_MEMORY\n")
    assert (config.has_accounting, config.requeues, config.max_array_index) == (None, None, None)
    assert config.counts_memory is True
    with pytest.raises(ValueError, match="scontrol"):
        parse_config("colour = green")


ONE_LINE = (
    "PartitionName=h100 AllowGroups=ALL AllowAccounts=phys,chem AllowQos=long,short AllocNodes=ALL Default=YES QoS=N/A "
    "DefaultTime=01:00:00 MaxNodes=8 MaxTime=2-00:00:00 MinNodes=0 Nodes=h[01-04] OverSubscribe=EXCLUSIVE "
    "PreemptMode=REQUEUE State=UP TotalCPUs=384 TotalNodes=4 DefMemPerNode=UNLIMITED "
    "TRES=cpu=384,mem=4128768M,node=4,billing=384,gres/gpu=16,gres/gpu:h100=16"
)


@pytest.mark.parametrize("text", [ONE_LINE, ONE_LINE.replace(" MaxTime", "\n   MaxTime").replace(" TRES", "\n   TRES")])
def test_a_partition_is_read_in_both_of_its_forms(text: str) -> None:
    offer, other = parse_partitions(f"{text}\nPartitionName=cpu Default=NO MaxTime=UNLIMITED State=DOWN TotalNodes=0\n")
    assert (offer.name, offer.is_default, offer.is_up, offer.max_time_seconds) == ("h100", True, True, 172800)
    assert (offer.num_nodes, offer.cpus_per_node, offer.memory_gib_per_node) == (4, 96, 1008.0)
    assert offer.gpus == (Gpus("h100", 4),)  # naive: 16, or 32 with the untyped sum
    assert (offer.allow_qos, offer.allow_accounts, offer.oversubscribe) == (
        ("long", "short"),
        ("phys", "chem"),
        "EXCLUSIVE",
    )
    assert offer.nodes == ("h01", "h02", "h03", "h04")
    assert (other.name, other.is_up, other.max_time_seconds, other.gpus) == ("cpu", False, None, ())


def test_sinfo_rows_of_one_kind_of_node_are_joined() -> None:
    text = """PARTITION|AVAIL|TIMELIMIT|NODES|CPUS|MEMORY|GRES|AVAIL_FEATURES|OVERSUBSCRIBE|NODELIST
a100*|up|1-00:00:00|3|64|512000+|gpu:a100:4(S:0-1)|ib,a100|NO|a[1-3]
a100*|up|1-00:00:00|1|64|512000|gpu:a100:4(S:0-1)|ib,a100|NO|a4
cpu|down|infinite|9|128|256000|(null)|(null)|NO|c[1-9]
"""
    gpu, cpu = parse_sinfo(text)
    assert (gpu.name, gpu.is_default, gpu.num_nodes, gpu.gpus) == ("a100", True, 4, (Gpus("a100", 4),))
    assert (gpu.cpus_per_node, gpu.memory_gib_per_node, gpu.features) == (64, 500.0, ("ib", "a100"))
    assert (cpu.is_up, cpu.max_time_seconds, cpu.gpus, cpu.features) == (False, None, (), ())


def test_sinfos_default_table_is_read() -> None:
    text = "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\nmain*        up 1-00:00:00      2   idle m[1-2]\n"
    (offer,) = parse_sinfo(text)
    assert (offer.name, offer.is_default, offer.num_nodes, offer.nodes) == ("main", True, 2, ("m1", "m2"))


GPUS = {
    "gpu:8": (Gpus("", 8),),
    "gpu:a100:4(S:0-1)": (Gpus("a100", 4),),
    "gpu:a100:4(S:0,1),nvme:1": (Gpus("a100", 4),),
    "gpu:a100_1g.5gb:7,gpu:a100:1": (Gpus("a100_1g.5gb", 7), Gpus("a100", 1)),
    "gres/gpu=4,gres/gpu:h100=4": (Gpus("h100", 4),),
    "gpu": (Gpus("", 1),),
    "(null)": (),
    "": (),
}


@pytest.mark.parametrize("text", GPUS)
def test_gpus_of_a_node_are_counted_by_type(text: str) -> None:
    assert parse_gpus(text) == GPUS[text]


@given(st.text() | st.text("PartitonName=TRESgrs/u:,0123456789 \n|", max_size=200))
def test_any_text_is_read_or_a_value_error(text: str) -> None:
    for parse in (parse_config, parse_partitions, parse_sinfo, parse_gpus):
        for begun in ("", "PartitionName=x TotalNodes=3 TRES=mem=", "PARTITION|NODES|GRES\n", "MaxArraySize = "):
            try:
                parse(begun + text)
            except ValueError:
                continue


HEADLESS = {
    "|": "gpu*|up|2-00:00:00|12|gpu:a100:4(S:0-1)|n[1-12]\ndebug|up|30:00|2|(null)|d[1-2]\n",
    ";": "gpu*;up;2-00:00:00;12;gpu:a100:4;n[1-12]\ndebug;up;30:00;2;(null);d[1-2]\n",
}


@pytest.mark.parametrize("separator", HEADLESS)
def test_sinfo_without_its_header_is_read_where_cells_show_what_they_are(separator: str) -> None:
    gpu, debug = parse_sinfo(HEADLESS[separator])
    assert (gpu.name, gpu.is_default, gpu.max_time_seconds, gpu.num_nodes) == ("gpu", True, 172800, 12)
    assert (gpu.gpus, len(gpu.nodes)) == ((Gpus("a100", 4),), 12)
    assert (debug.name, debug.max_time_seconds, debug.num_nodes, debug.gpus) == ("debug", 1800, 2, ())


def test_numbers_that_could_be_nodes_or_processors_or_memory_are_left_out() -> None:
    text = "gpu*|up|2-00:00:00|12|64|515000|gpu:a100:4\n"
    [gpu] = parse_sinfo(text)
    assert (gpu.num_nodes, gpu.cpus_per_node, gpu.memory_gib_per_node) == (None, None, None), "naive: 12 processors"
    found = headless_rows(text)
    assert found is not None
    assert found.unknown_columns == (4, 5, 6)


@pytest.mark.parametrize(
    "text", ["a|b|c\n", "1|up|2\n", "gpu|up\n", "gpu*|x|y\n", "gpu|up|1\ngpu|up\n", "", "410024;willow\n"]
)
def test_what_is_not_clearly_sinfos_is_not_taken_for_it(text: str) -> None:
    assert headless_rows(text) is None
