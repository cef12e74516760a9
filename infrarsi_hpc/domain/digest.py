"""Canonical digests: the same content has the same name everywhere."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest_text(text: str) -> str:
    """SHA-256 of a text as UTF-8, in hex."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def digest_json(value: Any) -> str:
    """SHA-256 of a JSON-able value in canonical form (sorted keys, no spaces), in hex."""
    return digest_text(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True))
