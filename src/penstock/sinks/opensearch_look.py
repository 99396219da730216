"""Documents as the server has them, by id: what was asked, and what the answer says.

Guarantees: a document comes as the bytes that the server keeps, which are those it was sent (no number is read and
written again); its version is the one it was written with. Deliberately not: tombstones, which the server hides.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from penstock.contracts import Held
from penstock.model import Lsn

AT_ONCE = 500
"""How many documents are asked for in one request."""
_SOURCE = '"_source":'
_decoder = json.JSONDecoder()


def question(ids: Sequence[str]) -> dict[str, Any]:
    """The body of the request."""
    return {"ids": list(ids)}


def read(body: bytes, down: Callable[[str], Exception]) -> dict[str, Held]:
    """The documents that were found; what `down` makes of it is raised where one could not be asked for.

    The key `_source` stands where it is looked for and nowhere else: inside a string its quotes would be escaped, and
    what a document itself holds is stepped over.
    """
    text = body.decode()
    held, at = {}, 0
    for found in json.loads(text)["docs"]:
        if error := found.get("error"):  # its words are left out: they may quote a document
            raise down(f"a document could not be read ({error['type']})")
        if found.get("found"):
            begin = text.index(_SOURCE, at) + len(_SOURCE)
            at = _decoder.raw_decode(text, begin)[1]
            held[found["_id"]] = Held(Lsn(found["_version"]), text[begin:at].encode())
    return held
