"""Feature rows as numbers, and quantised: one byte per value and one scale per row.

A row is quantised so that its largest value has the largest code: ``value = code * scale``. int8 has steps of one size,
so a value is off by half a step, a 254th of the row's largest, at most. E4M3 (sign, 4 bits of exponent, 3 of mantissa,
without infinities; Micikevicius et al. 2022, "FP8 formats for deep learning") is off by a 16th of the value itself.
"""

from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import TraceInvalid

Features = npt.NDArray[Any]
Float32s = npt.NDArray[np.float32]


class FeatureDtype(StrEnum):
    """What a row of `features` holds; bfloat16 travels as its bits in uint16, E4M3 as its codes in uint8."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    E4M3 = "float8_e4m3"

    @property
    def is_quantised(self) -> bool:
        """Whether rows are codes, each row with a scale of its own."""
        return self in _LARGEST


#: What an array of each kind is.
STORED_AS: dict[FeatureDtype, type] = {
    FeatureDtype.FLOAT32: np.float32,
    FeatureDtype.FLOAT16: np.float16,
    FeatureDtype.BFLOAT16: np.uint16,
    FeatureDtype.INT8: np.int8,
    FeatureDtype.E4M3: np.uint8,
}

#: Scales of rows that are not quantised.
NO_SCALES: Float32s = np.zeros(0, np.float32)
#: The largest code of each quantised kind, as a number.
_LARGEST = {FeatureDtype.INT8: 127.0, FeatureDtype.E4M3: 448.0}
#: Values quantised at once: as float32 they stay in a core's own cache, which halves the time.
_VALUES = 1 << 16
_SMALLEST_NORMAL = np.float32(2.0**-6)  # of E4M3
_SUBNORMAL_STEP = np.float32(2.0**-9)


def as_float32(features: Features, dtype: FeatureDtype, scales: Float32s | None = None) -> Float32s:
    """Feature rows as numbers. bfloat16 arrives as its bits, which are the upper half of a float32.

    `scales` are those of quantised rows, one each.
    """
    if dtype is FeatureDtype.BFLOAT16:
        bits = features.astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    codes = _E4M3[features] if dtype is FeatureDtype.E4M3 else features.astype(np.float32)
    return codes if scales is None or not dtype.is_quantised else codes * scales[:, None]


def quantised(features: Features, dtype: FeatureDtype, kind: FeatureDtype) -> tuple[Features, Float32s]:
    """The codes [F, D] of rows that are not quantised, as `kind` stores them, and the scale of each row, [F].

    TraceInvalid when a value is not finite: it has no code.
    """
    scales = np.zeros(len(features), np.float32)
    codes: Features = np.zeros(features.shape, STORED_AS[kind])
    rows_at_once = max(_VALUES // max(features.shape[1], 1), 1)
    for at in range(0, len(features), rows_at_once):
        part = slice(at, at + rows_at_once)
        rows: Float32s = features[part].copy() if dtype is FeatureDtype.FLOAT32 else as_float32(features[part], dtype)
        largest = np.abs(rows).max(axis=1, initial=0.0)
        if not np.isfinite(largest).all():
            wrong = at + int(np.argmin(np.isfinite(largest)))
            raise TraceInvalid(f"features row {wrong}: got a value that is not finite, expected none for {kind}")
        scales[part] = largest / np.float32(_LARGEST[kind])
        # A row of zeros, or of numbers too small for a scale, has codes of zero.
        units = np.where(scales[part] > 0.0, scales[part], np.inf).astype(np.float32)
        np.divide(rows, units[:, None], out=rows)
        codes[part] = _int8(rows) if kind is FeatureDtype.INT8 else _e4m3(rows)
    return codes, scales


def _int8(rows: Float32s) -> Float32s:
    """The nearest codes, as numbers; changes `rows`."""
    np.rint(rows, out=rows)
    return np.clip(rows, -127.0, 127.0, out=rows)


def _e4m3(values: Float32s) -> npt.NDArray[np.uint8]:
    """The nearest codes of values within ±448, ties to even, looked up by the upper half of a float32.

    The lowest bit of that half says whether anything stands in the lower one: a code has fewer bits, so no more is
    needed to round.
    """
    bits = values.view(np.uint32)
    upper = (bits >> 16).astype(np.uint16)
    upper |= (bits & 0xFFFF) != 0
    return _E4M3_OF_UPPER[upper]


def _e4m3_of(values: Float32s) -> npt.NDArray[np.uint8]:
    """The nearest codes of values within ±448, ties to even, calculated."""
    sizes = np.abs(values)
    bits = sizes.view(np.uint32)
    # The upper bits of a float32 are exponent and mantissa too: round at the third bit of the mantissa, and let the
    # carry go into the exponent. Exponents are biased by 127 there and by 7 here.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20).astype(np.int32) - ((127 - 7) << 3)
    codes = np.where(sizes < _SMALLEST_NORMAL, np.rint(sizes / _SUBNORMAL_STEP), normal)
    return np.where(np.signbit(values), codes + 0x80, codes).astype(np.uint8)


def _e4m3_numbers() -> Float32s:
    """What each of the 256 codes of E4M3 means."""
    code = np.arange(256)
    exponent = (code >> 3) & 15
    mantissa = code & 7
    sizes = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9)
    sizes[(code & 0x7F) == 0x7F] = np.nan
    return np.where(code < 128, sizes, -sizes).astype(np.float32)


_E4M3 = _e4m3_numbers()
_UPPER = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
_E4M3_OF_UPPER = _e4m3_of(np.nan_to_num(_UPPER, nan=448.0).clip(-448.0, 448.0))
