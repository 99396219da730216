"""What the sink asks of the server about its indexes: find, make, remember, point aliases, clear.

Guarantees: everything may be repeated, also after a crash half way; two processes that make the same generation at
once end up with one. Deliberately not: writing documents (`opensearch_write`), and deciding which generation is
current (`opensearch_generation`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from penstock.contracts import Held, Target
from penstock.errors import OperatorError, RetryableError
from penstock.model import Lsn
from penstock.sinks import opensearch_look
from penstock.sinks.opensearch_generation import WHAT, Generation, creation, current, found, next_name, token
from penstock.sinks.opensearch_http import Answer, Http

_LENIENT = "ignore_unavailable=true&allow_no_indices=true&expand_wildcards=all"
_PAGE = 5000  # ids at once, while an index is cleared
_SCROLL = "5m"
_MORE = "/_search/scroll"


class Indexes:
    """The indexes of one server, as far as they are ours."""

    def __init__(self, http: Http, sink: str) -> None:
        self._http, self._sink = http, sink

    def find_or_make(self, target: Target) -> Generation:
        """The current generation of a target. A new one supersedes all others, for they miss changes from now on."""
        generations = self.generations(target.name)
        one = current(generations, target) or self._grow(generations, target)
        if one is None:
            for other in generations:
                if not other.memory.superseded and other.memory.source not in target.beside:
                    self.remember(other.remembering(superseded=True))
            one = self._make(target, next_name(generations, target))
        if not one.memory.uuid:
            one = self.remember(one.remembering(uuid=one.uuid))
        if one.alias not in one.aliases:  # taken away by hand, or a clear was broken off
            self._point([{"add": {"index": one.physical, "alias": one.alias, "is_hidden": True}}])
        return one

    def _grow(self, generations: Sequence[Generation], target: Target) -> Generation | None:
        """A generation that can go on as this target's, with its new fields; None where there is none."""
        for one in generations:
            if grown := one.grown(target):
                mapping = {**target.body.get("mappings", {}), **grown.mapping}
                path = f"/{_path(one.physical)}/_mapping"
                self._change("PUT", path, mapping, f"adding fields to {one.physical}")
                return grown
        return None

    def look(self, one: Generation) -> Generation | None:
        """The generation as it is now; None: it is gone, or another index has its name."""
        answer = self._http.call("GET", f"/{_path(one.physical)}?{WHAT}")
        if answer.status == 404:
            return None
        now = found(one.memory.name, self._good(answer, f"reading {one.physical}"))
        return now[0] if now and now[0].uuid == one.uuid else None

    def remember(self, one: Generation) -> Generation:
        """Write its memory; durable on return."""
        self._change("PUT", f"/{_path(one.physical)}/_mapping", one.mapping, f"writing the state of {one.physical}")
        return one

    def configure(self, one: Generation, settings: Mapping[str, Any]) -> None:
        """Change settings of a generation."""
        path = f"/{_path(one.physical)}/_settings"
        self._change("PUT", path, {"index": dict(settings)}, f"changing settings of {one.physical}")

    def refresh(self, one: Generation) -> None:
        """Let what was written be found."""
        answer = self._good(self._http.call("POST", f"/{_path(one.physical)}/_refresh"), f"refreshing {one.physical}")
        self._require_whole(answer, f"{one.physical} was not refreshed")

    def sync(self, one: Generation) -> None:
        """Bring to disk what the server has answered for without."""
        path = f"/{_path(one.physical)}/_flush?wait_if_ongoing=true"
        answer = self._good(self._http.call("POST", path), f"flushing {one.physical}")
        self._require_whole(answer, f"{one.physical} was not flushed")

    def show(self, one: Generation) -> None:
        """Let readers see this generation and no other, in one step."""
        name = one.memory.name
        answer = self._http.call("GET", f"/_alias/{_path(name)}")
        holders = [] if answer.status == 404 else sorted(self._good(answer, f"reading the alias {name}"))
        if holders == [one.physical]:
            return
        actions: list[dict[str, Any]] = [
            {"remove": {"index": holder, "alias": name}} for holder in holders if holder != one.physical
        ]
        self._point([*actions, {"add": {"index": one.physical, "alias": name}}])

    def tidy(self, one: Generation, before: Sequence[Generation], beside: Collection[str]) -> None:
        """Keep the generation that readers have left for this one; delete the others, but for those beside it.

        `before` is what there was when they left. Where they saw this one already, only what was never complete goes.
        """
        others = [other for other in before if other.physical != one.physical]
        left = [other for other in others if other.is_read]
        for other in others:
            if other in left:
                self.remember(other.remembering(superseded=True))
            elif other.memory.source not in beside and (left or other.memory.seeded is None):
                self.delete(other)

    def fence(self, one: Generation, floor: Lsn) -> Generation:
        """Let no write below `floor` in any more, whoever sends it, and wait for those that are under way.

        The block lets writes under way end and turns others back; writers then find that the alias has another name,
        look, and learn of the floor.
        """
        physical, old = _path(one.physical), one.alias
        one = self.remember(one.remembering(clearing=True))
        self._change("PUT", f"/{physical}/_block/write", None, f"blocking {one.physical}")
        one = self.remember(one.remembering(floor=max(floor, one.memory.floor), token=token()))
        leave: list[dict[str, Any]] = [{"remove": {"index": one.physical, "alias": old}}] if old in one.aliases else []
        self._point([*leave, {"add": {"index": one.physical, "alias": one.alias, "is_hidden": True}}])
        self.configure(one, {"blocks.write": None})
        return self.remember(one.remembering(clearing=False))

    def ids(self, one: Generation, upto: Lsn) -> Iterator[list[str]]:
        """The ids of the documents of versions not above `upto`, page by page: of all shards, or an error."""
        self.refresh(one)
        query = {"size": _PAGE, "sort": ["_doc"], "_source": False, "version": True}
        path = f"/{_path(one.physical)}/_search?scroll={_SCROLL}&allow_partial_search_results=false"
        page = self._page(one, path, query)
        try:
            while hits := page["hits"]["hits"]:
                yield [hit["_id"] for hit in hits if hit["_version"] <= upto]
                page = self._page(one, _MORE, {"scroll": _SCROLL, "scroll_id": page["_scroll_id"]})
        finally:
            self._http.call("DELETE", _MORE, {"scroll_id": [page["_scroll_id"]]})

    def _page(self, one: Generation, path: str, query: Mapping[str, Any]) -> dict[str, Any]:
        answer = self._http.call("POST", path, query)
        if answer.status == 404 and path == _MORE:
            raise self._http.down(f"{one.physical} was not read to its end: the server has dropped the search")
        page = self._good(answer, f"reading {one.physical}")
        self._require_whole(page, f"{one.physical} was not read")
        return page

    def _require_whole(self, answer: Mapping[str, Any], what: str) -> None:
        """A server answers 200, and with what it has, where some of the shards do not answer it, or not in time."""
        if answer.get("timed_out") or answer.get("_shards", {}).get("failed"):
            raise self._http.down(f"{what} on every shard")

    def read(self, one: Generation, ids: Sequence[str]) -> dict[str, Held]:
        """The documents of a few ids, those that are there."""
        answer = self._http.call("POST", f"/{_path(one.physical)}/_mget", opensearch_look.question(ids))
        if answer.status == 404:
            raise RetryableError(
                f"sink {self._sink}: the index {one.physical} is gone",
                hint="Opened again, it is made anew and has to be seeded.",
            )
        if answer.status >= 300:  # the server's words are left out: they may quote a document
            raise OperatorError(f"sink {self._sink}: reading {one.physical} was answered {answer.status} {answer.kind}")
        return opensearch_look.read(answer.body, self._http.down)

    def check_pipeline(self, pipeline: str) -> None:
        """Without its pipeline every document would be rejected: that is not the documents' fault."""
        if self._http.call("GET", f"/_ingest/pipeline/{_path(pipeline)}").status == 404:
            raise OperatorError(
                f"sink {self._sink}: the server has no ingest pipeline {pipeline!r}",
                hint="Create it there, or take `pipeline` out of the deployment.",
            )

    def delete(self, one: Generation) -> None:
        """Remove a generation, and its aliases with it; one that is gone already is no failure."""
        answer = self._http.call("DELETE", f"/{_path(one.physical)}")
        if answer.status != 404:
            self._good(answer, f"deleting the index {one.physical}")

    def generations(self, name: str) -> list[Generation]:
        """Every generation of the name, the newest last."""
        path = f"/{_path(name)},{_path(name)}-*?{_LENIENT}&{WHAT}"
        answer = self._http.call("GET", path)
        listed = {} if answer.status == 404 else self._good(answer, f"looking for the index {name}")
        if name in listed:
            raise OperatorError(
                f"sink {self._sink}: there is an index {name}, and {name} has to be an alias",
                hint="Delete or rename that index, or set a prefix in the deployment.",
            )
        return found(name, listed)

    def _make(self, target: Target, physical: str) -> Generation:
        answer = self._http.call("PUT", f"/{_path(physical)}", creation(target, physical))
        if answer.status >= 300 and answer.kind != "resource_already_exists_exception":
            raise self._refusal(answer, f"making the index {physical}")
        one = current(self.generations(target.name), target)
        if one is None:
            raise self._http.down(f"the index {physical} was made and is gone")
        return one

    def _point(self, actions: list[dict[str, Any]]) -> None:
        self._change("POST", "/_aliases", {"actions": actions}, "changing aliases")

    def _change(self, method: str, path: str, body: Mapping[str, Any] | None, what: str) -> None:
        if not self._good(self._http.call(method, path, body), what).get("acknowledged"):
            raise self._http.down(f"{what} was not acknowledged")

    def _good(self, answer: Answer, what: str) -> dict[str, Any]:
        if answer.status >= 300:
            raise self._refusal(answer, what)
        return answer.json()  # type: ignore[no-any-return]

    def _refusal(self, answer: Answer, what: str) -> OperatorError:
        # None of these requests carries a document, so the server's words may be shown.
        return OperatorError(
            f"sink {self._sink}: {what} was refused: {answer.reason or answer.status}",
            hint=f"The server calls it {answer.kind}." if answer.kind else "",
        )


def _path(name: str) -> str:
    return quote(name, safe="")
