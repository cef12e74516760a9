"""Number formats of matrix products: how fine they are, and how far rounding alone moves a mean loss."""

from __future__ import annotations

from collections.abc import Collection

#: Bits of the significand by short name; more is finer.
BITS = {
    "fp64": 53,
    "fp32": 24,
    "tf32": 11,
    "fp16": 11,
    "bf16": 8,
    "fp8_e4m3": 4,
    "fp8_e5m2": 3,
    "int8": 3,
    "fp4": 2,
}

_NAMES = {
    "float64": "fp64",
    "double": "fp64",
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3fnuz": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "float8_e5m2fnuz": "fp8_e5m2",
    "float4_e2m1fn_x2": "fp4",
}

#: Relative difference of a batch's mean loss that rounding explains, by the coarsest format of its products. fp32: 64
#: units of rounding, twenty times what honest rewrites were seen to differ by (2e-7); the 16-bit formats: twice the
#: 1e-3 to which bf16 layouts of one model were seen to agree. Others get the contract's tolerance.
ROUNDING = {"fp64": 4e-6, "fp32": 4e-6, "tf32": 2e-3, "fp16": 2e-3, "bf16": 2e-3}


def short_name(dtype: str) -> str:
    """`fp32` for torch's `float32`; a name that is not known comes back as it is."""
    bare = dtype.removeprefix("torch.")
    return _NAMES.get(bare, bare)


def lowest(dtypes: Collection[str]) -> str:
    """The coarsest of several formats, by short name; unknown ones count as the coarsest. Empty: an empty name."""
    return min((short_name(dtype) for dtype in sorted(dtypes)), key=lambda name: BITS.get(name, 0), default="")
