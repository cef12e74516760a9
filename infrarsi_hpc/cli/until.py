"""Points in time as people write them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from infrarsi_hpc.errors import UsageError


def parse_until(text: str, now: datetime) -> float:
    """Unix time of `07:00` (the next one), `+90m`, `+2h`, or an ISO date and time.

    Raises
    ------
    UsageError
        None of these, or in the past.
    """
    if match := re.fullmatch(r"\+(\d{1,5})([mh])", text):
        amount = int(match[1])
        return (now + (timedelta(hours=amount) if match[2] == "h" else timedelta(minutes=amount))).timestamp()
    if match := re.fullmatch(r"(\d{1,2}):(\d{2})", text):
        hour, minute = int(match[1]), int(match[2])
        if hour < 24 and minute < 60:
            then = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
            return (then if then > now else then + timedelta(days=1)).timestamp()
    try:
        then = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a time", fix="write 07:00, +90m, +2h or 2030-01-31T07:00") from None
    if then.tzinfo is None:
        then = then.astimezone()
    if then <= now.astimezone():
        raise UsageError(f"{text} is in the past", fix="give a later time")
    return then.timestamp()


def parse_window(
    start_at: str | None, until: str | None, now: datetime | None = None, *, is_resumed: bool = False
) -> tuple[float | None, float | None]:
    """Unix times of a start and an end; the end is the first such time after the start.

    A resumed head was told points in time, which may have passed.

    Raises
    ------
    UsageError
        One is no time, or the end is not after the start. A start that is past is now.
    """
    now = now or datetime.now()
    begin = _start(start_at, now) if start_at else None
    if until is None:
        return begin, None
    if is_resumed and (past := _start(until, now)) <= now.timestamp():
        return begin, past
    end = parse_until(until, datetime.fromtimestamp(begin) if begin is not None else now)
    return begin, end


def _start(text: str, now: datetime) -> float:
    try:
        then = datetime.fromisoformat(text)
    except ValueError:
        return parse_until(text, now)
    return max(now.timestamp(), (then if then.tzinfo else then.astimezone()).timestamp())
