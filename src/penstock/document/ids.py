"""A document's id in a search engine, from the key of its root row, and back.

Guarantees: no two keys of an index give the same id; the id is at most 512 bytes long, as OpenSearch wants it; a key
of one part is its own id, as long as it fits. An id leads back to its key, unless it is a digest: that of a key that is
empty or too long, which only a look at every key can find.
"""

from __future__ import annotations

import hashlib
import re

from penstock.contracts import Key

MAX_BYTES = 512
_DIGEST = "~sha256:"


def document_id(key: Key) -> str:
    """The id of the document whose root row has this key.

    Parts are joined by `|`; in the parts of a longer key a `|` and the `\\` that marks it are written `\\|` and `\\\\`.
    An id that would be empty or too long is a digest of it, kept apart from all others by how it begins.
    """
    whole = key[0] if len(key) == 1 else "|".join(part.replace("\\", "\\\\").replace("|", "\\|") for part in key)
    if whole and len(whole.encode()) <= MAX_BYTES and not whole.startswith(_DIGEST):
        return whole
    return _DIGEST + hashlib.sha256(whole.encode()).hexdigest()


def is_digest(id: str) -> bool:
    """Whether the id does not tell the key it was made of."""
    return id.startswith(_DIGEST)


def key_of(id: str, parts: int) -> Key | None:
    """The key of so many parts that gives this id; None where there is none, or where the id is a digest."""
    if parts == 1:
        key: Key = (id,)
    else:
        escaped = re.findall(r"((?:[^|\\]|\\.)*)(?:\||$)", id, re.DOTALL)
        key = tuple(re.sub(r"\\(.)", r"\1", part, flags=re.DOTALL) for part in escaped[:parts])
    return key if len(key) == parts and document_id(key) == id else None
