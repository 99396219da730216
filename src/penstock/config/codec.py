"""Plain values to JSON and back, by their types: what a lock file is written with.

Guarantees: every field is written, defaults too, so that a later default does not change what was compiled; a field
that an older file does not have gets its default; what does not fit the type is an error, never a guess. A secret is
written as the name of its variable only. Deliberately not: pickling; nothing in a file names code.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Union, get_args, get_origin, get_type_hints

from penstock.config.secrets import Secret
from penstock.document.schema import Place
from penstock.model import QualifiedTable

TAG = "is"


class Misfit(ValueError):
    """What a file holds is not what the type says."""


def encode(value: Any) -> Any:
    """The value as JSON has it. A dataclass becomes an object with its class' name under `is`."""
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, QualifiedTable):
        return [value.schema, value.name]
    if isinstance(value, Place):
        return str(value)
    if isinstance(value, Secret):
        return {"label": value.label, "env": value.env, "reserved": value.reserved, "text": value.open_text}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {one.name: encode(getattr(value, one.name)) for one in dataclasses.fields(value)}
        return {TAG: type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {key: encode(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [encode(one) for one in value]
    return value


def decode(data: Any, type_: Any) -> Any:
    """The value of that type; raises `Misfit`."""
    origin = get_origin(type_)
    if type_ is Any:
        return data
    if origin in (Union, types.UnionType):
        return _decode_union(data, get_args(type_))
    if origin is tuple:
        return tuple(decode(one, get_args(type_)[0]) for one in _expect(data, list))
    if origin is not None and issubclass(origin, Mapping):
        return {key: decode(one, get_args(type_)[1]) for key, one in _expect(data, dict).items()}
    return _decode_plain(data, type_)


def _decode_plain(data: Any, type_: Any) -> Any:
    if type_ is QualifiedTable:
        return QualifiedTable(*(_expect(one, str) for one in _expect(data, list)))
    if type_ is Place:
        file, line, column = _expect(data, str).rsplit(":", 2)
        return Place(file, int(line), int(column))
    if type_ is Secret:
        given = _expect(data, dict)
        return Secret(given["label"], literal=given["text"], env=given["env"], reserved=given["reserved"])
    if dataclasses.is_dataclass(type_):
        return _decode_fields(_expect(data, dict), type_)
    if issubclass(type_, StrEnum):
        return type_(data)
    if type_ is float and type(data) is int:
        return data
    return _expect(data, type_)


def _decode_fields(data: dict[str, Any], type_: Any) -> Any:
    hints = _hints(type_)
    if data.get(TAG) != type_.__name__:
        raise Misfit(f"no {type_.__name__}")
    if unknown := data.keys() - hints.keys() - {TAG}:
        raise Misfit(f"{type_.__name__} has no {', '.join(sorted(unknown))}")
    try:
        return type_(**{name: decode(data[name], hints[name]) for name in hints if name in data})
    except TypeError:
        raise Misfit(f"{type_.__name__} is not whole") from None


def _decode_union(data: Any, members: tuple[Any, ...]) -> Any:
    if data is None and type(None) in members:
        return None
    classes: dict[str, Any] = {one.__name__: one for one in members if isinstance(one, type)}
    if isinstance(data, dict) and data.get(TAG) in classes:
        return decode(data, classes[data[TAG]])
    if type(data) in members or (type(data) is int and float in members):
        return data
    for one in members:
        if isinstance(one, type) and issubclass(one, StrEnum) and isinstance(data, str):
            return decode(data, one)
    raise Misfit("a value of another type")


def _expect(data: Any, type_: Any) -> Any:
    wrong = not isinstance(data, type_) or (isinstance(data, bool) and type_ is not bool)
    if wrong:
        raise Misfit("a value of another type")
    return data


@functools.cache
def _hints(type_: Any) -> dict[str, Any]:
    hints = get_type_hints(type_)
    return {one.name: hints[one.name] for one in dataclasses.fields(type_)}
