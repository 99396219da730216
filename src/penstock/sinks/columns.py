"""Documents as columns of a table file: what sinks that write Parquet have in common.

Guarantees: a document's bytes become a text of the same bytes; a version becomes a signed number of the same order.
Deliberately not: looking into a document.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.errors import BugError
from penstock.model import Lsn

NO_TEXT = "it is no text in UTF-8"
"""Why a document is rejected that cannot stand in a column of texts."""
_HIGHEST = (1 << 63) - 1


def is_text(body: bytes) -> bool:
    """Whether a document can stand in a column of texts."""
    try:
        return body.isascii() or bool(body.decode())
    except UnicodeDecodeError:
        return False


def texts(bodies: Sequence[bytes | None]) -> pa.Array:
    """A column of documents, each of which `is_text`; None stays null."""
    return pa.array(bodies, pa.binary()).cast(pa.string())


def versions(lsns: Sequence[Lsn]) -> pa.Array:
    """A column of versions."""
    if lsns and max(lsns) > _HIGHEST:
        raise BugError(f"{max(lsns)} is higher than any version that a column can hold")
    return pa.array([int(lsn) for lsn in lsns], pa.int64())
