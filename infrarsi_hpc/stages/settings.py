"""`KNOB=VALUE` on the command line, checked against the contract's knobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infrarsi_hpc.domain.knobs import Configuration, Knob
from infrarsi_hpc.errors import UsageError


def parse_settings(knobs: Mapping[str, Knob], texts: Sequence[str], flag: str = "--set") -> Configuration:
    """Settings from texts such as `micro_batch=4`, given with `flag`; a value keeps the type of the contract's.

    Raises
    ------
    UsageError
        No `=`, an unknown knob, or a value that the contract does not list.
    """
    settings: Configuration = {}
    for text in texts:
        name, equals, word = text.partition("=")
        if not equals:
            raise UsageError(
                f"{text!r} is not KNOB=VALUE", fix=f"for example: {flag} {next(iter(knobs), 'micro_batch')}=VALUE"
            )
        if name not in knobs:
            raise UsageError(f"the contract has no knob {name!r}", fix=f"its knobs: {', '.join(knobs)}")
        by_text = {str(value): value for value in knobs[name].values}
        if word not in by_text:
            raise UsageError(f"{name} cannot be {word!r}", fix=f"its values: {', '.join(by_text)}")
        settings[name] = by_text[word]
    return settings
