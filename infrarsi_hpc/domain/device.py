"""Device keys: experience is kept by what the hardware is, not by where it stands."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, Field


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unknown"


class DeviceKey(BaseModel):
    """Vendor, product, memory, form factor or slice, and links inside the node.

    Examples: `nvidia-h100-80gib-sxm-nvlink`, `cpu-epyc-7b13-2core-avx512`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    vendor: str = Field(min_length=1, max_length=40)
    product: str = Field(min_length=1, max_length=80)
    memory_gib: float | None = Field(default=None, gt=0)
    form: str = Field(default="", max_length=40)
    links: str = Field(default="", max_length=40)

    def __str__(self) -> str:
        parts = [_slug(self.vendor), _slug(self.product)]
        if self.memory_gib is not None:
            parts.append(f"{self.memory_gib:.0f}gib")
        parts += [_slug(p) for p in (self.form, self.links) if p]
        return "-".join(parts)
