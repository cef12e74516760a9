"""What sbatch says: the id of the job it took, or why it took none.

A site may print a page of text round the id, a wrapper nothing but the number. A refusal is either for good, to be
waited for, to be tried again, or no refusal at all: a reply that was lost, with the job in the queue.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from infrarsi_hpc.domain.job import JobId
from infrarsi_hpc.edges.slurm.refusals import (
    AMBIGUOUS,
    FIXES,
    PERMANENT,
    TRANSIENT,
    WAIT,
    Kind,
    Row,
)
from infrarsi_hpc.edges.slurm.site_rules import OPTIONS, SUBJECTS, WANTED
from infrarsi_hpc.edges.slurm.tables import clean_lines

#: Last lines of a refusal that are read.
MAX_LINES = 300
#: What ends a command that ran past our own time limit, as `subprocess` and `timeout` report it.
_KILLED = frozenset({124, 137, 143, -9, -15})
_SUBMITTED = re.compile(r"Submitted batch job ([0-9]{1,10})(?: on cluster ([A-Za-z0-9][A-Za-z0-9_.-]{0,99}))?(?![\w;])")
_PARSABLE = re.compile(r"([0-9]{1,10})(?:;([A-Za-z0-9][A-Za-z0-9_.-]{0,99}))?")
_OWN = re.compile(r"^(?:sbatch|srun|salloc|scontrol): (?:(?:error|fatal|warning|info): *)?", re.IGNORECASE)
_FROM_SBATCH = re.compile(r"^(?:sbatch|srun|salloc)(?::|\W.*not found)", re.IGNORECASE)
_PLUGIN = re.compile(r"plugin terminated with error|Unspecified error|job_submit|cli_filter|\blua\b", re.IGNORECASE)
_FAILED = re.compile(r"(?:Batch job submission|Job submit/allocate|allocation) fail(?:ed|ure): *", re.IGNORECASE)
_UNKNOWN_OPTION = re.compile(
    r"unrecognized option|invalid option|unknown option|option requires an argument", re.IGNORECASE
)
#: Errors that a plugin gives beside its own words.
_VAGUE = re.compile(
    r"Access/permission denied|Requested operation (?:not supported|is presently disabled)", re.IGNORECASE
)
_EMPTY_WORDS = re.compile(
    r"^(?:(?:cli_filter|job_submit)\S* plugin terminated with error|Unspecified error|errors? in job submission:?|-*)$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class SubmitRefusal:
    """Why there is no job id.

    `permanent`: the same request will never be taken. `wait`: a limit that passes as jobs end. `transient`: the site's
    trouble. `ambiguous`: the job may exist. `unknown`: words nobody has seen, so tried a few times and then shown.
    `field` is the field of the site profile to look at, empty where none is to blame.
    """

    kind: Kind
    field: str
    evidence: str
    fix: str


def parse_submission(stdout: str) -> JobId | None:
    """The job that sbatch took, none where its output names none.

    `Submitted batch job N [on cluster C]` counts before `N;C` (`--parsable`), that before a line that is a bare number;
    of several the last, for banners come first.
    """
    lines = [line.strip() for line in clean_lines(stdout)]
    said = [match for line in lines for match in _SUBMITTED.finditer(line[:2000])]
    alone = [match for line in lines if (match := _PARSABLE.fullmatch(line))]
    for found in (said, [match for match in alone if match[2]], alone):
        jobs = [JobId(int(match[1]), cluster=match[2] or "") for match in found if int(match[1])]
        if jobs:
            return jobs[-1]
    return None


def classify_refusal(stderr: str, returncode: int | None = 1, *, timed_out: bool = False) -> SubmitRefusal:
    """Why sbatch gave no job id, from its words and its exit code.

    `returncode` is none where nobody knows it; `timed_out` that we ended sbatch ourselves. Words nobody has seen are
    `unknown` and never `permanent`: a campaign is not stopped for a sentence that may speak of a passing trouble.
    """
    lines = [line.strip()[:2000] for line in clean_lines(stderr) if line.strip()][-MAX_LINES:]
    if timed_out or returncode in _KILLED:
        evidence = lines[-1] if lines else f"sbatch was ended before it answered (exit code {returncode})"
        return _refusal(AMBIGUOUS[0], evidence)
    spoken = [line for line in lines if _FROM_SBATCH.match(line) or _FAILED.search(line)] or lines
    if (found := _first(AMBIGUOUS, spoken)) is not None:
        return found
    option = next((line for line in spoken if _UNKNOWN_OPTION.search(line)), None)
    if option is not None:
        field = _field(OPTIONS, option)
        fix = FIXES[field] or "this sbatch does not know the option; remove it from the template"
        return SubmitRefusal("permanent", field, _evidence(option), fix)
    # "Job violates accounting/QOS policy" names every limit there is; the line before says which
    policy = [line for line in spoken if "accounting/QOS policy" in line]
    precise = [line for line in spoken if line not in policy and not _EMPTY_WORDS.match(_words(line))]
    own_words = [line for line in precise if not _VAGUE.search(line)]
    is_site_rule = not policy and (own_words != precise or any(_PLUGIN.search(line) for line in spoken))
    if is_site_rule and (rule := _of_site(own_words)) is not None:
        return rule
    for rows in (PERMANENT, WAIT, TRANSIENT):
        if (found := _first(rows, precise)) is not None:
            return found
    if policy:
        return _refusal(WAIT[0], policy[0])
    if not precise and any(_PLUGIN.search(line) for line in spoken):
        fix = "a plugin of the site's refused without a reason: ask the site what it wants of a job"
        return SubmitRefusal("unknown", "", _evidence(spoken[0]), fix)
    option = next((line for line in precise if re.search(r"--[a-z]", line) and _field(OPTIONS, line)), None)
    if option is not None:  # sbatch's own checks name the option
        return SubmitRefusal("permanent", field := _field(OPTIONS, option), _evidence(option), FIXES[field])
    line = (precise or lines or [f"sbatch said nothing and ended with {returncode}"])[0]
    field = _subject(line)
    fix = "tried again a few times; if it stays so, correct what the line names" + (f" ({field}?)" if field else "")
    return SubmitRefusal("unknown", field, _evidence(line), fix)


def is_refusal_text(text: str) -> bool:
    """Whether a text is sbatch's, or a submit plugin's, about a job that was not taken."""
    lines = [line.strip()[:2000] for line in clean_lines(text)]
    return any(
        re.match(r"(?:sbatch|salloc|srun): |.*\bsbatch\b.*(?:not found|No such file)", line, re.I)
        or _FAILED.search(line)
        for line in lines
    )


# ---- words


def _of_site(lines: list[str]) -> SubmitRefusal | None:
    """What a site's own rule complains of: limits that pass, else the field that its words speak of."""
    if not lines:
        return None
    for rows in (WAIT, TRANSIENT[:3]):
        if (found := _first(rows, lines)) is not None:
            return found
    for line in lines:
        if field := _subject(line):
            wanted = [
                setting for words, setting in WANTED if setting.startswith(field) and words.search(" ".join(lines))
            ]
            fix = f"set {wanted[0]}" if wanted else FIXES[field]
            return SubmitRefusal("permanent", field, _evidence(line), f"a rule of the site: {fix}")
    return None


def _subject(line: str) -> str:
    """The field of the site profile that a line speaks of, empty where it names none."""
    words = _words(line)[:600]
    return next((field for subject, field in SUBJECTS if subject.search(words)), "") or _field(OPTIONS, line)


def _first(rows: tuple[Row, ...], lines: list[str]) -> SubmitRefusal | None:
    for row in rows:
        for line in lines:
            if row.words.search(line):
                return _refusal(row, line)
    return None


def _refusal(row: Row, line: str) -> SubmitRefusal:
    return SubmitRefusal(row.kind, row.field, _evidence(line), row.fix)


def _field(table: tuple[tuple[re.Pattern[str], str], ...], line: str) -> str:
    return next((field for words, field in table if words.search(line)), "")


def _words(line: str) -> str:
    """A line without what says who is speaking."""
    return _FAILED.sub("", _OWN.sub("", line)).strip()


def _evidence(line: str) -> str:
    return line.strip()[:500]
