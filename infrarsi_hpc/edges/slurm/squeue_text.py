"""What squeue says, and whether it is an answer at all: an outage may look like an empty queue.

`squeue -M` ends with rc 0 although a cluster did not answer; the error stands on stderr and the table is empty.
`Invalid job id specified` says that the controller has forgotten the job (MinJobAge): unknown, not finished.
squeue's % fields have no count of restarts; sacct's duplicates and the job's own environment do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from infrarsi_hpc.domain.job import JobId, JobRecord
from infrarsi_hpc.edges.slurm.ids import MAX_TASKS, ParsedId, parse_id, parse_tasks
from infrarsi_hpc.edges.slurm.records import jobs_of, read, record_of
from infrarsi_hpc.edges.slurm.tables import clean_lines, read_table

#: Our own columns, for `squeue --noheader --format=...`; free text stands last. `%K` holds an array's pending tasks.
FIELDS = {
    "%A": "jobidraw",
    "%F": "array_job_id",
    "%K": "array_task_id",
    "%T": "state",
    "%r": "reason",
    "%N": "nodelist",
    "%V": "submit_time",
    "%S": "start_time",
    "%l": "time_limit",
    "%M": "time",
    "%D": "nodes",
    "%k": "comment",
    "%j": "name",
}
FORMAT = "|".join(FIELDS)
#: Pending tasks are listed in full, and times in a form that can be read.
ENVIRONMENT = {"SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": "standard"}

_ERROR = re.compile(
    r"slurm_load_(?:jobs?|node|partitions?) error: *(.*)|squeue: (?:error|fatal): *(.*)|^Unable to contact", re.I
)
_PURGED = re.compile(r"Invalid job id specified", re.I)
_CLUSTER = re.compile(r"CLUSTER: *([A-Za-z0-9][A-Za-z0-9_.-]{0,99})")
#: Columns of squeue's tables: the last may hold blanks, as names may; the forms of the others tell where those end.
_LAST = ("NODELIST(REASON)", "REASON", "NODELIST")
_FORMS = {
    "NAME": r"\S.*?", "STATE": "[A-Z_]+", "ST": "[A-Z]{1,2}", "NODES": "[0-9]+", "TIME": "(?:[0-9][0-9:-]*|INVALID)",
    **dict.fromkeys(("TIME_LIMIT", "TIME_LIMI", "TIMELIMIT"), "(?:[0-9][0-9:-]*|[A-Z_a-z]+)"),
}  # fmt: skip
_COLUMNS = {
    "JOBID": "jobid", "PARTITION": "partition", "NAME": "name", "USER": "user", "STATE": "state", "ST": "state",
    "TIME": "time", "TIME_LIMIT": "time_limit", "TIME_LIMI": "time_limit", "TIMELIMIT": "time_limit",
    "NODES": "nodes", "START_TIME": "start_time", "SUBMIT_TIME": "submit_time", "NODELIST": "nodelist",
    "REASON": "reason", "NODELIST(REASON)": "rest", "COMMENT": "comment",
}  # fmt: skip
_PLAIN_ROW = re.compile(
    r" *(?P<jobid>\S+) +(?P<partition>\S+) +(?P<name>\S.*?) +(?P<user>\S+) +(?P<state>[A-Z_]+) +"
    r"(?P<time>[0-9][0-9:-]*|INVALID)(?: +(?P<limit>UNLIMITED|[0-9:-]+:[0-9:-]+))? +"
    r"(?P<nodes>[0-9]+)(?: +(?P<rest>.*))?"
)


@dataclass(frozen=True)
class SqueueAnswer:
    """Records of queued jobs, and how far they may be believed.

    `is_answer` is false where a controller did not answer, or nothing shows that it did: the last known states stand.
    `is_purged` says that the only trouble was an id which the controller no longer knows.
    """

    records: tuple[JobRecord, ...]
    is_answer: bool
    is_purged: bool = False
    evidence: str = ""
    clusters: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


def squeue_errors(text: str) -> list[str]:
    """Lines in which squeue reports an error."""
    return [line.strip()[:500] for line in clean_lines(text) if _ERROR.search(line[:2000])]


def parse_squeue(stdout: str, stderr: str | None = "", returncode: int | None = 0) -> SqueueAnswer:
    """Read our own form, or a table with a header.

    `stderr` is none where it was not kept: an empty table is then no answer, for the error would have stood there.
    """
    errors = squeue_errors(stdout) + squeue_errors(stderr or "")
    records, clusters, unreadable = _records(stdout)
    purged = [line for line in errors if _PURGED.search(line)]
    outages = [line for line in errors if line not in purged]
    if outages:
        return SqueueAnswer(records, False, False, outages[0], clusters, unreadable)
    if purged:
        return SqueueAnswer(records, True, True, purged[0], clusters, unreadable)
    if returncode not in (0, None):
        evidence = next((line.strip()[:500] for line in (stderr or "").splitlines() if line.strip()), "")
        return SqueueAnswer(records, False, False, evidence or f"squeue ended with {returncode}", clusters, unreadable)
    if not records and (stderr is None or unreadable):
        evidence = f"CLUSTER: {clusters[0]}, and no rows" if clusters else "no rows"
        return SqueueAnswer((), False, False, evidence, clusters, unreadable)
    return SqueueAnswer(records, True, False, "", clusters, unreadable)


def _records(text: str) -> tuple[tuple[JobRecord, ...], tuple[str, ...], tuple[str, ...]]:
    records: list[JobRecord] = []
    clusters: list[str] = []
    unreadable: list[str] = []
    cluster, has_header = "", False
    pattern: re.Pattern[str] | None = None
    table = next((t for needed in (("jobid",), ("array_job_id",)) if (t := read_table(text, needed))), None)
    known = dict(zip(table.lines, table.rows, strict=True)) if table else {}
    for line in clean_lines(text):
        if match := _CLUSTER.fullmatch(line.strip()):
            cluster = match[1]
            clusters.append(cluster)
            continue
        if not line.strip() or _ERROR.search(line[:2000]):
            continue
        if table is not None and line not in known:
            continue  # the header, and what stands above it
        pattern = _pattern(line) or pattern
        row = known.get(line) or _row(line, pattern)
        if row is None:
            has_header = has_header or {"JOBID", "NAME"} <= set(line.split())
            if has_header or records or "|" in line:
                unreadable += [] if {"JOBID", "NAME"} <= set(line.split()) else [line.strip()[:500]]
            continue
        jobs = _jobs(row, cluster)
        if jobs and len(records) + len(jobs) <= 2 * MAX_TASKS:
            first = record_of(row, jobs[0])
            records += [replace(first, job=job) for job in jobs]
        else:
            unreadable.append(line.strip()[:500])
    return tuple(records), tuple(clusters), tuple(unreadable)


def _pattern(header: str) -> re.Pattern[str] | None:
    """How rows below a header of squeue's read: blanks may stand in a job's name and in the last column alone."""
    names = header.split()
    if not {"JOBID", "NAME"} <= set(names) or len(names) > 40 or len(set(names)) < len(names):
        return None
    cells = []
    for name in names:
        key = _COLUMNS.get(name)
        if name == names[-1] and name in _LAST:
            cells.append(rf"(?: +(?P<{key}>\S.*?))?")
            continue
        form = _FORMS.get(name, r"\S+")
        cells.append((r" +" if cells else r" *") + (f"(?P<{key}>{form})" if key else form))
    return re.compile("".join(cells) + " *")


def _row(line: str, pattern: re.Pattern[str] | None) -> Mapping[str, str] | None:
    """A line of our own form, of a table whose header was seen, or of squeue's default table."""
    cells = line.split("|", len(FIELDS) - 1)
    if len(cells) == len(FIELDS):
        return dict(zip(FIELDS.values(), (cell.strip() for cell in cells), strict=True))
    if len(line) >= 2000:
        return None
    if pattern is not None and (match := pattern.fullmatch(line)) and read(parse_id, match["jobid"]) is not None:
        row = {name: cell or "" for name, cell in match.groupdict().items()}
        return row | _nodes_or_reason(row.pop("rest")) if "rest" in row else row
    match = _PLAIN_ROW.fullmatch(line)
    if match is None or read(parse_id, match["jobid"]) is None:
        return None
    return {
        "jobid": match["jobid"],
        "name": match["name"],
        "state": match["state"],
        "time": match["time"],
        "time_limit": match["limit"] or "",
        "nodes": match["nodes"],
        **_nodes_or_reason(match["rest"] or ""),
    }


def _nodes_or_reason(cell: str) -> dict[str, str]:
    """`NODELIST(REASON)`: the nodes of a job that has some, in parentheses the reason of one that waits."""
    cell = cell.strip()
    is_reason = cell.startswith("(") and cell.endswith(")")
    return {"nodelist": "" if is_reason else cell, "reason": cell[1:-1] if is_reason else ""}


def _jobs(row: Mapping[str, str], cluster: str) -> tuple[JobId, ...]:
    """The jobs of a row: `%F` and `%K` where they are given, else the whole id."""
    whole = row.get("array_job_id") or row.get("jobid", "")
    parsed = read(parse_id, whole)
    if parsed is None:
        return ()
    tasks = row.get("array_task_id", "")
    if tasks and tasks not in ("N/A", "(null)"):
        listed = read(parse_tasks, tasks.strip("[]") if "[" in tasks else tasks)
        if listed is None:
            return ()
        parsed = ParsedId(parsed.number, listed[0], cluster=parsed.cluster)
    return jobs_of(parsed, {**row, "cluster": row.get("cluster") or cluster})
