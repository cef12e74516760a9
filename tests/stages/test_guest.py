"""The head as a guest: when it starts and stops, how it is told apart, and a word at the end."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from infrarsi_hpc.cli.until import parse_window
from infrarsi_hpc.domain.site import SiteProfile
from infrarsi_hpc.errors import UsageError
from infrarsi_hpc.stages.run.guest import mail_end

NOW = datetime(2030, 1, 31, 21, 0)


def at(hours: float) -> float:
    return (NOW + timedelta(hours=hours)).timestamp()


@pytest.mark.parametrize(
    ("start", "until", "window"),
    [
        (None, None, (None, None)),
        ("22:00", "07:00", (at(1), at(10))),
        ("22:00", "23:00", (at(1), at(2))),
        ("20:00", "07:00", (at(23), at(34))),  # the next 20:00, and the morning after it
        ("+2h", "+3h", (at(2), at(5))),
        ("2030-01-31T20:00", None, (at(0), None)),  # a start that is past is now
        (None, "2030-02-01T07:00", (None, at(10))),
    ],
)
def test_a_window_is_what_people_mean(start: str | None, until: str | None, window: tuple) -> None:
    assert parse_window(start, until, NOW) == window


def test_an_end_that_is_past_is_refused_but_to_a_head_that_was_told_earlier() -> None:
    with pytest.raises(UsageError, match="in the past"):
        parse_window(None, "2030-01-31T07:00", NOW)
    assert parse_window(None, "2030-01-31T07:00", NOW, is_resumed=True) == (None, at(0))


def site(**login: object) -> SiteProfile:
    return SiteProfile.model_validate(
        {"schema_version": 1, "name": "t", "login_node": login, "user": {"mail_user": "me@example.org"}}
    )


def test_the_mail_goes_through_the_sites_command(tmp_path: Path) -> None:
    words: list[str] = []
    command = [
        "sh",
        "-c",
        f'cat > {tmp_path}/text; printf "%s\\n" "$@" > {tmp_path}/argv',
        "sh",
        "-s",
        "{subject}",
        "{to}",
    ]
    mail_end(site(mail_command=command), "ended: 1.2x; rm -rf", "all is well\n", said=words.append)
    assert (tmp_path / "text").read_text() == "all is well\n"
    assert (tmp_path / "argv").read_text().splitlines() == ["-s", "ended: 1.2x; rm -rf", "me@example.org"]
    assert words == []


@pytest.mark.parametrize("command", [["false"], ["/nonexistent/mail"]])
def test_a_mail_that_fails_is_said_and_stops_nothing(command: list[str]) -> None:
    words: list[str] = []
    mail_end(site(mail_command=command), "s", "t", said=words.append)
    assert len(words) == 1
    assert "was not sent" in words[0]
