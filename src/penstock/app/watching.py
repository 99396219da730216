"""A run that can be watched: its samples, what its private address answers, and both addresses put together.

Guarantees: questions are asked over short connections of their own and never hold up the pipeline; values of rows are
told to whoever searches, opens a document or asks for keys, and to nobody else.
"""

from __future__ import annotations

import json
import logging
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from penstock.app import local_path
from penstock.app.asked import number, text
from penstock.config.deployment import LocalSink, Server
from penstock.errors import ConfigError, OperatorError, UnavailableError
from penstock.model import Lsn
from penstock.ops.http import HttpServer, is_loopback, is_same, parse_address, require_usable
from penstock.ops.http_access import Access, read_token
from penstock.ops.http_private import Private
from penstock.ops.http_public import Public
from penstock.ops.status import Sampler, Slot
from penstock.postgres import slot
from penstock.postgres.connection import open_sql

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.app.commands import Command
    from penstock.app.prepared import Prepared
    from penstock.config.deployment import Deployment
    from penstock.sinks.local_search import Hit, LocalReader
    from penstock.spark.pipeline import Pipeline

log = logging.getLogger(__name__)

_ASK_S = 5.0
_MOST_HITS = 50


class Watching:
    """Both addresses, from the start of a process to its end; a context."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._public = Public()
        address = deployment.server.public_address
        _require_two(address, deployment.server.private_address)
        require_usable(deployment.server.private_address, "private_address")  # it is bound once there is a page
        self._servers = [HttpServer(address, self._public, "public_address", "health and metrics")]
        self._sampler: Sampler | None = None
        self._can: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Answer nobody any more: what answers are read from may be closed. Any number of times."""
        for server in self._servers:
            server.close()
        if self._sampler:
            self._sampler.close()

    def pause(self, seconds: float, reason: str) -> None:
        """Wait, before the deployment runs; /readyz says why."""
        self._public.waits_for = reason
        time.sleep(seconds)
        self._public.waits_for = ""

    @property
    def page(self) -> str:
        """Where the page is; empty while its address is in use by another process."""
        address = self._servers[-1].address if len(self._servers) > 1 else ""
        return f"http://{address}/" if address else ""

    def attach(self, prepared: Prepared, pipeline: Pipeline, commands: Mapping[str, Command]) -> dict[str, Command]:
        """The deployment runs: everything is served from now on. What can be asked, also over the control socket."""
        report = pipeline.report
        self._sampler = sampler = Sampler(
            report, lambda: _slot(prepared), lambda: _received(prepared), prepared.state.count_quarantined
        )
        sampler.start()
        answers = {**commands, **_answers(prepared, sampler, pipeline), "status": lambda _: self._told(sampler)}
        self._can = sorted(answers)
        access = Access()
        access.write(Path(self._deployment.locate(self._deployment.state)))
        address = self._deployment.server.private_address
        self._servers.append(HttpServer(address, Private(access, answers), "private_address", "page and status"))
        if not is_loopback(address):
            log.warning("other machines can reach the page at %s; what they send is not encrypted", address)
        histograms = {
            "penstock_batch_seconds": report.duration,
            "penstock_commit_to_searchable_seconds": report.latency,
        }
        self._public.attach(lambda: sampler.told(looking=False), histograms)
        return answers

    def _told(self, sampler: Sampler) -> dict[str, Any]:
        return {
            **sampler.told(),
            "page": self.page,
            "public": self._servers[0].address,
            "can": self._can,
            "slot": self._deployment.source.slot,
            "sinks": [{"name": sink.name, "type": _kind(sink)} for sink in self._deployment.sinks],
        }


def _require_two(public: str, private: str) -> None:
    """Both can be served, as far as they tell: the second one is bound when the deployment is at work already."""
    if is_same(public, private) and parse_address(public)[1]:
        raise ConfigError(
            f"public_address and private_address are both {public}",
            hint=f"Name another port for one of them in [server]; by default they are {Server().public_address} and"
            f" {Server().private_address}.",
        )


def page_link(state: Path, page: str, shown: str = "") -> str:
    """A link that lets one browser in, once: the one that is `shown`, good for longer, while nobody has used it."""
    body = json.dumps({"code": shown.partition("#")[2]}).encode()
    asked = urllib.request.Request(f"{page}link", body, method="POST")
    asked.add_header("Authorization", f"Bearer {read_token(state)}")
    asked.add_header("Content-Type", "application/json")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(asked, timeout=_ASK_S) as answer:
            return f"{page}#{json.load(answer)['code']}"
    except (OSError, ValueError, KeyError) as error:
        raise OperatorError(
            f"the page at {page} does not answer ({type(error).__name__})", hint="See that penstock run is running."
        ) from None


def _slot(prepared: Prepared) -> Slot:
    """The slot now."""
    with open_sql(prepared.settings) as connection:
        found = slot.inspect(connection, prepared.deployment.source.slot)
    if found is None:
        raise UnavailableError("the slot is not there yet")
    confirmed, lag_bytes = found.confirmed_flush_lsn or Lsn.ZERO, found.lag_bytes or 0
    return Slot(
        written=Lsn(confirmed + lag_bytes),
        confirmed=confirmed,
        active=found.active,
        lost=found.lost,
        wal_status=found.wal_status or "unknown",
        retained_bytes=found.retained_bytes or 0,
        lag_bytes=lag_bytes,
        safe_bytes=found.safe_wal_bytes,
    )


def _received(prepared: Prepared) -> Lsn | None:
    """How far the stream's reader has received, where it runs on this machine."""
    found = prepared.reader()
    return Lsn.parse(found.received) if found else None


def _answers(prepared: Prepared, sampler: Sampler, pipeline: Pipeline) -> dict[str, Command]:
    return {
        "history": lambda asked: sampler.history(number(asked, "after", 0)),
        "indexes": lambda _: [{"name": name, **one} for name, one in sampler.told()["indexes"].items()],
        "changes": lambda asked: pipeline.report.changes_made(values=_is_true(asked.get("values"))),
        "search": lambda asked: _reading(prepared.deployment, asked, _search),
        "document": lambda asked: _reading(prepared.deployment, asked, _document),
    }


def _reading(
    deployment: Deployment, asked: Mapping[str, Any], read: Callable[[LocalReader, str, Mapping[str, Any]], Any]
) -> Any:
    """Ask the first local sink."""
    from penstock.sinks.local_search import LocalReader

    sink = next((one for one in deployment.sinks if isinstance(one, LocalSink)), None)
    if sink is None:
        raise ConfigError(
            "the deployment has no sink of type local to search in", hint="A search engine has an interface of its own."
        )
    index = text(asked, "index")
    if deployment.index(index) is None:
        names = ", ".join(one.name for one in deployment.indexes)
        raise ConfigError(f"there is no index {index!r}", hint=f"There are: {names}.")
    with LocalReader(local_path(deployment, sink)) as reader:
        return read(reader, deployment.prefix + index, asked)


def _search(reader: LocalReader, name: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    limit = int(min(_MOST_HITS, max(1, number(asked, "limit", 10))))
    hits = reader.search(name, text(asked, "query"), limit)
    return {"hits": [_hit(hit) for hit in hits], "documents": reader.count(name)}


def _hit(hit: Hit) -> dict[str, Any]:
    """With the excerpt cut at the words that were found: every second part is one."""
    from penstock.sinks.local_search import MARKS

    parts = hit.excerpt.replace(MARKS[1], MARKS[0]).split(MARKS[0])
    return {"id": hit.id, "score": round(hit.score, 4), "excerpt": parts}


def _document(reader: LocalReader, name: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    body = reader.document(name, text(asked, "id"))
    return {"document": None if body is None else body.decode(errors="replace")}


def _is_true(value: object) -> bool:
    return str(value).lower() in ("1", "true", "yes")


def _kind(sink: object) -> str:
    return getattr(sink, "type", type(sink).__name__.removesuffix("Sink").lower())
