"""What the experience store keeps of a campaign, as typed rows, and the columns that these rows become.

Covers: values that cannot be (NaN, infinities, negative times and memory, outcomes outside the list, a peak above
what the device holds, settings that are no settings). A row that has one is dropped with its reason, the rest stays.
Does not cover: numbers that are possible and wrong; trust in a source is for the models to learn.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from infrarsi_hpc.domain.campaign import CampaignState
from infrarsi_hpc.domain.contract import Contract, Name
from infrarsi_hpc.domain.knobs import KNOB_NAME, Value
from infrarsi_hpc.domain.noise import DoctorReport
from infrarsi_hpc.domain.observation import Observation
from infrarsi_hpc.domain.outcome import RETRIED, Outcome
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.domain.trial import Purpose, TrialId
from infrarsi_hpc.errors import StoreError

#: Rows of one table by column, as read from a file or to be written to one.
Table = dict[str, list[Any]]
Row = TypeVar("Row")

#: Far above any device and any step: a value beyond is in another unit.
MAX_GIB = 16384.0
MAX_SECONDS = 1e9
MAX_JSON_CHARS = 16384


@dataclass(frozen=True)
class Column:
    """One column: `text` is UTF-8, `real` float64, `count` int64, `flag` 0 or 1."""

    kind: Literal["text", "real", "count", "flag"]
    unit: str = "1"


@dataclass(frozen=True)
class Dropped:
    """A row that was not used, and why."""

    table: str
    row: int
    reason: str


def _optional(name: str, unit: str) -> dict[str, Column]:
    """A number that may be unknown: a flag beside it, because NaN and -1 are also what broken writers leave."""
    return {name: Column("real", unit), f"has_{name}": Column("flag")}


#: The schema: tables, columns, units. A change here is a new schema version.
TABLES: dict[str, dict[str, Column]] = {
    "campaigns": {
        "campaign": Column("text"),
        "contract_sha256": Column("text"),
        "workload_kind": Column("text"),
        "shape": Column("text", "JSON"),
        "versions": Column("text", "JSON"),
        "memory_kind": Column("text"),
        **_optional("capacity_gib", "GiB"),
        "step_seconds": Column("real", "s"),
        "within_run_cv": Column("real"),
        "between_run_cv": Column("real"),
        "detectable_speedup": Column("real"),
    },
    "trials": {
        "campaign": Column("text"),
        "round": Column("count"),
        "trial": Column("text"),
        "candidate": Column("text"),
        "purpose": Column("text"),
        "source": Column("text"),
        "configuration": Column("text", "JSON"),
        "patches": Column("text", "JSON"),
        "outcome": Column("text"),
        "detail": Column("text"),
        **_optional("step_seconds", "s"),
        **_optional("step_noise", "1"),
        **_optional("peak_gib", "GiB"),
        **_optional("bound_gib", "GiB"),
        "censoring": Column("text"),
        "device_seconds": Column("real", "s"),
        "is_believed": Column("flag"),
        "finished_at": Column("real", "s since 1970-01-01 UTC"),
    },
    "patches": {
        "sha256": Column("text"),
        "name": Column("text"),
        "title": Column("text"),
        "text": Column("text", "unified diff"),
    },
}


class CampaignRow(BaseModel):
    """What is known of a campaign whose trials are kept; `campaign` must be unique to it everywhere."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    campaign: Name
    contract_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    workload_kind: Name
    shape: dict[str, int]
    versions: dict[str, str] = {}
    memory_kind: str = Field(default="", pattern=r"^[a-z_]{0,40}$")
    capacity_gib: float | None = Field(default=None, gt=0, le=MAX_GIB)
    step_seconds: float = Field(gt=0, le=MAX_SECONDS)
    within_run_cv: float = Field(ge=0, le=100)
    between_run_cv: float = Field(ge=0, le=100)
    detectable_speedup: float = Field(ge=1, le=1000)


class StoredTrial(BaseModel):
    """One trial of the store: which campaign it belongs to, and the row that models learn from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    campaign: Name
    round: int = Field(ge=0, le=999_999)
    candidate: str = Field(pattern=r"^[0-9a-f]{12}$")
    purpose: Purpose
    observation: Observation
    finished_at: float = Field(ge=0, le=1e11)

    @property
    def key(self) -> tuple[str, str]:
        """Campaign and trial id: the same trial is stored once."""
        return self.campaign, self.observation.trial

    @property
    def censoring(self) -> str:
        """`none` (peak measured), `right` (out of memory), `left` (ran, peak unknown) or empty (says nothing)."""
        match self.observation.outcome:
            case Outcome.DEVICE_OOM:
                return "right"
            case Outcome.OK:
                return "left" if self.observation.peak_gib is None else "none"
            case _:
                return ""


def campaign_row(campaign: str, contract: Contract, doctor: DoctorReport, capacity_gib: float | None) -> CampaignRow:
    """The campaign's row from what was fixed and measured before its first trial.

    Raises
    ------
    StoreError
        A name or a number of it has no place in the store.
    """
    fields = {
        "campaign": campaign,
        "contract_sha256": doctor.contract_sha256,
        "workload_kind": contract.workload.kind,
        "shape": contract.workload.shape.model_dump(),
        "versions": dict(doctor.versions),
        "memory_kind": doctor.memory_kind,
        "capacity_gib": capacity_gib,
        "step_seconds": doctor.step_seconds,
        "within_run_cv": doctor.within_run_cv,
        "between_run_cv": doctor.between_run_cv,
        "detectable_speedup": max(1.0, doctor.detectable_speedup),
    }
    try:
        return CampaignRow.model_validate(fields)
    except ValidationError as error:
        raise StoreError(
            f"campaign {campaign} does not go into the experience store",
            why=_first_problem(error),
            fix="the ledger keeps its trials; run `infrarsi doctor` again if it is a number of the doctor's",
        ) from error


def round_trials(state: CampaignState, campaign: str, number: int) -> list[StoredTrial]:
    """The trials of one round that teach something, as rows, in the order planned."""
    rows = []
    for record in state.trials.values():
        observation = record.observation() if record.round == number else None
        if observation is not None:
            rows.append(
                StoredTrial(
                    campaign=campaign,
                    round=number,
                    candidate=record.plan.candidate.id,
                    purpose=record.purpose,
                    observation=observation,
                    finished_at=record.finished_at or 0.0,
                )
            )
    return rows


def to_tables(
    campaigns: Sequence[CampaignRow], trials: Sequence[StoredTrial], patches: Sequence[Patch]
) -> dict[str, Table]:
    """Rows as columns, in the schema's order."""
    records = {
        "campaigns": [_campaign_record(row) for row in campaigns],
        "trials": [_trial_record(row) for row in trials],
        "patches": [{"sha256": p.sha256, "name": p.name, "title": p.title, "text": p.text} for p in patches],
    }
    return {
        table: {column: [record[column] for record in records[table]] for column in columns}
        for table, columns in TABLES.items()
    }


def campaigns_of(table: Table) -> tuple[list[CampaignRow], list[Dropped]]:
    """The campaigns of a file, and the rows that are none."""
    return _rows("campaigns", table, _read_campaign)


def trials_of(table: Table, campaigns: Mapping[str, CampaignRow]) -> tuple[list[StoredTrial], list[Dropped]]:
    """The trials of a file, and the rows that cannot be used; every trial needs its campaign's row."""
    return _rows("trials", table, lambda record: _read_trial(record, campaigns))


def patches_of(table: Table) -> tuple[list[Patch], list[Dropped]]:
    """The patches of a file, and the rows whose text is not what their digest says."""
    return _rows("patches", table, _read_patch)


def _campaign_record(row: CampaignRow) -> dict[str, Any]:
    record = row.model_dump(exclude={"shape", "versions", "capacity_gib"})
    record.update(shape=_json(row.shape), versions=_json(row.versions))
    record.update(_with_flag("capacity_gib", row.capacity_gib))
    return record


def _trial_record(row: StoredTrial) -> dict[str, Any]:
    seen = row.observation
    record: dict[str, Any] = {
        "campaign": row.campaign,
        "round": row.round,
        "trial": seen.trial,
        "candidate": row.candidate,
        "purpose": row.purpose,
        "source": seen.source,
        "configuration": _json(seen.configuration),
        "patches": _json(list(seen.patches)),
        "outcome": seen.outcome.value,
        "detail": seen.detail or "",
        "censoring": row.censoring,
        "device_seconds": seen.device_seconds,
        "is_believed": int(seen.is_believed),
        "finished_at": row.finished_at,
    }
    for name in ("step_seconds", "step_noise", "peak_gib", "bound_gib"):
        record.update(_with_flag(name, getattr(seen, name)))
    return record


def _rows(name: str, table: Table, read: Callable[[dict[str, Any]], Row]) -> tuple[list[Row], list[Dropped]]:
    rows: list[Row] = []
    dropped: list[Dropped] = []
    for index in range(len(next(iter(table.values())))):
        try:
            rows.append(read({column: values[index] for column, values in table.items()}))
        except ValidationError as error:
            dropped.append(Dropped(name, index, _first_problem(error)))
        except ValueError as error:
            dropped.append(Dropped(name, index, str(error)))
    return rows, dropped


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"


def _read_campaign(record: dict[str, Any]) -> CampaignRow:
    capacity = _optional_real(record, "capacity_gib", MAX_GIB)
    for name in ("step_seconds", "within_run_cv", "between_run_cv", "detectable_speedup"):
        _real(record, name, MAX_SECONDS)
    plain = {k: v for k, v in record.items() if k not in ("has_capacity_gib", "shape", "versions", "capacity_gib")}
    shape, versions = _unjson(record["shape"], "shape"), _unjson(record["versions"], "versions")
    return CampaignRow.model_validate({**plain, "shape": shape, "versions": versions, "capacity_gib": capacity})


_WORD = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")
_SETTINGS = TypeAdapter(dict[str, Value])
_DIGESTS = TypeAdapter(tuple[str, ...])
_TRIAL_ID = TypeAdapter(TrialId)


def _read_trial(record: dict[str, Any], campaigns: Mapping[str, CampaignRow]) -> StoredTrial:
    campaign = campaigns.get(record["campaign"])
    if campaign is None:
        raise ValueError(f"campaign {record['campaign']!r} has no row of its own")
    if not record["outcome"]:
        raise ValueError("half a record: it has no outcome")
    configuration = _SETTINGS.validate_python(_unjson(record["configuration"], "configuration"))
    for name in configuration:
        if not KNOB_NAME.match(name):
            raise ValueError(f"configuration: {name!r} is no knob's name")
    outcome = Outcome(record["outcome"])
    detail = record["detail"] or None
    if outcome in RETRIED:
        raise ValueError(f"outcome {outcome.value!r} teaches nothing and is never stored")
    if detail is not None and not _WORD.match(detail):
        raise ValueError(f"detail {detail!r} is not a short word")
    numbers = {
        "step_seconds": _optional_real(record, "step_seconds", MAX_SECONDS),
        "step_noise": _optional_real(record, "step_noise", 1e6),
        "peak_gib": _optional_real(record, "peak_gib", MAX_GIB),
        "bound_gib": _optional_real(record, "bound_gib", MAX_GIB),
    }
    if numbers["step_seconds"] == 0:
        raise ValueError("step_seconds is 0")
    peak = numbers["peak_gib"]
    # 25%: the limit that is set and the peak that is sampled agree to 5%; another unit is off by far more
    if peak is not None and campaign.capacity_gib is not None and peak > 1.25 * campaign.capacity_gib:
        raise ValueError(f"peak_gib {peak:g} is more than the device's {campaign.capacity_gib:g} GiB: another unit?")
    row = StoredTrial(
        campaign=record["campaign"],
        round=record["round"],
        candidate=record["candidate"],
        purpose=record["purpose"],
        finished_at=_real(record, "finished_at", 1e11),
        observation=Observation(
            trial=_TRIAL_ID.validate_python(record["trial"]),
            configuration=configuration,
            patches=_DIGESTS.validate_python(_unjson(record["patches"], "patches")),
            outcome=outcome,
            detail=detail,
            device_seconds=_real(record, "device_seconds", MAX_SECONDS),
            source=record["source"],
            is_believed=bool(record["is_believed"]),
            **numbers,
        ),
    )
    if row.censoring != record["censoring"]:
        raise ValueError(f"censoring {record['censoring']!r} contradicts outcome {outcome.value!r}")
    return row


def _read_patch(record: dict[str, Any]) -> Patch:
    patch = Patch(name=record["name"], title=record["title"], text=record["text"])
    if patch.sha256 != record["sha256"]:
        raise ValueError(f"patch {patch.name!r} is not what its digest says")
    return patch


def _with_flag(name: str, value: float | None) -> dict[str, Any]:
    return {name: 0.0 if value is None else value, f"has_{name}": int(value is not None)}


def _real(record: Mapping[str, Any], name: str, most: float) -> float:
    value = float(record[name])
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value}")
    if value < 0:
        raise ValueError(f"{name} is negative ({value:g})")
    if value > most:
        raise ValueError(f"{name} {value:g} is beyond what is possible: another unit?")
    return value


def _optional_real(record: Mapping[str, Any], name: str, most: float) -> float | None:
    value = _real(record, name, most)
    if record[f"has_{name}"]:
        return value
    if value:
        raise ValueError(f"{name} has a value and a flag that says it has none")
    return None


def _json(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
    if len(text) > MAX_JSON_CHARS:
        raise StoreError(
            f"a record of {len(text)} characters does not go into the experience store",
            why=f"settings, shapes and versions are kept up to {MAX_JSON_CHARS} characters a trial",
            fix="use fewer or shorter values",
        )
    return text


def _unjson(text: str, name: str) -> Any:
    if len(text) > MAX_JSON_CHARS:
        raise ValueError(f"{name} is longer than {MAX_JSON_CHARS} characters")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError(f"{name} names a key twice")
        return dict(pairs)

    def refuse(word: str) -> Any:
        raise ValueError(f"{name} holds {word}")

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=refuse)
    except RecursionError as error:
        raise ValueError(f"{name} is nested too deeply") from error
