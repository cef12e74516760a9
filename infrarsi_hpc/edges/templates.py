"""Render sbatch scripts. Every value is checked for where it stands, so that none can end its line or its quotes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from infrarsi_hpc.edges.shipped import shipped
from infrarsi_hpc.errors import SiteError

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+-]{0,99}\Z")
_PATH = re.compile(r"/[A-Za-z0-9_.,+@%/-]{0,900}\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def render(template: str, values: Mapping[str, Any]) -> str:
    """The script of a shipped template.

    Raises
    ------
    SiteError
        A value is missing, or holds characters that must not reach its place in the script.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(shipped("sbatch_templates")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters.update(word=_word, path=_path, quoted=_quoted)
    try:
        return environment.get_template(template).render(values)
    except jinja2.UndefinedError as error:
        raise SiteError(f"{template} cannot be rendered", why=str(error), fix="give the value it names") from error


def _word(value: object) -> str:
    """A value on an #SBATCH line: letters, digits and _ . : + - alone."""
    return _matching(_WORD, value, "a word of letters, digits and _ . : + -")


def _path(value: object) -> str:
    """A path on an #SBATCH line, where quotes do not help."""
    return _matching(_PATH, value, "an absolute path without blanks or shell characters")


def _quoted(value: object) -> str:
    """A value in a command, quoted for the shell."""
    text = str(value)
    if _CONTROL.search(text):
        raise SiteError(f"{text!r} cannot stand in a job script", why="it holds a control character", fix="rename it")
    return shlex.quote(text)


def _matching(pattern: re.Pattern[str], value: object, what: str) -> str:
    text = str(value)
    if not pattern.match(text):
        raise SiteError(f"{text!r} cannot stand on an #SBATCH line", why=f"it is not {what}", fix="rename or move it")
    return text
