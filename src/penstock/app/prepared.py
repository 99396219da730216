"""A deployment that is fit to run, as one value; and the same with an index or a sink less, or a sink more.

Guarantees: immutable, but for what it holds open; what a change means for the next start is noted down before it is
made. Deliberately not: making a deployment fit (`running.prepare`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.app.beginning import Beginning
from penstock.app.generations import bound_to, extended, schema_of
from penstock.app.origins import Origins, is_outgoing, outgoing_name
from penstock.app.parts import open_indexes, open_sink, revive
from penstock.config.deployment import StdoutSink
from penstock.contracts import Sink, StampedSink
from penstock.document.spec import SourceSpec
from penstock.engine.batch import Parts
from penstock.engine.lineage import Lineage, Made, Role
from penstock.engine.state import State
from penstock.errors import ConfigError, PenstockError
from penstock.postgres.claim import Claim
from penstock.postgres.connection import ConnectionSettings

if TYPE_CHECKING:
    from penstock.config.deployment import Deployment
    from penstock.document.build import PgDocumentBuilder
    from penstock.spark.health import ReaderHealth

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A deployment that is fit to run: its schemas are bound, the state is open, the sinks are reached."""

    deployment: Deployment
    """Without the indexes that are stopped."""
    settings: ConnectionSettings
    schemas: SourceSpec
    state: State
    claim: Claim
    builder: PgDocumentBuilder
    parts: Parts
    origins: Origins
    lineage: Lineage
    beginning: Beginning
    stopped: Mapping[str, str]
    """The indexes that the database stopped fitting, and still does not fit, with the reason."""
    dropped: tuple[str, ...] = ()
    """What sinks are still to forget: a batch may have been under way when it was left."""

    def without(self, misfits: Mapping[str, str]) -> Prepared:
        """The same for the other indexes."""
        return dataclasses.replace(self._dropping(misfits), stopped={**self.stopped, **misfits})

    def _dropping(self, names: Collection[str]) -> Prepared:
        left = {index: sinks for index, sinks in self.parts.sinks.items() if index not in names}
        deployment = self.deployment.without(names)
        self.builder.adopt(SourceSpec([index.schema for index in deployment.enabled]))
        return dataclasses.replace(
            self,
            deployment=deployment,
            schemas=SourceSpec([schema for schema in self.schemas.schemas if schema.index in left]),
            parts=dataclasses.replace(self.parts, sinks=left),
            origins=self.origins.without(names),
            dropped=(*self.dropped, *names),
        )

    def released(self, index: str, *, is_done: bool) -> Prepared:
        """The same without the outgoing generation of an index: readers have left it, or it cannot be kept."""
        name = self.origins.outgoing[index]
        self.state.release(self.state.quarantined(name))  # what it lacked matters no more, and nobody would build it
        self.lineage.retire(index)
        if is_done:  # and so between two batches: nobody writes to it any more
            for sink in self.parts.sinks[name]:
                sink.forget(name)
        return self._dropping([name])

    def rebuilt(self, index: str, *, rollback: bool) -> Prepared:
        """The same with a new generation of an index, and the one that readers see kept beside it.

        A rollback takes up the former one. What happens is noted down first, so that the next start goes on with it.
        """
        if index not in self.lineage.made(Role.OUTGOING):
            to = self._successor(index, rollback)
            bound_to(self.settings, self.deployment, schema_of(to, index))
            self.lineage.succeed(index, to, rollback=rollback)
        now, leaving = self.lineage.made(Role.CURRENT)[index], self.lineage.made(Role.OUTGOING)[index]
        name = outgoing_name(index, leaving.epoch)
        before = self.deployment.index(index)
        assert before is not None
        new = dataclasses.replace(before, schema=schema_of(now, index))
        deployment = extended(self.deployment, index, name, dataclasses.replace(before.schema, index=name))
        deployment = dataclasses.replace(
            deployment, indexes=tuple(new if one.name == index else one for one in deployment.indexes)
        )
        bound = [one for one in self.schemas.schemas if one.index != index]
        bound += [bound_to(self.settings, deployment, new.schema)]
        bound += [dataclasses.replace(self.schemas.schema(index), index=name)]
        where = self.origins.indexes[index].rpartition("/")[0]
        sources = {index: f"{where}/{now.epoch}", name: f"{where}/{leaving.epoch}"}
        origins = dataclasses.replace(
            self.origins,
            indexes={**self.origins.indexes, **sources},
            hashes={**self.origins.hashes, name: leaving.hashes},
        )
        fit = dataclasses.replace(self, deployment=deployment, schemas=SourceSpec(bound), origins=origins)
        return fit._opening(sources, self, rollback)

    def _successor(self, index: str, rollback: bool) -> Made:
        """What an index is built by next."""
        if not rollback:
            return self.lineage.made(Role.REFUSED).get(index) or self.lineage.made(Role.CURRENT)[index]
        found = self.lineage.made(Role.FORMER).get(index)
        if found is None:
            raise ConfigError(
                f"there is no generation of {index} to go back to", hint="One is kept from the first reindex on."
            )
        return found

    def _opening(self, names: Collection[str], before: Prepared, rollback: bool) -> Prepared:
        """With the sinks of these indexes opened; where that fails, they are as they were before."""
        self.claim.require()
        origins = self.origins.without(self.origins.indexes.keys() - names)
        sinks = next(before.parts.sinks[name] for name in names if name in before.parts.sinks)
        self.builder.adopt(SourceSpec([one.schema for one in self.deployment.enabled]))
        try:
            if rollback:
                revive(self.deployment, origins, self.schemas, sinks)
            held = open_indexes(self.deployment, origins, self.schemas, sinks)
        except BaseException:
            self.builder.adopt(SourceSpec([one.schema for one in before.deployment.enabled]))
            with contextlib.suppress(PenstockError):
                before.reopened()
            raise
        return dataclasses.replace(self, parts=dataclasses.replace(self.parts, sinks={**before.parts.sinks, **held}))

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
        self._stamp(sink)
        self.lineage.attach(sink.name)
        held = self.parts.sinks.items()
        return self._with({index: list(sinks) if is_outgoing(index) else [*sinks, sink] for index, sinks in held})

    def _with(self, sinks: Mapping[str, Sequence[Sink]]) -> Prepared:
        origins = dataclasses.replace(self.origins, marks=self.lineage.marks())
        return dataclasses.replace(self, parts=dataclasses.replace(self.parts, sinks=sinks), origins=origins)

    def returning(self, name: str) -> Sink:
        """A sink that is away, opened: it makes new generations, for those it has missed changes."""
        self.claim.require()
        (config,) = (one for one in self.deployment.sinks if one.name == name)
        sink = open_sink(config, self.deployment)
        try:
            marked = dataclasses.replace(self.origins, marks=self.lineage.marks())
            open_indexes(self.deployment, marked, self.schemas, [sink])
        except BaseException:
            sink.close()
            raise
        return sink

    def proven(self) -> Prepared:
        """The same, where each sink is the one that the last run wrote to; what another one holds missed changes.

        A sink of that name that lies elsewhere now, or was put back from a copy, makes new generations. Each is stamped
        then, so that a copy from before is told next time.
        """
        others = [sink.name for sink in self.parts.every_sink if self._is_another(sink)]
        fit = self
        if others:
            log.warning("what sink %s holds is not what was written last: it is seeded", ", ".join(others))
            self.lineage.mistrust(others)
            marked = dataclasses.replace(self.origins, marks=self.lineage.marks())
            fit = dataclasses.replace(self, origins=marked).reopened()
        self.claim.require()
        for sink in fit.parts.every_sink:
            self._stamp(sink)
        return fit

    def _stamp(self, sink: Sink) -> None:
        """Give it another stamp, in an order in which the next start knows it whenever the process ends."""
        if isinstance(sink, StampedSink):
            sink.restamp(self.lineage.coming_stamp(sink.name))
            self.lineage.note_stamped(sink.name)

    def _is_another(self, sink: Sink) -> bool:
        """Whether it has a former stamp, none of the generations written to, or a complete one in place of one.

        One index of several that is gone was removed by hand, and is seeded for that alone.
        """
        before, now = self.lineage.written(), self._written()
        kept = {one: now[one] for one in now if one[1] == sink.name and one in before and before[one][0] == now[one][0]}
        gone = [index for (index, name), what in kept.items() if what != before[index, name]]
        stamps = self.lineage.stamps().get(sink.name)
        if stamps and isinstance(sink, StampedSink):
            there = [index for index, _ in kept if index not in gone]
            if any(sink.stamp(index) not in stamps for index in there):
                return True
        return bool(gone) and (len(gone) == len(kept) or any(sink.seeded(index) is not None for index in gone))

    def note_written(self) -> None:
        """Note down, durably, which generations are written to."""
        self.lineage.note_written(self._written())

    def _written(self) -> dict[tuple[str, str], tuple[str, str]]:
        # Each start of stdout is a generation of its own, and seeded; that is nothing to find out.
        passing = {one.name for one in self.deployment.sinks if isinstance(one, StdoutSink)}
        return {
            (index, sink.name): (
                self.origins.source(index, sink.name),
                "" if sink.name in passing else sink.generation(index),
            )
            for index, sinks in self.parts.sinks.items()
            if not is_outgoing(index)
            for sink in sinks
        }

    def reopened(self) -> Prepared:
        """The same, with every index opened again in its sinks.

        Whoever has taken over may have begun generations: opened by us, they would give way to ours.
        """
        self.claim.require()
        for sink in self.parts.every_sink:
            for index in self.dropped:
                sink.forget(index)
        held = open_indexes(self.deployment, self.origins, self.schemas, self.parts.every_sink)
        return dataclasses.replace(self, parts=dataclasses.replace(self.parts, sinks=held), dropped=())

    def reader(self) -> ReaderHealth | None:
        """The stream's reader, where it runs on this machine and tells."""
        from penstock.spark.health import readers

        where = (self.deployment.source.slot, self.settings.describe())
        return next((one for one in readers() if (one.slot, one.server) == where), None)

    def abandon(self) -> None:
        """End what is under way, with an error: waits for the database, and for sinks that others may write to, too."""
        self.builder.abandon()
        for sink in self.parts.every_sink:
            if sink.shared:
                sink.close()

    def close(self) -> None:
        """Give everything back."""
        for sink in self.parts.every_sink:
            sink.close()
        self.builder.close()
        self.claim.close()
        self.state.close()

    def end(self) -> None:
        """Close at the end of a run; sinks that are nobody else's are stamped, for they may have been copied."""
        for sink in self.parts.every_sink:
            with contextlib.suppress(PenstockError):
                if isinstance(sink, StampedSink) and sink.alone:
                    self._stamp(sink)
        self.close()
