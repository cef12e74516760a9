"""What apply writes: the settings file with the values that won, and the commit's message with its evidence. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Table

from infrarsi_hpc.domain.campaign import CampaignState, PromotionResult
from infrarsi_hpc.domain.candidate import Candidate
from infrarsi_hpc.domain.contract import Contract
from infrarsi_hpc.domain.patch import Patch
from infrarsi_hpc.errors import ProjectError


def settings_text(before: bytes | None, contract: Contract, candidate: Candidate, file_name: str) -> bytes:
    """The settings file with the candidate's value for every knob in `[settings]`; comments and layout stay.

    Raises
    ------
    ProjectError
        The file is not TOML, or `settings` in it is not a table.
    """
    document, table = _settings_table(before, file_name)
    for name, knob in contract.knobs.items():
        value = candidate.configuration[name]
        # an unchanged value keeps the way in which it is written; a knob that the program does not read stays out
        if table.get(name, knob.baseline) != value:
            table[name] = value
    return tomlkit.dumps(document).encode("utf-8")


def settings_changes(before: bytes | None, contract: Contract, candidate: Candidate) -> list[tuple[str, Any, Any]]:
    """Knob, value so far (the contract's baseline where the file has none) and new value, of those that change."""
    _, table = _settings_table(before, contract.scope.settings)
    changes = []
    for name, knob in contract.knobs.items():
        old, new = table.get(name, knob.baseline), candidate.configuration[name]
        if old != new:
            changes.append((name, old, new))
    return changes


#: More changed settings than this are counted in a commit's first line, not named; its body names all.
MOST_SETTINGS = 3


def commit_message(
    state: CampaignState, contract: Contract, promoted: PromotionResult, patches: Sequence[Patch], campaign: str
) -> str:
    """The evidence as a commit message: the claim in its first line, then how it was measured, cost and identity."""
    assert promoted.speedup is not None
    speedup, candidate = promoted.speedup, promoted.candidate
    lines = [f"Train at least {speedup.low:.2f}x faster: {_what(contract, candidate)}", ""]
    lines += [
        f"Measured against the unmodified baseline in {speedup.num_pairs} interleaved pairs of runs: {speedup}",
        f"({speedup.confidence:.0%} confidence interval).",
        f"Step time {_milliseconds(promoted.baseline_seconds)} before, "
        f"{_milliseconds(promoted.candidate_seconds)} after.",
        *_noise(state),
        "",
    ]
    if settings := _settings_lines(contract, candidate):
        lines += ["Settings changed:", *settings, ""]
    if patches:
        lines += ["Patches:", *(f"  {patch.title or patch.name} (sha256 {patch.sha256[:16]})" for patch in patches), ""]
    if promoted.verdict.labels:
        lines += ["Note:", *(f"  {label}" for label in promoted.verdict.labels), ""]
    lines += [*_cost(state), ""]
    lines += [
        f"Infrarsi-Campaign: {campaign}",
        f"Infrarsi-Contract: {contract.digest}",
        f"Infrarsi-Baseline: {(state.opened or {}).get('baseline_commit', 'unknown')}",
        f"Infrarsi-Candidate: {candidate.id}",
    ]
    return "\n".join(lines) + "\n"


def confirmation(
    diff: str, changes: Sequence[tuple[str, Any, Any]], message: str, branch: str, notes: Sequence[str]
) -> str:
    """What a person sees before consenting: the whole diff, the settings, the message."""
    settings = [f"  {name}: {old} -> {new}" for name, old, new in changes] or ["  none"]
    parts = [diff.rstrip("\n"), "", "settings that change:", *settings, "", f"commit on branch {branch}:", ""]
    parts += [f"  {line}".rstrip() for line in message.rstrip("\n").split("\n")]
    parts += ["", *(f"note: {note}" for note in notes)] if notes else []
    return "\n".join(parts)


def _settings_table(before: bytes | None, name: str) -> tuple[tomlkit.TOMLDocument, Table]:
    try:
        document = tomlkit.parse((before or b"").decode("utf-8"))
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise ProjectError(f"{name} is not valid TOML", why=str(error), fix="correct it and commit it") from error
    table = document.setdefault("settings", tomlkit.table())
    if not isinstance(table, Table):
        raise ProjectError(f"`settings` in {name} is not a table", fix="write it as [settings]")
    return document, table


def _what(contract: Contract, candidate: Candidate) -> str:
    changed = [f"{name} {candidate.configuration[name]}" for name, knob in contract.knobs.items()
               if candidate.configuration[name] != knob.baseline]  # fmt: skip
    count = len(candidate.patches)
    patches = [f"{count} {'patch' if count == 1 else 'patches'}"] if count else []
    if len(changed) > MOST_SETTINGS:
        changed = [f"{len(changed)} settings"]
    return ", ".join([*changed, *patches]) or "no change"


def _settings_lines(contract: Contract, candidate: Candidate) -> list[str]:
    return [
        f"  {name}: {knob.baseline} -> {candidate.configuration[name]}"
        for name, knob in contract.knobs.items()
        if candidate.configuration[name] != knob.baseline
    ]


def _noise(state: CampaignState) -> list[str]:
    doctor = (state.opened or {}).get("doctor")
    if not isinstance(doctor, dict) or "between_run_cv" not in doctor:
        return []
    within, between = doctor.get("within_run_cv", 0.0), doctor["between_run_cv"]
    device = doctor.get("device_key", "unknown device")
    return [f"Noise on {device}: {within:.1%} between steps, {between:.1%} between runs."]


def _cost(state: CampaignState) -> list[str]:
    endings = Counter(t.ending.outcome.value for t in state.trials.values() if t.ending is not None)
    outcomes = ", ".join(
        f"{count} {outcome}" for outcome, count in sorted(endings.items(), key=lambda e: (-e[1], e[0]))
    )
    hours = state.device_seconds() / 3600
    return [f"Cost: {hours:.3g} device-hours over {len(state.trials)} trials ({outcomes})."]


def _milliseconds(seconds: float | None) -> str:
    return f"{1000 * seconds:.4g} ms" if seconds is not None else "unknown"
