"""A job's state from Slurm's word for it, as written in any of its forms.

A word that is unknown, or cut so short that two states begin so, is `UNKNOWN`: never taken for an end.
"""

from __future__ import annotations

import re

from infrarsi_hpc.domain.job import JobState

#: squeue(1), JOB STATE CODES. RF stands for two states in different versions, so it is left out.
_CODES = {
    "BF": JobState.BOOT_FAIL,
    "CA": JobState.CANCELLED,
    "CD": JobState.COMPLETED,
    "CF": JobState.CONFIGURING,
    "CG": JobState.COMPLETING,
    "DL": JobState.DEADLINE,
    "F": JobState.FAILED,
    "LF": JobState.LAUNCH_FAILED,
    "NF": JobState.NODE_FAIL,
    "OOM": JobState.OUT_OF_MEMORY,
    "PD": JobState.PENDING,
    "PR": JobState.PREEMPTED,
    "R": JobState.RUNNING,
    "RD": JobState.RESV_DEL_HOLD,
    "RH": JobState.REQUEUE_HOLD,
    "RQ": JobState.REQUEUED,
    "RS": JobState.RESIZING,
    "RV": JobState.REVOKED,
    "S": JobState.SUSPENDED,
    "SE": JobState.SPECIAL_EXIT,
    "SI": JobState.SIGNALING,
    "SO": JobState.STAGE_OUT,
    "ST": JobState.STOPPED,
    "TO": JobState.TIMEOUT,
}
_WORDS = tuple(state for state in JobState if state is not JobState.UNKNOWN)


def parse_state(text: str) -> JobState:
    """The base state: the first word, whole (`CANCELLED by 70123`), as a code (`CD`) or cut (`OUT_OF_ME+`)."""
    word = text[:200].strip().upper().partition(" ")[0]
    if word in _CODES:
        return _CODES[word]
    if word.endswith("+") and len(word) > 1:
        begun = [state for state in _WORDS if state.value.startswith(word[:-1])]
        return begun[0] if len(begun) == 1 else JobState.UNKNOWN
    return next((state for state in _WORDS if state.value == word), JobState.UNKNOWN)


def cancelled_by(text: str) -> str:
    """Who cancelled it, as a uid or a name; empty where the text does not say."""
    match = re.match(r"\s*CANCELLED\s+by\s+([\w.-]{1,64})", text[:200], re.IGNORECASE)
    return f"cancelled by {match[1]}" if match else ""
