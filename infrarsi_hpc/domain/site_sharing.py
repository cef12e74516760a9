"""A site profile without what is personal, and the audit that finds nothing in it any more.

`shareable` leaves out whole sections that are a person's (`[user]`, `[notes]`), fields that name people or machines,
and every other text in which `personal` finds something; folders of persons become `$HOME` or `$USER` where that keeps
their meaning. `personal_findings` looks at any profile as a reader from outside would.

Law: `shareable(shareable(p)) == shareable(p)`, and `personal_findings(shareable(p)) == []` (tests/domain).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from infrarsi_hpc.domain import personal
from infrarsi_hpc.domain.site import SiteProfile

#: Fields that are a person's or a machine's whatever stands in them, and why.
_ALWAYS = {
    "scheduler.login_host": "it names a machine that people log in to",
    "partition.*.reservation": "reservations are made for persons",
    "request.wckey": "it names a project or an account",
    "description": "free text",
}
_SECTIONS = {"user": "what is a person's own", "notes": "free text"}
#: Fields whose values the schema limits to words that name nobody.
_SAFE = re.compile(
    r"schema_version|scheduler\.kind|partition\.\d+\.max_time|request\.(?:gpu|memory)|launch\.kind|environment\.(?:keep|scrub)\.\d+"
)
_COMMENT = re.compile(r"(?:\A|\s)#.*\Z")


@dataclass(frozen=True)
class Removal:
    """What was left out or changed, and why. The text itself is not repeated."""

    field: str
    reason: str
    #: What stands there instead; empty: nothing.
    instead: str = ""


@dataclass(frozen=True)
class PersonalFinding:
    """A field with something that is a person's, and why it is thought so."""

    field: str
    reason: str


def personal_findings(profile: SiteProfile, known: Iterable[str] = ()) -> list[PersonalFinding]:
    """What in a profile must not be published; empty: nothing found. `known` are names to look for as well."""
    value = profile.model_dump()
    names, hosts = _names(profile, known), _hosts(profile)
    found = [PersonalFinding(section, reason) for section, reason in _SECTIONS.items() if _is_set(value[section])]
    for field, text in _leaves(value):
        if field.split(".")[0] in _SECTIONS or not (text or ".variables." in field):
            continue
        always = _ALWAYS.get(_general(field))
        why = [always] if always else _why(field, text, names, hosts)
        found += [PersonalFinding(field, reason) for reason in why]
    return found


def shareable(profile: SiteProfile, known: Iterable[str] = ()) -> tuple[SiteProfile, tuple[Removal, ...]]:
    """The profile without what is personal, and what was left out or changed.

    `known` are names to look for as well: the login name of whoever exports.

    Raises
    ------
    ValueError
        Something personal would stay. Nothing is to be published then.
    """
    names, hosts = _names(profile, known), _hosts(profile)
    removed: list[Removal] = []
    value = _cleaned(profile.model_dump(), "", names, hosts, removed)
    value["launch"] = _launch_that_stands(value["launch"], removed)
    value["name"] = value["name"] or "site"
    for number, partition in enumerate(value["partition"], start=1):
        taken = {other["name"] for other in value["partition"]}
        free = (f"partition-{k}" for k in range(number, number + len(taken) + 1))
        partition["name"] = partition["name"] or next(name for name in free if name not in taken)
    result = SiteProfile.model_validate(value)
    left = personal_findings(result, names)
    if left:
        raise ValueError("; ".join(f"{finding.field}: {finding.reason}" for finding in left))
    return result, tuple(removed)


def _cleaned(value: dict[str, Any], at: str, names: set[str], hosts: set[str], removed: list[Removal]) -> Any:
    """A table with every text in it cleaned; what must go is none in a list, and empty elsewhere."""
    result: dict[str, Any] = {}
    for key, item in value.items():
        field = f"{at}.{key}" if at else key
        if field in _SECTIONS:
            if _is_set(item):
                removed.append(Removal(field, _SECTIONS[field]))
            result[key] = {}
        elif isinstance(item, dict):
            result[key] = _cleaned(item, field, names, hosts, removed)
            if field.endswith(".variables"):
                result[key] = {
                    k: v for k, v in result[key].items() if v or not (item[k] or _why(f"{field}.{k}", "", names, hosts))
                }
        elif isinstance(item, tuple | list):
            result[key] = _cleaned_list(item, field, names, hosts, removed)
        else:
            result[key] = _cleaned_text(item, field, names, hosts, removed) if isinstance(item, str) else item
    return result


def _cleaned_list(
    items: Iterable[Any], field: str, names: set[str], hosts: set[str], removed: list[Removal]
) -> list[Any]:
    kept: list[Any] = []
    for number, item in enumerate(items):
        place = f"{field}.{number}"
        if isinstance(item, dict):
            kept.append(_cleaned(item, place, names, hosts, removed))
        elif text := _cleaned_text(item, place, names, hosts, removed):
            kept.append(text)
    # a command with a word missing is another command
    if field == "login_node.mail_command" and len(kept) < len(list(items)):
        return []
    return kept


def _cleaned_text(text: str, field: str, names: set[str], hosts: set[str], removed: list[Removal]) -> str:
    if not text or (_SAFE.fullmatch(field) and not _why(field, text, names, hosts)):
        return text
    always = _ALWAYS.get(_general(field))
    if always:
        removed.append(Removal(field, always))
        return ""
    new, said = text, []
    if field.startswith("environment.setup.") and (bare := _without_comment(new)) != new:
        new = bare
        said.append("comments are free text")
    if (own := personal.rewritten(new)) != new:
        new = own
        said.append("a person's folder")
    why = _why(field, new, names, hosts)
    if why or not new:
        removed.append(Removal(field, "; ".join(why or said)))
        return ""
    if said:
        removed.append(Removal(field, "; ".join(said), instead=new))
    return new


def _why(field: str, text: str, names: set[str], hosts: set[str]) -> list[str]:
    """Why this text is personal where it stands."""
    name = field.rpartition(".variables.")[2] if ".variables." in field else ""
    if name and personal.secret_name(name):
        return ["the variable's name says that it is a secret"]
    if name and personal.identity_name(name):
        return ["the variable's name says that it is a person's, an account's or a machine's"]
    why = personal.reasons(f"{name} {text}" if name else text, names, hosts)
    if not why and field.startswith("environment.setup.") and _without_comment(text) != text:
        return ["comments are free text"]
    return why


def _without_comment(line: str) -> str:
    """A shell line without its comment, where no quote can hold the `#`."""
    found = _COMMENT.search(line)
    while found:
        before = line[: found.start()]
        if before.count("'") % 2 == 0 and before.count('"') % 2 == 0:
            return before.rstrip()
        found = _COMMENT.search(line, found.start() + 1)
    return line


def _launch_that_stands(launch: dict[str, Any], removed: list[Removal]) -> dict[str, Any]:
    """A launch table that lost its image or environment starts jobs with the plain Python."""
    needs = {"venv": "venv", "apptainer": "image", "pyxis": "image"}.get(launch["kind"])
    if needs is None or launch[needs]:
        return launch
    removed.append(Removal("launch.kind", f"launch.{needs} was left out", instead="python"))
    return {**launch, "kind": "python"}


def _names(profile: SiteProfile, known: Iterable[str]) -> set[str]:
    """Words that are somebody's, as far as the profile itself gives them away.

    What accounts, QOS and addresses are called may be the site's own word too, and is then no secret; a name in a
    path is a person's whatever else has it.
    """
    user, value = profile.user, profile.model_dump()
    site = {profile.name, profile.scheduler.cluster}
    site |= {w for p in profile.partition for w in (p.name, *p.qos, p.gpu_type, p.internode, p.intranode)}
    named = {user.account, user.reservation, *(p.reservation for p in profile.partition)}
    named -= {profile.name, profile.scheduler.cluster}
    named |= {user.qos, *_mail_parts(user.mail_user)} - site
    mail = {w for _, text in _leaves(value["user"]) for w in personal.names_in(text)} - site
    del value["user"]
    in_paths = {name for _, text in _leaves(value) for name in personal.names_in(text)}
    return {
        name
        for name in {*known, *named, *mail, *in_paths}
        if len(name) >= 3 and name.lower() not in personal.COMMON_WORDS
    }


def _mail_parts(mail: str) -> set[str]:
    return set(re.split(r"[._+%-]", mail.split("@")[0]))


def _hosts(profile: SiteProfile) -> set[str]:
    host = profile.scheduler.login_host
    mail = profile.user.mail_user.partition("@")[2]
    return {name for name in (host, personal.domain_of(host), mail) if "." in name}


def _leaves(value: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Every text of a dumped profile with its field."""
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{at}.{key}" if at else str(key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{at}.{number}")


def _general(field: str) -> str:
    return re.sub(r"\.\d+(?=\.|\Z)", ".*", field)


def _is_set(section: dict[str, Any]) -> bool:
    return any(bool(item) for item in section.values())
