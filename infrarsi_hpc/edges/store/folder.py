"""The experience store: what was learned on a kind of device, one folder a device key, one immutable file a round.

A round's file is written aside, flushed and renamed; it is never changed afterwards. Writing the same round again
gives the same file back; writing something else under its name is an error. Readers take every file that is whole and
say why they left out the others: one bad file costs its own rows and nothing more.

Does not cover: two devices that differ and share a key; experience that is honest and does not carry over (the models
re-estimate their trust in it).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.edges.atomic import site_error, write_bytes
from infrarsi_hpc.edges.lock import held
from infrarsi_hpc.edges.store import format as store_format
from infrarsi_hpc.edges.store.format import SUFFIX, SegmentRefused
from infrarsi_hpc.edges.store.rows import (
    CampaignRow,
    Dropped,
    StoredTrial,
    campaigns_of,
    patches_of,
    to_tables,
    trials_of,
)
from infrarsi_hpc.edges.user_folders import data_folder
from infrarsi_hpc.errors import StoreError

_DEVICE_KEY = re.compile(r"[a-z0-9][a-z0-9.-]{0,199}\Z")
#: Rows of a store that are looked at; the newest files come first.
MAX_TRIALS = 100_000


@dataclass(frozen=True)
class Skipped:
    """A file, or one row of it, that was not used, and why. `code` is the reason in one word."""

    file: str
    code: str
    reason: str


@dataclass
class Loaded:
    """What a store holds for a device key: each trial once, and what was left out."""

    trials: list[StoredTrial] = field(default_factory=list)
    campaigns: dict[str, CampaignRow] = field(default_factory=dict)
    #: By SHA-256.
    patches: dict[str, Patch] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)


def default_store(environment: Mapping[str, str], home: Path) -> Path:
    """Where the user's own store is: INFRARSI_STORE, or infrarsi/store under XDG_DATA_HOME or ~/.local/share."""
    if environment.get("INFRARSI_STORE"):
        return Path(environment["INFRARSI_STORE"])
    return data_folder(environment, home) / "store"


def device_keys(store: Path) -> list[str]:
    """The device keys that a store has a folder for."""
    if not store.is_dir():
        return []
    return sorted(p.name for p in store.iterdir() if p.is_dir() and _DEVICE_KEY.match(p.name))


def segment_path(store: Path, device_key: str, campaign: CampaignRow, number: int) -> Path:
    """Where the file of one campaign's round stands."""
    name = f"{campaign.campaign}-{campaign.contract_sha256[:8]}-r{number:04d}{SUFFIX}"
    return _folder(store, device_key) / name


def append(
    store: Path,
    device_key: str,
    campaign: CampaignRow,
    number: int,
    trials: Sequence[StoredTrial],
    patches: Sequence[Patch] = (),
    *,
    wait_seconds: float = 60.0,
) -> Path:
    """Keep one round's trials and the patches that they used; doing it again changes nothing.

    Raises
    ------
    StoreError
        A row cannot be (its reason is said), the round or one of the trials is there already with other content.
    SiteError, DiskFull
        The folder cannot be written, or another process holds its lock for longer than `wait_seconds`.
    """
    path = segment_path(store, device_key, campaign, number)
    tables = to_tables([campaign], trials, patches)
    _, bad = trials_of(tables["trials"], {campaign.campaign: campaign})
    keys = [row.key for row in trials]
    if bad or len(set(keys)) != len(keys) or any(row.round != number for row in trials):
        reason = bad[0].reason if bad else "a trial is listed twice, or belongs to another round"
        which = trials[bad[0].row].observation.trial if bad else f"round {number}"
        raise StoreError(
            f"{which} of campaign {campaign.campaign} does not go into the experience store",
            why=reason,
            fix="the ledger keeps it; report this, since it should have been judged before",
        )
    content = store_format.encode(device_key, tables)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise site_error(path, error) from error
    with held(path.parent / "lock", wait_seconds=wait_seconds):
        if path.exists():
            _expect_same(path, store_format.digest(device_key, tables))
            return path
        _expect_new(path, campaign, set(keys))
        write_bytes(path, content)
    return path


def load(
    store: Path,
    device_key: str,
    *,
    workload_kind: str | None = None,
    max_trials: int = MAX_TRIALS,
) -> Loaded:
    """All that a store knows of a device key, newest files first; never fails for one bad file.

    A trial that stands in two files counts once. With `workload_kind`, other kinds are passed over without a word.
    """
    loaded = Loaded()
    seen: dict[tuple[str, str], StoredTrial] = {}
    for path in _segments(_folder(store, device_key)):
        if len(loaded.trials) >= max_trials:
            loaded.skipped.append(Skipped(path.name, "limit", f"{max_trials} trials were read before it"))
            continue
        try:
            segment = store_format.read(path)
            if segment.device_key != device_key:
                raise SegmentRefused("device_key", f"{path.name} is about {segment.device_key!r}")
        except SegmentRefused as refused:
            loaded.skipped.append(Skipped(path.name, refused.code, str(refused)))
            continue
        campaigns, bad_campaigns = campaigns_of(segment.tables["campaigns"])
        by_name = {row.campaign: row for row in campaigns}
        trials, bad_trials = trials_of(segment.tables["trials"], by_name)
        patches, bad_patches = patches_of(segment.tables["patches"])
        loaded.skipped += _row_reports(path.name, [*bad_campaigns, *bad_trials, *bad_patches])
        for row in trials:
            if workload_kind is not None and by_name[row.campaign].workload_kind != workload_kind:
                continue
            twin = seen.get(row.key)
            if twin is None:
                seen[row.key] = row
                loaded.campaigns.setdefault(row.campaign, by_name[row.campaign])
                loaded.trials.append(row)
            elif twin != row:
                text = f"trial {row.observation.trial} of {row.campaign} is told differently in another file"
                loaded.skipped.append(Skipped(path.name, "contradiction", text))
        loaded.patches.update({patch.sha256: patch for patch in patches})
    return loaded


def by_campaign(loaded: Loaded, *, without: str = "") -> list[tuple[CampaignRow, tuple[Observation, ...]]]:
    """What other campaigns measured, campaign by campaign in the order of their names.

    `without` is a campaign's own name in the store: its trials come from its ledger. Trial ids get their campaign's
    name before them, and the source says whose they are. Runs of promotions are left out: they belong to a verdict.
    """
    rows: dict[str, list[Observation]] = {}
    for trial in loaded.trials:
        if trial.campaign == without or trial.purpose not in ("search", "baseline"):
            continue
        identity = {"trial": f"{trial.campaign}/{trial.observation.trial}", "source": f"experience:{trial.campaign}"}
        rows.setdefault(trial.campaign, []).append(trial.observation.model_copy(update=identity))
    return [(loaded.campaigns[name], tuple(rows[name])) for name in sorted(rows)]


def _folder(store: Path, device_key: str) -> Path:
    if not _DEVICE_KEY.match(device_key):
        raise StoreError(
            f"{device_key!r} is no device key",
            why="a key is made of lower-case letters, digits, dots and hyphens",
            fix="`infrarsi store list` shows the keys that there are",
        )
    return store / device_key


def _segments(folder: Path) -> list[Path]:
    """The files of a folder, newest first; temporary ones and the lock are none."""
    if not folder.is_dir():
        return []
    files = [p for p in folder.iterdir() if p.suffix == SUFFIX and not p.name.startswith(".")]
    return sorted(files, key=lambda p: (-p.lstat().st_mtime, p.name))


def _expect_same(path: Path, digest: str) -> None:
    try:
        found = store_format.read(path).sha256
    except SegmentRefused as refused:
        found = refused.code
    if found != digest:
        raise StoreError(
            f"{path.name} is in the store already, with other content",
            why="two campaigns share a name and contract, or the file was damaged",
            fix=f"infrarsi explain --kind store {path}; move it away if it is the damaged one",
        )


def _expect_new(path: Path, campaign: CampaignRow, keys: set[tuple[str, str]]) -> None:
    """No trial of this round stands in another round's file of the same campaign."""
    for other in _segments(path.parent):
        if not other.name.startswith(f"{campaign.campaign}-{campaign.contract_sha256[:8]}-r"):
            continue
        try:
            twice = keys & store_format.read_trial_ids(other)
        except SegmentRefused:
            continue
        if twice:
            raise StoreError(
                f"trial {min(twice)[1]} of campaign {campaign.campaign} is in {other.name} already",
                why="a trial is stored once, in the round that planned it",
                fix=f"infrarsi explain --kind store {other}",
            )


def _row_reports(file: str, dropped: Iterable[Dropped]) -> list[Skipped]:
    """At most ten rows in full, the rest as a count: a file of a thousand bad rows is one message's worth."""
    rows = list(dropped)
    reports = [Skipped(file, "bad_row", f"{row.table} row {row.row}: {row.reason}") for row in rows[:10]]
    if len(rows) > 10:
        reports.append(Skipped(file, "bad_row", f"{len(rows) - 10} more rows that cannot be used"))
    return reports
