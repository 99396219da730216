"""A deployment that is fit to run, as one value; and the same with an index or a sink less, or a sink more.

Guarantees: immutable, but for what it holds open; what a change means for the next start is noted down before it is
made. Deliberately not: making a deployment fit (`running.prepare`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.app.origins import Origins
from penstock.app.parts import open_indexes, open_sink
from penstock.contracts import Sink
from penstock.document.spec import SourceSpec
from penstock.engine.batch import Parts
from penstock.engine.lineage import Lineage
from penstock.engine.state import State
from penstock.postgres.connection import ConnectionSettings

if TYPE_CHECKING:
    from penstock.config.deployment import Deployment
    from penstock.document.build import PgDocumentBuilder


@dataclass(frozen=True, slots=True)
class Prepared:
    """A deployment that is fit to run: its schemas are bound, the state is open, the sinks are reached."""

    deployment: Deployment
    """Without the indexes that are stopped."""
    settings: ConnectionSettings
    schemas: SourceSpec
    state: State
    builder: PgDocumentBuilder
    parts: Parts
    origins: Origins
    lineage: Lineage
    fresh: bool
    """Whether there was no slot yet: everything has to be seeded."""
    stopped: Mapping[str, str]
    """The indexes that the database stopped fitting, and still does not fit, with the reason."""

    def without(self, misfits: Mapping[str, str]) -> Prepared:
        """The same for the other indexes."""
        left = {index: sinks for index, sinks in self.parts.sinks.items() if index not in misfits}
        return dataclasses.replace(
            self,
            deployment=self.deployment.without(misfits),
            schemas=SourceSpec([schema for schema in self.schemas.schemas if schema.index in left]),
            parts=dataclasses.replace(self.parts, sinks=left),
            origins=self.origins.without(misfits),
            stopped={**self.stopped, **misfits},
        )

    def leaving(self, names: Collection[str]) -> Prepared:
        """The same without these sinks, which is noted down first."""
        self.lineage.detach(names)
        for sink in self.parts.every_sink:
            if sink.name in names:
                sink.close()
        left = {index: [one for one in sinks if one.name not in names] for index, sinks in self.parts.sinks.items()}
        return self._with(left)

    def joining(self, sink: Sink) -> Prepared:
        """The same with a sink that was away, which is noted down first: from now on it misses nothing."""
        self.lineage.attach(sink.name)
        return self._with({index: [*sinks, sink] for index, sinks in self.parts.sinks.items()})

    def _with(self, sinks: Mapping[str, Sequence[Sink]]) -> Prepared:
        origins = dataclasses.replace(self.origins, marks=self.lineage.marks())
        return dataclasses.replace(self, parts=dataclasses.replace(self.parts, sinks=sinks), origins=origins)

    def returning(self, name: str) -> Sink:
        """A sink that is away, opened: it makes new generations, for those it has missed changes."""
        (config,) = (one for one in self.deployment.sinks if one.name == name)
        sink = open_sink(config, self.deployment)
        try:
            marked = dataclasses.replace(self.origins, marks=self.lineage.marks())
            open_indexes(self.deployment, marked, self.schemas, [sink])
        except BaseException:
            sink.close()
            raise
        return sink

    def reopened(self) -> Prepared:
        """The same, with every index opened again in its sinks."""
        open_indexes(self.deployment, self.origins, self.schemas, self.parts.every_sink)
        return self

    def close(self) -> None:
        """Give everything back."""
        for sink in self.parts.every_sink:
            sink.close()
        self.builder.close()
        self.state.close()
