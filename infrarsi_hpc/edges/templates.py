"""Render sbatch scripts. Every value is checked for where it stands, so that none can end its line or its quotes.

Templates of the user's own folder come before the shipped ones of the same name.

Covers: newlines, quotes, shell characters and option-like words in every value that a template prints through a filter.
Does not cover: the site's own setup lines, which are shell code by purpose (an imported profile's are confirmed first),
and a template of the user's that prints a value without a filter.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from infrarsi_hpc.edges.shipped import shipped
from infrarsi_hpc.edges.user_folders import config_folder
from infrarsi_hpc.errors import SiteError

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NAME = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")

#: What may stand on an #SBATCH line, where quotes do not help: filter, pattern, and its words for people.
_PLACES: dict[str, tuple[str, str]] = {
    "word": (r"[A-Za-z0-9][A-Za-z0-9_.:@+-]{0,149}", "a word of letters, digits and _ . : @ + -"),
    "words": (r"[A-Za-z0-9_,]{1,150}", "words with commas between them"),
    "path": (r"/[A-Za-z0-9_.,+@%/-]{0,900}", "an absolute path without blanks or shell characters"),
    "number": (r"[0-9]{1,12}", "a whole number"),
    "array": (r"[0-9]{1,9}(-[0-9]{1,9})?(%[0-9]{1,9})?", "a range of array tasks"),
    "constraint": (r"[A-Za-z0-9_][A-Za-z0-9_.&|()\[\]*-]{0,199}", "a constraint"),
    "nodes": (r"[A-Za-z0-9][A-Za-z0-9_.,\[\]-]{0,4000}", "a list of nodes"),
    "mail": (r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,190}", "a mail address"),
    "variable": (r"[A-Za-z_][A-Za-z0-9_]{0,99}", "a variable's name"),
}


def own_templates() -> Path:
    """Where a user's own templates lie, if there are any."""
    return config_folder(os.environ, Path.home()) / "templates"


def render(template: str, values: Mapping[str, Any], *, own_folder: Path | None = None) -> str:
    """The script of a template, the user's own if there is one of that name.

    Raises
    ------
    SiteError
        A value is missing, or holds characters that must not reach its place in the script, or the user's own
        template is not one.
    """
    import jinja2
    from jinja2.sandbox import SandboxedEnvironment

    folders = [*([own_folder] if own_folder is not None else []), shipped("sbatch_templates")]
    environment = SandboxedEnvironment(
        loader=jinja2.FileSystemLoader(folders),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters.update({name: _filter(*place) for name, place in _PLACES.items()})
    environment.filters.update(quoted=_quoted, expanded=_expanded)
    try:
        return environment.get_template(template).render(values)
    except jinja2.UndefinedError as error:
        raise SiteError(f"{template} cannot be rendered", why=str(error), fix="give the value it names") from error
    except jinja2.TemplateError as error:
        where = f" (line {error.lineno})" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise SiteError(
            f"{template} is no template{where}", why=str(error), fix=f"correct it in {own_folder or folders[-1]}"
        ) from error


def _filter(pattern: str, what: str) -> Callable[[object], str]:
    compiled = re.compile(pattern + r"\Z")

    def check(value: object) -> str:
        text = str(value)
        if not compiled.match(text):
            raise SiteError(
                f"{text!r} cannot stand on an #SBATCH line", why=f"it is not {what}", fix="rename or move it"
            )
        return text

    return check


def _quoted(value: object) -> str:
    """A value in a command, quoted for the shell."""
    return shlex.quote(_printable(value))


def _expanded(value: object) -> str:
    """A value in a command in which `$NAME` stands for the job's own variable, and nothing else for anything."""
    text = _printable(value)
    parts, end = [], 0
    for match in _NAME.finditer(text):
        parts += [_inert(text[end : match.start()]), f"${{{match[1] or match[2]}}}"]
        end = match.end()
    return '"' + "".join([*parts, _inert(text[end:])]) + '"'


def _inert(text: str) -> str:
    return re.sub(r'([\\"$`])', r"\\\1", text)


def _printable(value: object) -> str:
    text = str(value)
    if _CONTROL.search(text):
        raise SiteError(f"{text!r} cannot stand in a job script", why="it holds a control character", fix="rename it")
    return text
