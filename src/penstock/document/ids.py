"""A document's id in a search engine, from the key of its root row.

Guarantees: no two keys of an index give the same id; the id is at most 512 bytes long, as OpenSearch wants it; a key
of one part is its own id, as long as it fits. Deliberately not: reading an id back; ids only go out.
"""

from __future__ import annotations

import hashlib

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
