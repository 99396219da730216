"""Bulk requests as bytes and their answers as verdicts: what to send together, and what each item's answer means.

Guarantees: a document's bytes go out as they came (a line break between its tokens becomes a blank, for lines part
documents here); an answer is read item by item, since HTTP 200 proves nothing; what is told of a rejected document
names its field and never a value. Deliberately not: sending, waiting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple

from penstock.errors import BugError
from penstock.model import Lsn

ID_BYTES = 512  # longer ids, and an empty one, make the server refuse the whole request
HIGHEST = (1 << 63) - 1  # a version is a signed number of 64 bits there
# Of an answer, only what is read: a server then writes, and we parse, a sixth of it.
ANSWER = "filter_path=errors,items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by.type,"
ANSWER += "items.*.error.caused_by.reason,items.delete._index"


class Verdict(Enum):
    """What an item's answer means."""

    TAKEN = auto()
    OLDER = auto()  # something newer is there: as good as taken
    AGAIN = auto()
    ASTRAY = auto()  # the name that was written to is no more
    BLOCKED = auto()
    REFUSED = auto()  # by rights or settings, whatever the document
    REJECTED = auto()


class Item(NamedTuple):
    """The server's answer to one action."""

    status: int
    kind: str = ""
    reason: str = ""
    cause: str = ""


def actions(version: Lsn, ids: Sequence[str], bodies: Sequence[bytes | None]) -> list[bytes]:
    """The lines of each write: an index with its document, or a delete."""
    if version > HIGHEST:
        raise BugError(f"{version} is higher than any version that the server can hold")
    tail = f',"version":{int(version)},"version_type":"external_gte"}}}}\n'
    names = [encode_basestring_ascii(id_) + tail for id_ in ids]
    return [
        f'{{"delete":{{"_id":{name}'.encode()
        if body is None
        else f'{{"index":{{"_id":{name}'.encode() + (body if b"\n" not in body else body.replace(b"\n", b" ")) + b"\n"
        for name, body in zip(names, bodies, strict=True)
    ]


def fits_as_id(id_: str) -> bool:
    """Whether the server can hold a document by this id."""
    return bool(id_) and (len(id_) * 4 <= ID_BYTES or len(id_.encode()) <= ID_BYTES)


def fit_as_ids(ids: Sequence[str]) -> bool:
    """Whether that holds of all of them; quick where they are short."""
    lengths = [len(id_) for id_ in ids]
    return not lengths or (min(lengths) > 0 and max(lengths) * 4 <= ID_BYTES) or all(map(fits_as_id, ids))


def cut(lines: Sequence[bytes], count: int, size: int) -> Iterator[tuple[int, int]]:
    """Where requests begin and end: each has at most `count` writes and `size` bytes, but at least one write."""
    if len(lines) <= count and sum(map(len, lines)) <= size:
        if lines:
            yield 0, len(lines)
        return
    begin = total = 0
    for at, line in enumerate(lines):
        if at > begin and (at - begin >= count or total + len(line) > size):
            yield begin, at
            begin, total = at, 0
        total += len(line)
    if begin < len(lines):
        yield begin, len(lines)


def took_all(answer: bytes, count: int) -> bool:
    """Whether each of `count` items has its status and none an error: the usual answer, told without parsing it.

    Of an answer without errors nothing but statuses is left by `ANSWER`, so no text of a document can mislead.
    """
    return b'"error"' not in answer and answer.count(b'"status":') == count


def went_astray(answer: bytes, alias: str) -> bool:
    """Whether deletes went to an index of the alias's own name.

    The alias is no more then: the server, which refuses documents for it, makes an index for versioned deletes.
    """
    return f'"_index":"{alias}"'.encode() in answer


def read(answer: bytes, count: int) -> list[Item]:
    """The items of an answer, in the order of the request."""
    try:
        items = [_item(*entry.values()) for entry in json.loads(answer)["items"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BugError("a bulk request was answered with something that has no items") from error
    if len(items) != count:
        raise BugError(f"a bulk request of {count} was answered with {len(items)} items")
    return items


_GOOD = {status: Item(status) for status in (200, 201, 404)}


def _item(answer: Mapping[str, Any]) -> Item:
    error = answer.get("error")
    if error is None:
        return _GOOD.get(answer["status"]) or Item(answer["status"])
    if isinstance(error, str):
        return Item(answer["status"], error)
    cause = error.get("caused_by", {})
    return Item(answer["status"], error["type"], error.get("reason") or "", cause.get("reason") or "")


def judge(item: Item) -> Verdict:
    """What is to be done about an item."""
    status, kind, reason = item.status, item.kind, item.reason
    if not kind and (status < 300 or status == 404):  # 404 without an error: a delete found nothing
        return Verdict.TAKEN
    if status == 409:
        return Verdict.OLDER
    if status in (403, 429) and kind == "cluster_block_exception":
        return Verdict.BLOCKED
    if status == 429 or status >= 500:
        return Verdict.AGAIN
    if status == 404 and kind == "index_not_found_exception":
        return Verdict.ASTRAY
    if status in (401, 403) or (status == 400 and reason.startswith("pipeline with id [")):
        return Verdict.REFUSED
    return Verdict.REJECTED


# The server's words that name a field, and those that hold nothing else.
_FIELDS = (
    re.compile(r"failed to parse field \[(?P<field>[^\]]*)\] of type \[(?P<type>\w+)\]"),
    re.compile(r"object mapping for \[(?P<field>[^\]]*)\] tried to parse field"),
    re.compile(r'immense term in field="(?P<field>[^"]*)"'),
    re.compile(r"mapper \[(?P<field>[^\]]*)\] cannot be changed from type"),
)
_LIMITS = re.compile(
    r"Limit of [a-z ]+ \[\d+\]|The number of nested documents has exceeded the allowed limit of \[\d+\]"
)
_STRICT = re.compile(r"dynamic introduction of \[(?P<field>[^\]]*)\] within \[(?P<parent>[^\]]*)\]")


def describe(item: Item, properties: Mapping[str, Any]) -> str:
    """Why a document was rejected, without a value of it: a path is told as far as the mapping has it."""
    for said in (item.reason, item.cause):
        if strict := _STRICT.search(said):
            parent = "" if strict["parent"] == "_doc" else known(strict["parent"], properties)
            return f"{item.kind}: a key that is not in the mapping" + (f", in {parent}" if parent else "")
        if limit := _LIMITS.search(said):
            return f"{item.kind}: {limit[0]}"
        for pattern in _FIELDS:
            if (found := pattern.search(said)) and (field := known(found["field"], properties)):
                kind = found.groupdict().get("type")
                return f"{item.kind}: field {field}" + (f" of type {kind}" if kind else "")
    return item.kind or f"status {item.status}"


def known(path: str, properties: Mapping[str, Any]) -> str:
    """As much of a path as the mapping names; keys below that may be a document's own."""
    told: list[str] = []
    here: Mapping[str, Any] = properties
    for part in path.split("."):
        if part not in here:
            break
        told.append(part)
        here = here[part].get("properties") or here[part].get("fields") or {}
    return ".".join(told)
