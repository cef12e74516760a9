"""A first site profile from what a cluster's own commands say. What they do not say is guessed, and marked as a guess.

Pure: texts in, profile and guesses out, so that any cluster's answers can be tried without the cluster.

Does not cover: whether the guesses are right (`infrarsi site check` asks a node), fabrics, containers and modules that
a site wants used, and limits that it enforces by other means than Slurm's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from infrarsi_hpc.domain.site import SiteProfile, format_time_limit
from infrarsi_hpc.edges.slurm.config_text import (
    PartitionOffer,
    SlurmConfig,
    parse_config,
    parse_partitions,
    parse_sinfo,
)
from infrarsi_hpc.edges.slurm.tables import read_table

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+-]{0,99}\Z")
_MAX_PARTITIONS = 200


@dataclass(frozen=True)
class SiteTexts:
    """What was asked and answered, as printed; empty where nothing answered, and `unanswered` says why."""

    config: str = ""
    partitions: str = ""
    sinfo: str = ""
    #: `node|address` a line.
    addresses: str = ""
    #: sacctmgr's table of the user's own associations, with its header.
    associations: str = ""
    #: `name, MiB` a line.
    nvidia_smi: str = ""
    srun_help: str = ""
    has_modules: bool = False
    has_apptainer: bool = False
    unanswered: tuple[str, ...] = ()


@dataclass(frozen=True)
class Draft:
    """A profile, why its guessed fields are as they are, and what a person should know besides."""

    profile: SiteProfile
    guesses: dict[str, str]
    remarks: tuple[str, ...]


@dataclass
class _Notes:
    guesses: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def profile_from_texts(name: str, texts: SiteTexts) -> Draft:
    """The profile that these answers make, under a name. Answers that cannot be read count as none."""
    notes = _Notes(remarks=[f"not asked or not answered: {what}" for what in texts.unanswered])
    offers = _offers(texts, notes)
    if not offers:
        notes.guesses["scheduler.kind"] = "no partitions of Slurm's were seen, so trials run on this machine"
        profile = SiteProfile.model_validate({"schema_version": 1, "name": name, "scheduler": {"kind": "local"}})
        return Draft(profile, notes.guesses, tuple(notes.remarks))
    config = _config(texts.config, notes)
    own = _associations(texts.associations, config.cluster)
    shares_host = _share_a_host(texts.addresses)
    offers = [offer for offer in offers if _is_open(offer, own, notes)] or offers
    rows = [_partition(number, offer, shares_host, notes) for number, offer in enumerate(offers)]
    _name_gpus(rows, texts.nvidia_smi, notes)
    value = {
        "schema_version": 1,
        "name": name,
        "scheduler": _scheduler(config, notes),
        "partition": rows,
        "request": _request(rows, config, shares_host, notes),
        "limits": _limits(config, own, shares_host, notes),
        "user": _user(own, notes),
    }
    if "--container-image" in texts.srun_help:
        notes.remarks.append('srun knows --container-image: launch.kind = "pyxis" with an image would work here')
    if texts.has_apptainer:
        notes.remarks.append(
            'apptainer is here: launch.kind = "apptainer" with an image would work, if nodes have it too'
        )
    if texts.has_modules:
        notes.remarks.append("modules are here: name those that a job needs in environment.setup")
    return Draft(SiteProfile.model_validate(value), notes.guesses, tuple(notes.remarks))


def _offers(texts: SiteTexts, notes: _Notes) -> list[PartitionOffer]:
    """One offer a partition: sinfo's nodes with scontrol's limits."""
    by_name: dict[str, list[PartitionOffer]] = {}
    for text, parser in ((texts.sinfo, parse_sinfo), (texts.partitions, parse_partitions)):
        try:
            found = parser(text) if text.strip() else []
        except ValueError as error:
            notes.remarks.append(f"an answer could not be read: {error}")
            continue
        for offer in found:
            if _WORD.match(offer.name):
                by_name.setdefault(offer.name, []).append(offer)
    return [_joined(same) for same in list(by_name.values())[:_MAX_PARTITIONS]]


def _joined(same: Sequence[PartitionOffer]) -> PartitionOffer:
    first = same[0]
    gpus = tuple(dict.fromkeys(g for offer in same for g in offer.gpus if g.type or len(same) == 1)) or first.gpus
    known = {name: [v for o in same if (v := getattr(o, name)) is not None] for name in _NUMBERS}
    longest = next((o.max_time_seconds for o in reversed(same) if o.max_time_seconds is not None), None)
    return replace(
        first,
        is_default=any(o.is_default for o in same),
        is_up=all(o.is_up for o in same),
        max_time_seconds=longest,
        num_nodes=max(known["num_nodes"], default=None),
        gpus=gpus,
        # nodes of several kinds: what the smallest has
        cpus_per_node=min(known["cpus_per_node"], default=None),
        memory_gib_per_node=min(known["memory_gib_per_node"], default=None),
        allow_qos=next((o.allow_qos for o in same if o.allow_qos), ()),
        allow_accounts=next((o.allow_accounts for o in same if o.allow_accounts), ()),
        oversubscribe=next((o.oversubscribe for o in reversed(same) if o.oversubscribe), ""),
        preempt_mode=next((o.preempt_mode for o in same if o.preempt_mode), ""),
    )


_NUMBERS = ("num_nodes", "cpus_per_node", "memory_gib_per_node")


def _config(text: str, notes: _Notes) -> SlurmConfig:
    try:
        return parse_config(text) if text.strip() else SlurmConfig()
    except ValueError as error:
        notes.remarks.append(f"an answer could not be read: {error}")
        return SlurmConfig()


@dataclass(frozen=True)
class _Own:
    accounts: tuple[str, ...] = ()
    submit_jobs: int | None = None


def _associations(text: str, cluster: str) -> _Own:
    table = read_table(text, ("account",)) if text.strip() else None
    rows = [r for r in table.rows if not cluster or r.get("cluster", cluster) == cluster] if table else []
    accounts = dict.fromkeys(r["account"] for r in rows if _WORD.match(r["account"]))
    limits = [int(v) for r in rows if (v := r.get("maxsubmit", r.get("maxsubmitjobs", ""))).isdigit() and int(v) > 0]
    return _Own(tuple(accounts), min(limits, default=None))


def _is_open(offer: PartitionOffer, own: _Own, notes: _Notes) -> bool:
    if offer.allow_accounts and own.accounts and not set(offer.allow_accounts) & set(own.accounts):
        notes.remarks.append(f"partition {offer.name} is left out: it is for accounts that you are not in")
        return False
    if not offer.is_up:
        notes.remarks.append(f"partition {offer.name} is left out: it is not up")
    return offer.is_up


def _partition(number: int, offer: PartitionOffer, shares_host: bool, notes: _Notes) -> dict[str, Any]:
    at = f"partition.{number}"
    row: dict[str, Any] = {"name": offer.name, "is_default": offer.is_default, "shares_host": shares_host}
    gpus = max(offer.gpus, key=lambda g: g.count, default=None)
    if gpus is not None:
        row |= {"gpu_type": gpus.type if _WORD.match(gpus.type) else "", "gpus_per_node": min(gpus.count, 64)}
        others = list(dict.fromkeys(g.type for g in offer.gpus if g.type != gpus.type))
        if others:
            notes.guesses[f"{at}.gpu_type"] = f"the partition also has {', '.join(others)}; the first was taken"
    row |= {
        name: value
        for name, value in (
            ("cpus_per_node", offer.cpus_per_node),
            ("memory_gib_per_node", round(offer.memory_gib_per_node, 1) if offer.memory_gib_per_node else None),
            ("num_nodes", offer.num_nodes),
        )
        if value
    }
    if offer.max_time_seconds:
        row["max_time"] = format_time_limit(offer.max_time_seconds)
    else:
        notes.guesses[f"{at}.max_time"] = "no limit was named"
    row["qos"] = [q for q in offer.allow_qos if _WORD.match(q)][:50]
    if shares_host:
        notes.guesses[f"{at}.shares_host"] = "its nodes have addresses of one machine"
    return row


def _share_a_host(text: str) -> bool:
    """Whether several nodes are one machine: all their addresses are its own."""
    pairs = {line.split("|")[0]: line.split("|")[1].strip() for line in text.splitlines() if line.count("|") == 1}
    return len(pairs) > 1 and all(re.match(r"127\.|localhost|::1\Z", address) for address in pairs.values())


def _name_gpus(rows: list[dict[str, Any]], text: str, notes: _Notes) -> None:
    """Product names from a GPU of this very machine, for the partitions whose type they fit."""
    seen: dict[str, float] = {}
    for line in text.splitlines()[:64]:
        name, _, memory = line.rpartition(",")
        if name.strip() and memory.strip().isdigit() and name.isprintable():
            seen[name.strip()[:200]] = int(memory) / 1024
    with_gpus = [row for row in rows if row.get("gpus_per_node")]
    types = {row["gpu_type"] for row in with_gpus}
    for number, row in enumerate(rows):
        at = f"partition.{number}"
        kind = row.get("gpu_type", "").lower()
        fitting = [name for name in seen if (kind and kind in name.lower()) or (len(types) == 1 and not kind)]
        if row.get("gpus_per_node") and fitting:
            row |= {"gpu_names": fitting, "gpu_memory_gib": round(max(seen[name] for name in fitting), 1)}
            notes.guesses[f"{at}.gpu_names"] = "nvidia-smi of this machine says so; nodes may have others"
        elif row.get("gpus_per_node"):
            notes.guesses[f"{at}.gpu_names"] = "not seen from here; `infrarsi site check` reads them on a node"


def _scheduler(config: SlurmConfig, notes: _Notes) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": "slurm"}
    if _WORD.match(config.cluster):
        found["cluster"] = config.cluster
    if config.has_accounting is not None:
        found["has_accounting"] = config.has_accounting
    if config.requeues is not None:
        found["requeue"] = config.requeues
    else:
        notes.guesses["scheduler.requeue"] = "JobRequeue was not named"
    return found


def _request(rows: list[dict[str, Any]], config: SlurmConfig, shares_host: bool, notes: _Notes) -> dict[str, Any]:
    types = [row.get("gpu_type", "") for row in rows if row.get("gpus_per_node")]
    gpu = "none" if not types else "typed-gres" if all(types) else "gres"
    notes.guesses["request.gpu"] = {
        "none": "no partition shows GPUs",
        "typed-gres": "every partition with GPUs names their type",
        "gres": "GPUs without a type",
    }[gpu]
    found: dict[str, Any] = {"gpu": gpu, "exclusive": not shares_host}
    counts = config.counts_memory
    found["memory"] = "none" if counts is False else "mem"
    why = "memory is not counted when jobs are placed" if counts is False else "memory is counted when jobs are placed"
    notes.guesses["request.memory"] = why if counts is not None else "nothing says how memory is asked for"
    least = min((row["memory_gib_per_node"] for row in rows if "memory_gib_per_node" in row), default=None)
    if shares_host and least:
        found["memory_gib"] = max(0.5, round(least / 4, 1))
        notes.guesses["request.memory_gib"] = "a quarter of a node's"
    notes.guesses["request.exclusive"] = (
        "nodes that are one machine cannot be had alone" if shares_host else "timed trials want a node of their own"
    )
    return found


def _limits(config: SlurmConfig, own: _Own, shares_host: bool, notes: _Notes) -> dict[str, Any]:
    found: dict[str, Any] = {"poll_seconds": 1.0 if shares_host else 5.0}
    notes.guesses["limits.poll_seconds"] = "quick, for a test cluster" if shares_host else "kind to a shared controller"
    if config.max_array_index is not None:
        found["array_size"] = config.max_array_index + 1
    else:
        notes.guesses["limits.array_size"] = "MaxArraySize was not named"
    if own.submit_jobs is not None:
        found["submit_jobs"] = own.submit_jobs
    return found


def _user(own: _Own, notes: _Notes) -> dict[str, Any]:
    if not own.accounts:
        return {}
    if len(own.accounts) > 1:
        notes.guesses["user.account"] = f"you are also in {', '.join(own.accounts[1:9])}"
    return {"account": own.accounts[0]}
