"""`KNOB=VALUE` on the command line, checked against the contract's knobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infrarsi_hpc.domain.knobs import Configuration, Knob
from infrarsi_hpc.errors import UsageError


def parse_settings(knobs: Mapping[str, Knob], texts: Sequence[str]) -> Configuration:
    """Settings from texts such as `micro_batch=4`; a value keeps the type that the contract gives it.

    Raises
    ------
    UsageError
        No `=`, an unknown knob, or a value that the contract does not list.
    """
    settings: Configuration = {}
    for text in texts:
        name, equals, word = text.partition("=")
        if not equals:
            raise UsageError(f"{text!r} is not KNOB=VALUE", fix="for example: --set micro_batch=4")
        if name not in knobs:
            raise UsageError(f"the contract has no knob {name!r}", fix=f"its knobs: {', '.join(knobs)}")
        by_text = {str(value): value for value in knobs[name].values}
        if word not in by_text:
            raise UsageError(f"{name} cannot be {word!r}", fix=f"its values: {', '.join(by_text)}")
        settings[name] = by_text[word]
    return settings
