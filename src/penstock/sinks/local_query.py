"""What people type into a search box, as a query of SQLite's full-text search.

Words are all looked for; "a phrase" in that order; `lov*` by its beginning; `-word` must not be there; `title:word` in
one field (or below it); `a OR b` either. Guarantees: a pure answer; whatever was typed is a valid query or a
ConfigError of one sentence; no character has a meaning beyond these.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.errors import ConfigError
from penstock.sinks.local_text import column

_HINT = 'Words, "a phrase", begin*, -without, field:word, this OR that.'
_TERM = re.compile(
    r"""(?P<without>-?)
        (?:(?P<field>[^\W\d][\w.]*):(?!/))?  # not the scheme of a URL, nor a time
        (?:"(?P<phrase>[^"]*)"|(?P<word>[^\s"]+))
    """,
    re.VERBOSE,
)


def translate(text: str, fields: Sequence[str]) -> str:
    """The query in FTS5's own language, over columns that stand for these fields."""
    if text.count('"') % 2:
        raise ConfigError("the query has a quotation mark that is not closed", hint=_HINT)
    wanted: list[list[str]] = []
    unwanted: list[str] = []
    either = False
    for found in _TERM.finditer(text):
        if found[0] == "OR":
            either = bool(wanted)
            continue
        term = _term(found, fields)
        if term and found["without"]:
            unwanted.append(term)
        elif term and either:
            wanted[-1].append(term)
        elif term:
            wanted.append([term])
        either = False
    if not wanted:
        raise ConfigError("the query has no word to look for", hint=_HINT)
    query = " AND ".join(f"({' OR '.join(terms)})" for terms in wanted)
    return f"({query}) NOT ({' OR '.join(unwanted)})" if unwanted else query


def _term(found: re.Match[str], fields: Sequence[str]) -> str:
    """A phrase, word or beginning; empty where it holds no letter and no digit, which nothing could match."""
    words = found["phrase"] if found["word"] is None else found["word"]
    begins = found["word"] is not None and words.endswith("*")
    if not any(one.isalnum() for one in words):
        return ""
    quoted = '"' + words.rstrip("*").replace("\0", " ") + '"' + ("*" if begins else "")
    return quoted if found["field"] is None else f"{_columns(found['field'], fields)} : {quoted}"


def _columns(field: str, fields: Sequence[str]) -> str:
    below = [column(at) for at, name in enumerate(fields) if name == field or name.startswith(f"{field}.")]
    if not below:
        raise ConfigError(f"there is no text field {field}", hint=f"There are: {', '.join(fields)}.")
    return "{" + " ".join(below) + "}"
