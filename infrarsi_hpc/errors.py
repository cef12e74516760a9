"""Every error a user can see.

    InfrarsiError                  what / why / fix, exit code 1
    ├── UsageError                 2  the command was called wrongly
    ├── InputRefused               3  a file that was given cannot be used
    │   ├── ContractError             infrarsi.toml or infrarsi.lock
    │   ├── ProfileError              a site profile
    │   ├── StoreError                an experience store
    │   ├── LedgerError               a campaign's ledger
    │   ├── PatchError                a diff
    │   └── TrialFileError            spec.json or result.json
    ├── ProjectError               3  the project's git state or files
    ├── SiteError                  4  the site, scheduler or machine said no
    │   └── DiskFull                  nothing more can be written
    └── Interrupted                5  stopped; the same command goes on

Expected outcomes (a trial that ran out of memory, a refused verdict) are data, not exceptions.
"""

from __future__ import annotations


class InfrarsiError(Exception):
    """An error with what happened, why, and what to do about it."""

    exit_code = 1

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix

    def __str__(self) -> str:
        lines = [self.what]
        if self.why:
            lines.append(f"why: {self.why}")
        if self.fix:
            lines.append(f"fix: {self.fix}")
        return "\n".join(lines)


class UsageError(InfrarsiError):
    """The command was called wrongly."""

    exit_code = 2


class InputRefused(InfrarsiError):
    """A file that was given cannot be used."""

    exit_code = 3


class ContractError(InputRefused):
    """infrarsi.toml or infrarsi.lock cannot be used."""


class ProfileError(InputRefused):
    """A site profile cannot be used."""


class StoreError(InputRefused):
    """An experience store cannot be used."""


class LedgerError(InputRefused):
    """A campaign's ledger cannot be used."""


class PatchError(InputRefused):
    """A diff cannot be used."""


class TrialFileError(InputRefused):
    """A trial's spec.json or result.json cannot be used."""


class ProjectError(InfrarsiError):
    """The project's git state or files do not allow this."""

    exit_code = 3


class SiteError(InfrarsiError):
    """The site, its scheduler or this machine said no."""

    exit_code = 4


class DiskFull(SiteError):
    """Nothing more can be written."""


class Interrupted(InfrarsiError):
    """Stopped before the end; the same command goes on."""

    exit_code = 5
