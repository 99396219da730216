"""`penstock explain`: where a document comes from, and what each sink has of it, held against the database.

Guarantees: keys, counts and the names of fields alone are told, unless values are asked for. Done by the running
deployment, whose sinks may be nobody else's to read; by the command itself where none runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.app.asked import text
from penstock.app.looking import looked_at
from penstock.app.parts import open_builder
from penstock.config.connection import connection_settings
from penstock.contracts import Held, Key, ReadableSink
from penstock.document.paths import paths, root_key
from penstock.document.provenance import rows_of
from penstock.engine.reconcile import value_of
from penstock.errors import ConfigError
from penstock.ops.control import NothingRunsError, ask

if TYPE_CHECKING:
    from penstock.app.prepared import Prepared
    from penstock.config.deployment import Deployment
    from penstock.document.build import PgDocumentBuilder
    from penstock.engine.batch import Parts
    from penstock.engine.state import State
    from penstock.postgres.settings import ConnectionSettings
    from penstock.spark.pipeline import Pipeline

_MOST_PATHS = 20


def answer(prepared: Prepared, pipeline: Pipeline, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The control socket's `explain`: of `index` the document `id`; with `values`, what is in it."""
    parts, index = pipeline.plan.parts, text(asked, "index")
    if index not in parts.sinks:
        raise ConfigError(f"index {index} is not kept now", hint="See penstock status: it may be stopped.")
    told = _sources(prepared.settings, prepared.builder, index, text(asked, "id"), bool(asked.get("values")))
    return told | _destinations(prepared.builder, parts, prepared.state, told, bool(asked.get("values")))


def explain(deployment: Deployment, index: str, id: str, *, values: bool) -> dict[str, Any]:
    """By the running deployment, or by ourselves."""
    folder = Path(deployment.locate(deployment.state))
    try:
        return dict(ask(folder, "explain", index=index, id=id, values=values))
    except NothingRunsError:
        pass
    if not (folder / "state.sqlite").exists():  # never run: there is the database alone
        with closing(open_builder(deployment, 1)) as builder:
            told = _sources(connection_settings(deployment), builder, index, id, values)
        return told | {"sinks": [], "quarantine": []}
    with closing(looked_at(deployment)) as prepared:
        if index not in prepared.parts.sinks:
            raise ConfigError(f"index {index} was not kept by the last run", hint="Start penstock run.")
        told = _sources(prepared.settings, prepared.builder, index, id, values)
        return told | _destinations(prepared.builder, prepared.parts, prepared.state, told, values)


def _sources(
    settings: ConnectionSettings, builder: PgDocumentBuilder, index: str, id: str, values: bool
) -> dict[str, Any]:
    """What the database has to say."""
    schema = builder.spec.schema(index)
    key = builder.keys(index, [id]).get(id)
    if key is None:
        columns = root_key(schema)
        kinds = ", ".join(f"{name} {found.name}" for name in columns if (found := builder.column(schema.table, name)))
        shape = "|".join(name.upper() for name in columns)
        raise ConfigError(f"{id!r} is no key of index {index}", hint=f"Its key is ({kinds}), written as {shape}.")
    rows = rows_of(settings, schema, builder.catalog, key)
    body = _built(builder, index, key)
    told = {
        "index": index,
        "id": id,
        "exists": body is not None,
        "rows": [{**asdict(one), "table": str(one.table)} for one in rows],
        "touched_by": [
            {"table": str(path.table), "role": path.role, "columns": path.columns} for path in paths(schema)
        ],
    }
    return told | ({"document": _text(body)} if values else {})


def _destinations(
    builder: PgDocumentBuilder, parts: Parts, state: State, told: Mapping[str, Any], values: bool
) -> dict[str, Any]:
    """What each sink has of it."""
    index, id = told["index"], told["id"]
    sinks: list[dict[str, Any]] = []
    for sink in parts.sinks[index]:
        if not isinstance(sink, ReadableSink):
            sinks.append({"sink": sink.name, "state": "cannot be asked", "version": None, "differs": []})
            continue
        held = sink.look(index, [id]).get(id)
        body = _built(builder, index, builder.keys(index, [id])[id])
        one: dict[str, Any] = {"sink": sink.name, **compared(held, body)}
        sinks.append(one | ({"document": _text(held.body if held else None)} if values else {}))
    entries = [{"sink": one.sink, "reason": one.reason, "since": one.since} for one in state.quarantined(index, [id])]
    return {"sinks": sinks, "quarantine": entries}


def _built(builder: PgDocumentBuilder, index: str, key: Key) -> bytes | None:
    return next(body for documents in builder.build(index, [key]) for body in documents.bodies)


def compared(held: Held | None, built: bytes | None) -> dict[str, Any]:
    """In which fields a sink's document is another one than the database's."""
    body = held.body if held else None
    version = str(held.version) if held else None
    if body is None or built is None:
        state = "the same" if body is built else "missing" if body is None else "extra"
        return {"state": state if body or built else "no document", "version": version, "differs": []}
    differs = list(_differing(value_of(body), value_of(built), ""))
    return {"state": "different" if differs else "the same", "version": version, "differs": differs[:_MOST_PATHS]}


def _differing(one: Any, other: Any, path: str) -> Iterator[str]:
    """The paths of fields that differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in dict.fromkeys([*one, *other]):
            below = f"{path}.{name}" if path else name
            if (name in one) != (name in other):
                yield below
            elif name in one:
                yield from _differing(one[name], other[name], below)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for at, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            yield from _differing(mine, theirs, f"{path}[{at}]")
    elif one != other:
        yield path


def _text(body: bytes | None) -> str | None:
    return None if body is None else body.decode(errors="replace")
