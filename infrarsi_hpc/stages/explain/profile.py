"""What would infrarsi make of this site profile: its problems, what it runs, what is personal, its devices.

Also reads a bundle, several sites as `[[site]]` tables in one file, for the question which of them have the same
devices: experience is shared by device key, and one type's name stands for many devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from infrarsi_hpc.domain.gpu_names import device_named
from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.domain.site_execution import executed
from infrarsi_hpc.domain.site_sharing import personal_findings
from infrarsi_hpc.edges.site_text import line_of
from infrarsi_hpc.edges.sites import Refusal, parse_table, read_text, validate

MAX_SITES = 200

Explained = dict[str, Any]


def explain_profile(path: Path) -> Explained:
    """One object: outcome, detail, bound_gib, rank, evidence, action, findings.

    `findings` holds one dict (`code`, `where`, `line`, `text`) a problem, executed line, personal item or device.

    Raises
    ------
    ProfileError
        The file cannot be read at all.
    """
    text = read_text(path)
    value = parse_table(text)
    if isinstance(value, Refusal):
        detail = "newer_schema" if "schema" in value.what else "syntax"
        return _refused(value, path, detail)
    if isinstance(value.get("site"), list):
        return _bundle(value, path, text)
    profile = validate(value, text)
    if isinstance(profile, Refusal):
        return _refused(profile, path, "fields")
    return _accepted(profile, text)


def _accepted(profile: SiteProfile, text: str) -> Explained:
    runs = executed(profile)
    personal = personal_findings(profile)
    dangers = [item for item in runs if item.dangers]
    findings = [_finding("executes", x.field, text, x.text, dangers=list(x.dangers)) for x in runs]
    findings += [_finding("personal", x.field, text, f"{x.reason}: left out or changed by export") for x in personal]
    devices = [
        row
        for number, partition in enumerate(profile.partition)
        for row in _devices(
            f"partition.{number}", profile.name, partition.gpu_names, partition.gpu_memory_gib, partition.intranode,
            partition.internode, partition.gpu_type, text,
        )
    ]  # fmt: skip
    evidence = [f"site profile {profile.name}, {len(profile.partition)} partitions"]
    actions = []
    if runs:
        evidence.append(f"{len(runs)} items run as the user")
        actions.append(
            "a received profile is shown and has to be agreed to before it is first used (`infrarsi site import`)"
        )
    if dangers:
        evidence.append(f"{len(dangers)} of them look dangerous: {dangers[0].text[:100]} {dangers[0].dangers[0]}")
        actions.append("--yes does not agree to dangerous lines (`infrarsi site trust`)")
    if personal:
        evidence.append(f"{len({x.field for x in personal})} fields are personal")
        actions.append("`infrarsi site export` leaves out or changes what is personal, and shows it first")
    detail = "dangerous" if dangers else "needs_confirmation" if runs else "personal" if personal else None
    return _said("ok", detail, "; ".join(evidence), "; ".join(actions) or "can be used and shared", findings + devices)


def _refused(refusal: Refusal, path: Path, detail: str) -> Explained:
    findings = [{"code": "problem", "where": p.field, "line": p.line, "text": p.text} for p in refusal.problems]
    evidence = f"{path.name} {refusal.what}: " + "; ".join(map(str, refusal.problems))
    return _said("refused", detail, evidence, refusal.fix or "correct these places; nothing of it was used", findings)


def _bundle(value: Mapping[str, Any], path: Path, text: str) -> Explained:
    """Sites in one file. Their device fields stand at the top of each, or in its partitions."""
    findings: list[Explained] = []
    problems: list[Explained] = []
    keys: dict[str, list[str]] = {}
    sites = value["site"]
    for number, site in enumerate(sites[:MAX_SITES]):
        at = f"site.{number}"
        if not isinstance(site, dict):
            problems.append(_finding("problem", at, text, "is no table"))
            continue
        name = site.get("name")
        if not isinstance(name, str):
            problems.append(_finding("problem", f"{at}.name", text, "a site needs a name, which is a text"))
            name = at
        parts = site.get("partition") if isinstance(site.get("partition"), list) else []
        for place, table in [(at, site), *((f"{at}.partition.{i}", p) for i, p in enumerate(parts or []))]:
            if not isinstance(table, dict):
                problems.append(_finding("problem", place, text, "is no table"))
                continue
            rows, wrong = _bundle_devices(place, name[:64], {**_links(site), **table}, text)
            problems += wrong
            findings += rows
    for row in findings:
        if row.get("device_key"):
            keys.setdefault(str(row["device_key"]), []).append(str(row["site"]))
    if problems:
        evidence = f"{path.name} has {len(problems)} problems: " + "; ".join(
            f"{p['where']}: {p['text']}" for p in problems[:9]
        )
        return _said("refused", "fields", evidence, "correct these places", problems + findings)
    shared = [key for key, names in keys.items() if len(set(names)) > 1]
    evidence = f"{len(sites)} sites, {len(keys)} device keys: " + ", ".join(
        f"{key} ({', '.join(dict.fromkeys(names))})" for key, names in keys.items()
    )
    action = (
        f"experience is shared between sites on {', '.join(shared)}"
        if shared
        else "no device is the same at two sites: none shares experience with another, whatever its GPU type is called"
    )
    return _said("ok", "devices", evidence, action, findings)


def _links(site: Mapping[str, Any]) -> dict[str, Any]:
    return {name: site[name] for name in ("intranode", "internode", "gpu_memory_gib") if name in site}


def _bundle_devices(at: str, name: str, table: Mapping[str, Any], text: str) -> tuple[list[Explained], list[Explained]]:
    wrong = []
    names = table.get("gpu_names", [])
    if not isinstance(names, list) or not all(isinstance(n, str) and n.isprintable() and len(n) <= 500 for n in names):
        wrong.append(_finding("problem", f"{at}.gpu_names", text, "is no list of product names, each on one line"))
        names = []
    words = {}
    for field in ("intranode", "internode", "gres", "gpu_type"):
        word = table.get(field, "")
        if not isinstance(word, str) or not word.isprintable() or len(word) > 100:
            wrong.append(_finding("problem", f"{at}.{field}", text, "is no word on one line"))
            word = ""
        words[field] = word
    memory = table.get("gpu_memory_gib")
    if memory is not None and (
        isinstance(memory, bool) or not isinstance(memory, int | float) or not 0 < memory <= 1e4
    ):
        wrong.append(_finding("problem", f"{at}.gpu_memory_gib", text, "is no amount of memory"))
        memory = None
    parts = words["gres"].split(":")
    kind = words["gpu_type"] or (parts[1] if len(parts) == 3 else "")
    return list(_devices(at, name, names, memory, words["intranode"], words["internode"], kind, text)), wrong


def _devices(
    at: str,
    site: str,
    names: Iterable[str],
    memory_gib: float | None,
    intranode: str,
    internode: str,
    kind: str,
    text: str,
) -> Iterable[Explained]:
    """One finding a product name: its key, or why it has none."""
    names = tuple(names)
    for number, name in enumerate(names):
        device = device_named(name, memory_gib=memory_gib, intranode=intranode)
        where = f"{at}.gpu_names.{number}"
        if device is None:
            yield _finding("device", where, text, f"{name!r} is no product's name", site=site, device_key=None)
            continue
        key = str(device.key) if device.is_known else None
        said = f"{name}: {key or 'no device key'}" + "".join(f"; {q}" for q in device.open_questions)
        yield _finding(
            "device", where, text, said, site=site, product=name, gpu_type=kind or None, device_key=key,
            fabric=internode or None, open_questions=list(device.open_questions),
        )  # fmt: skip
    if kind and not names:
        said = f"{kind!r} alone is no device: memory, form factor and links are not in it; set gpu_names"
        yield _finding("device", f"{at}.gpu_type", text, said, site=site, gpu_type=kind, device_key=None)


def _finding(code: str, where: str, text: str, said: str, **more: Any) -> Explained:
    place = tuple(int(part) if part.isdigit() else part for part in where.split("."))
    return {"code": code, "where": where, "line": line_of(text, place), "text": said, **more}


def _said(outcome: str, detail: str | None, evidence: str, action: str, findings: list[Explained]) -> Explained:
    fields = {"outcome": outcome, "detail": detail, "bound_gib": None, "rank": None}
    return {**fields, "evidence": evidence[:2000], "action": action, "findings": findings}
