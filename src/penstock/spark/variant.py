"""JSON texts as Spark's VARIANT values.

The form is Spark's own: `VariantUtils` writes it, as `parse_json` in SQL does. Guarantees: null stays null; a text
that no VARIANT can hold (a number beyond a double, half a surrogate pair, nesting or size beyond the limits) is told
by its place, never bent and never quoted. Deliberately not: digits beyond those of a decimal(38), which Spark itself
reads as a double; whoever needs them asks for JSON as text.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.variant_utils import VariantBuilder

_FIELDS = (
    pa.field("value", pa.binary(), nullable=False),
    pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
)
_NOTHING = (b"", b"")
_INFINITE = (float("inf"), float("-inf"))


class Variants(NamedTuple):
    """The values as Arrow, and which of the texts have none although they are not null (None: all have)."""

    values: pa.Array[Any]
    unrepresentable: npt.NDArray[np.bool_] | None


class _Builder(VariantBuilder):
    def _append_float(self, f: float) -> None:
        if f in _INFINITE:
            raise ValueError
        super()._append_float(f)


def to_variant(texts: pa.Array[Any]) -> Variants:
    """JSON texts as VARIANT values."""
    given = texts.to_pylist()
    found = [None if text is None else _parse(text) for text in given]
    null = np.array([one is None for one in found], np.bool_)
    bad = null & ~np.array([text is None for text in given], np.bool_)
    values, metadata = zip(*(one or _NOTHING for one in found), strict=True) if found else ((), ())
    arrays = [pa.array(values, pa.binary()), pa.array(metadata, pa.binary())]
    struct = pa.StructArray.from_arrays(arrays, fields=list(_FIELDS), mask=pa.array(null, pa.bool_()))
    return Variants(struct, bad if bad.any() else None)


def _parse(text: str) -> tuple[bytes, bytes] | None:
    try:
        return _Builder().build(text)
    # Spark's size limit, UnicodeError and json's own error are ValueErrors; what they say may quote the text.
    except (ValueError, RecursionError, OverflowError):
        return None
