"""What is the matter with this experience file? The answer of `infrarsi explain --kind store`.

The same reading code as the store's gives the verdict; for a file that is HDF5 and not ours, a bounded walk says what
else a reader should know: links that lead out, records without an outcome, numbers without a unit, values that cannot
be, and what looks like somebody's personal data.

Does not cover: personal data in words that look like any others; free text must be read by a person before sharing.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from infrarsi_hpc.edges.store import format as store_format
from infrarsi_hpc.edges.store.format import Fault, SegmentRefused
from infrarsi_hpc.edges.store.rows import campaigns_of, patches_of, trials_of

#: Numbers of a foreign dataset that are looked at.
_MAX_VALUES = 1_000_000
_MAX_FINDINGS = 200
_PERSONAL_NAME = re.compile(r"\A(user(name)?|login|author|owner|account|e?mail|host(name)?|home|project_path)\Z", re.I)
_PERSONAL_TEXT = re.compile(
    r"(?:/home/|/users/|/people/)[\w.-]+|[\w.+-]+@[\w-]+(?:\.[\w-]+)+|\b[\w-]+(?:\.[\w-]+)*\.(?:edu|gov|ac\.\w\w|local|lan)\b",
    re.I,
)


def inspect_file(path: Path) -> dict[str, Any]:
    """What the campaign would make of one file, with every reason. Never raises for what is in the file.

    Returns the fields of `infrarsi explain`: `outcome` is `ok` or `refused`, `detail` the main reason in one word,
    `evidence` the sentence, `action` what is done, `findings` one dict (`code`, `where`, `text`) a problem or fact.
    """
    try:
        segment = store_format.read(path)
    except SegmentRefused as refused:
        found = [{"code": f.code, "where": f.where, "text": f.text} for f in _foreign(path)]
        others = sorted({f["code"] for f in found} - {refused.code})
        evidence = f"{refused}\nalso: {', '.join(others)}" if others else str(refused)
        return _answer(refused.code, evidence, "the file is left out; all others are still used", found)
    campaigns, bad = campaigns_of(segment.tables["campaigns"])
    trials, bad_trials = trials_of(segment.tables["trials"], {row.campaign: row for row in campaigns})
    patches, bad_patches = patches_of(segment.tables["patches"])
    bad = [*bad, *bad_trials, *bad_patches]
    facts = {
        "device_key": segment.device_key,
        "campaigns": ", ".join(f"{row.campaign} ({row.workload_kind})" for row in campaigns) or "none",
        "trials": str(len(trials)),
        "patches": str(len(patches)),
        "sha256": segment.sha256,
    }
    found = [{"code": "bad_row", "where": f"/{row.table}[{row.row}]", "text": row.reason} for row in bad]
    found += [{"code": "fact", "where": name, "text": text} for name, text in facts.items()]
    if bad:
        return _answer("bad_row", f"{path.name}: {len(bad)} rows cannot be used", "these rows are dropped", found, "ok")
    return _answer(None, f"{path.name} is whole", "its trials are read as experience", found, "ok")


def _answer(
    detail: str | None, evidence: str, action: str, findings: list[dict[str, str]], outcome: str = "refused"
) -> dict[str, Any]:
    return {
        "outcome": outcome,
        "detail": detail,
        "bound_gib": None,
        "rank": None,
        "evidence": evidence,
        "action": action,
        "findings": findings[:_MAX_FINDINGS],
    }


def _foreign(path: Path) -> list[Fault]:
    """What a refused file holds, as far as it can be looked at without following or trusting anything."""
    import h5py

    found: list[Fault] = []
    try:
        store_format.refuse_what_is_no_hdf5(path)
        with h5py.File(path, "r", locking=False) as file:
            found += store_format.faults(file)
            found += _attributes("/", file)
            _look("", file, found, [0], {})
    except SegmentRefused as refused:
        found.append(Fault(refused.code, "/", refused.what))
    except store_format.H5PY_ERRORS as error:
        unreadable = store_format.opening_refused(path, error)
        found.append(Fault(unreadable.code, "/", unreadable.why))
    return found


def _look(prefix: str, group: Any, found: list[Fault], seen: list[int], medians: dict[str, list[float]]) -> None:
    """Say what the content lacks, over at most `MAX_OBJECTS` objects that hard links reach, eight levels deep."""
    import h5py

    is_trials = prefix.rsplit("/", 1)[-1] == "trials"
    for name in group:
        seen[0] += 1
        if seen[0] > store_format.MAX_OBJECTS or prefix.count("/") > 8:
            return
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            continue
        where, item = f"{prefix}/{name}", group[name]
        found += _attributes(where, item)
        if isinstance(item, h5py.Group):
            if is_trials and not {"status", "outcome"} & {*item, *item.attrs}:
                found.append(Fault("half_record", where, "a trial without an outcome: its writer stopped in between"))
            _look(where, item, found, seen, medians)
        elif isinstance(item, h5py.Dataset):
            found += _values(where, name, item, medians)
    if not prefix:
        for name, values in medians.items():
            positive = [v for v in values if v > 0]
            if positive and max(positive) > 500 * min(positive):
                text = f"values from {min(positive):g} to {max(positive):g} under one name: units are mixed"
                found.append(Fault("unit_mix", name, text))


def _values(where: str, name: str, dataset: Any, medians: dict[str, list[float]]) -> list[Fault]:
    import h5py
    import numpy as np

    if any(fault.code == "claimed_size" for fault in store_format.dataset_faults(where, dataset)):
        return []
    kind = dataset.id.get_type()
    if isinstance(kind, h5py.h5t.TypeStringID) and dataset.shape == ():
        value = dataset[()]
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        return _personal(where, text)
    is_number = isinstance(kind, h5py.h5t.TypeFloatID | h5py.h5t.TypeIntegerID)
    if not is_number or not 0 < (dataset.size or 0) <= _MAX_VALUES:
        return []
    found = []
    values = np.asarray(dataset[()], dtype=float).ravel()
    for text, where_bad in (
        ("NaN", np.isnan(values)),
        ("infinite", np.isinf(values)),
        ("negative", np.isfinite(values) & (values < 0)),
    ):
        if where_bad.any():
            found.append(Fault("bad_value", where, f"{int(where_bad.sum())} of {len(values)} values {text}: dropped"))
    if "unit" not in dataset.attrs:
        found.append(Fault("no_unit", where, "numbers without a unit"))
    usable = values[np.isfinite(values) & (values >= 0)]
    if len(usable):
        medians.setdefault(name, []).append(float(np.median(usable)))
    return found


def _attributes(where: str, element: Any) -> list[Fault]:
    import h5py

    found = []
    for name in list(element.attrs)[: store_format.MAX_OBJECTS]:
        if _PERSONAL_NAME.match(name):
            found.append(Fault("personal_data", f"{where}@{name}", f"an attribute named {name!r}: export strips such"))
        attribute = h5py.h5a.open(element.id, name.encode("utf-8", "surrogateescape"))
        kind = attribute.get_type()
        if kind.detect_class(h5py.h5t.REFERENCE):
            found.append(Fault("object_reference", f"{where}@{name}", "holds references to other objects"))
        elif isinstance(kind, h5py.h5t.TypeStringID) and attribute.shape == ():
            found += _personal(f"{where}@{name}", str(element.attrs[name]))
    return found


def _personal(where: str, text: str) -> list[Fault]:
    match = _PERSONAL_TEXT.search(text[:100_000])
    if match is None:
        return []
    return [Fault("personal_data", where, f"{match.group()!r} looks like a person, a path or a host: export strips it")]
