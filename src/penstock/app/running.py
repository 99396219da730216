"""`penstock run`, put together: what has to be so at the start, then a pipeline from a deployment.

The order at the start: no other process runs with the state or with the slot; what the schemas ask of the database is
checked; identities are set and tables published where that is allowed; the sinks are opened; then the stream makes the
slot, and seeds begin. Guarantees: whatever is wrong is told before anything is changed; a secret that stands in the
file reaches tasks of this machine by the environment only, and those of another machine not at all.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.app import build_capture, source_rules
from penstock.app.admission import become_the_one, check_slot, check_versions
from penstock.app.beginning import Beginning
from penstock.app.generations import as_rolled_back, extended, growing, kept_beside, meant
from penstock.app.marking import lacking, look_at_shapes, look_before_mending
from penstock.app.opening import Pause, open_present
from penstock.app.origins import Origins, index_of, is_outgoing
from penstock.app.parts import join_parts, open_builder, own_connections, shares
from penstock.app.prepared import Prepared
from penstock.app.reindex import heirs
from penstock.app.rejoin import committed
from penstock.config.connection import connection_settings
from penstock.config.secrets import Secret
from penstock.contracts import Key
from penstock.document.check import Severity
from penstock.document.check_live import LiveReport, check_live, mending
from penstock.document.cutting import cuts
from penstock.document.drift import drifted
from penstock.document.mapping_change import fingerprint
from penstock.document.spec import SourceSpec
from penstock.engine import checkpoint, quarantine
from penstock.engine.lineage import Lineage
from penstock.engine.report import IndexReport, Report
from penstock.engine.state import State
from penstock.errors import ConfigError, RetryableError, UnavailableError
from penstock.model import Lsn, ReplicationConfig
from penstock.postgres import publication, replication, slot
from penstock.postgres.claim import Claim
from penstock.postgres.connection import ConnectionSettings, open_sql

if TYPE_CHECKING:
    from penstock.config.deployment import Deployment
    from penstock.spark.absence import Roll
    from penstock.spark.pipeline import Pipeline, Plan
    from penstock.spark.spread import Opener, Session

log = logging.getLogger(__name__)

_SLOT_WAIT_S = 120.0
_LOCK_WAIT_S = 10.0
_CLAIM_POLL_S = 1.0
# What may wait in the reader for its turn; the rest waits in the WAL. The more of it a batch takes, the more changes of
# one document are a single write: a backlog is worked off faster than it would come one by one.
_SPOOL_BYTES = 128 << 20


def prepare(deployment: Deployment, pause: Pause | None = None) -> Prepared:
    """Check, and open what is needed. Changes replica identities and the publication, where that is allowed.

    Waits while another process runs with this state or with this slot; what there is to know is looked at afterwards.
    With a `pause`, sinks that do not answer are waited for, too.
    """
    if not deployment.enabled:
        raise ConfigError("no index is enabled", hint="Add an [[index]] to the file, or enable one.")
    settings = connection_settings(deployment)
    with open_sql(settings):
        pass  # a server that cannot be reached is told before anything is made
    with ExitStack() as held:
        state = held.enter_context(closing(State(Path(deployment.locate(deployment.state)))))
        claim = held.enter_context(closing(Claim(settings, deployment.source.slot)))
        become_the_one(state, claim, deployment)
        fit = _prepared(as_rolled_back(deployment, Lineage(state)), settings, state, claim, pause)
        held.pop_all()
        return fit


def _prepared(
    deployment: Deployment, settings: ConnectionSettings, state: State, claim: Claim, pause: Pause | None
) -> Prepared:
    report, stopped = _checked(settings, deployment, state.stopped())
    deployment = deployment.without(stopped)
    bound = SourceSpec([schema for schema in report.bound if schema.index not in stopped])
    look_before_mending(settings, bound.schemas, deployment.source.publication, state)
    if deployment.source.manage_replica_identity:
        _set_identities(settings, report)
    with replication.connect(settings) as client:
        system_id = client.system.system_id
    _publish(settings, deployment, bound)
    with open_sql(settings) as connection:
        found = slot.inspect(connection, deployment.source.slot)
    check_slot(found, deployment, state, system_id)
    if not checkpoint.planned(checkpoint.of(deployment.locate(deployment.state))):
        state.note_unsettled(deployment.source.slot)
    where = f"{system_id}/{settings.database}/{deployment.source.slot}"
    lineage = Lineage(state)
    grown = {} if found is None else growing(settings, deployment, lineage, bound)
    epochs, outgoing = lineage.keep(meant(deployment, bound, where), anew=found is None, growing=grown)
    beside = kept_beside(settings, deployment, lineage, outgoing)
    for name, (schema, fitting) in beside.items():
        deployment = extended(deployment, index_of(name), name, schema)
        bound = SourceSpec([*bound.schemas, fitting])
    quarantine.forsake(state, [*(one.index for one in bound.schemas), *stopped], [one.name for one in deployment.sinks])
    hashes = {name: outgoing[index_of(name)].hashes for name in beside}
    epochs |= {name: outgoing[index_of(name)].epoch for name in beside}
    origins = Origins({index: f"{where}/{epoch}" for index, epoch in epochs.items()}, lineage.marks(), hashes, grown)
    builder = open_builder(deployment, own_connections(deployment))
    beginning = Beginning(settings, deployment.source.slot, state, builder)
    retained = functools.partial(_retained, settings, deployment.source.slot)
    claim.require()  # what came before may have taken long
    parts = open_present(deployment, origins, builder, lineage, retained, _keeping(claim, pause))
    parts = dataclasses.replace(parts, claim=claim.require)
    return _proven(
        Prepared(deployment, settings, bound, state, claim, builder, parts, origins, lineage, beginning, stopped)
    )


def _proven(fit: Prepared) -> Prepared:
    """The same, once what its sinks hold is known to be what they should; closed where it is not."""
    with ExitStack() as held:
        held.callback(fit.close)
        check_versions(fit)
        fit = fit.proven()
        fit.note_written()
        look_at_shapes(fit, starting=True)
        held.pop_all()
        return fit


def _keeping(claim: Claim, pause: Pause | None) -> Pause | None:
    """The same pause, after which nobody has taken over: it lasts as long as that is not known."""

    def kept(seconds: float, why: str) -> None:
        assert pause
        pause(seconds, why)
        while True:
            try:
                claim.require()
                return
            except RetryableError as error:
                pause(_CLAIM_POLL_S, error.message)

    return kept if pause else None


def _publish(settings: ConnectionSettings, deployment: Deployment, bound: SourceSpec) -> None:
    """Before any seed: a table published later would have changes that are neither in the seed nor in the stream."""
    source = deployment.source
    with open_sql(settings) as connection:
        if slot.inspect(connection, source.slot):
            publication.require(connection, source.publication, source.slot, bound.all_tables)
        if source.column_lists and source.manage_publication:
            lists = bound.thin_columns()
            publication.provision(connection, source.publication, bound.all_tables, manage=True, lists=lists)
    capture = build_capture(settings, ReplicationConfig(source.slot, source.publication))
    capture.with_publication_management(set(bound.all_tables), source.manage_publication).require_coverage()


def _checked(
    settings: ConnectionSettings, deployment: Deployment, before: Mapping[str, str]
) -> tuple[LiveReport, dict[str, str]]:
    """What the database says to the schemas; and the indexes that stay stopped, which are no obstacle to the others."""
    report = check_live(settings, [index.schema for index in deployment.enabled], source_rules(deployment.source))
    for one in report.diagnostics:
        if one.severity is Severity.WARNING:
            log.warning("%s", one.message)
    wrong = report.of(Severity.ERROR)
    stopped = {one.index: one.message for one in reversed(wrong) if one.index in before}
    if len(stopped) < len(deployment.enabled):
        wrong = tuple(one for one in wrong if one.index not in stopped)
        for index, reason in stopped.items():
            log.error("index %s stays stopped: %s", index, reason)
    if wrong:
        more = f" ({len(wrong) - 1} more)" if len(wrong) > 1 else ""
        where = f"{wrong[0].place}: " if wrong[0].place.line else ""
        raise ConfigError(f"{where}{wrong[0].message}{more}", hint="penstock check tells everything, with its remedy.")
    return report, stopped


def _misfits(prepared: Prepared, thorough: bool) -> Mapping[str, str]:
    """The indexes that the database does not fit any more, and why."""
    if not thorough:
        look_at_shapes(prepared)
        return drifted(prepared.settings, prepared.schemas.schemas, prepared.builder)
    schemas = [index.schema for index in prepared.deployment.enabled]
    report = check_live(prepared.settings, schemas, source_rules(prepared.deployment.source))
    return {one.index: one.message for one in reversed(report.of(Severity.ERROR)) if one.index}


def _set_identities(settings: ConnectionSettings, report: LiveReport) -> None:
    remedies = mending(report.diagnostics, "untraceable")
    # One by one: an index that is built beside writers is built in no transaction.
    for statement in dict.fromkeys(line for remedy in remedies for line in remedy.splitlines()):
        log.warning("changing what the server logs of old rows: %s", statement)
        with open_sql(settings, lock_timeout_s=_LOCK_WAIT_S) as connection:
            slot.execute(connection, statement)


def pipeline(
    prepared: Prepared,
    session: Callable[[], Session],
    socket: str = "",
    *,
    spread: bool = False,
    one_machine: bool = True,
) -> Pipeline:
    """The pipeline, ready to run.

    By the `socket` (a path in a private folder) the reader tells when transactions were committed, and a batch of up to
    `direct.MAX_ROWS` changes takes the direct path, on one machine and on a cluster alike, unless all are to be
    `spread`. On one machine no batch has more, and a transaction that does comes in several: tasks there would have no
    more cores. On a cluster a backlog comes in batches as large as the reader has room for, and those are spread.
    The session is made here, after the environment that its processes inherit is complete.
    """
    from penstock.spark.direct import MAX_ROWS
    from penstock.spark.pipeline import Pipeline

    report = Report({index: IndexReport() for index in prepared.origins.indexes if not is_outgoing(index)})
    for index, reason in prepared.stopped.items():
        report.stopped(index, reason)
    chosen = {"directSocket": socket} if socket else {}
    if spread:
        chosen["directChanges"] = "false"
    elif socket and one_machine:
        chosen["maxRowsPerTrigger"] = str(MAX_ROWS)
    plan = _plan(prepared, chosen)
    return Pipeline(session(), plan, prepared.state, report)


def _plan(prepared: Prepared, chosen: Mapping[str, str]) -> Plan:
    from penstock.spark.pipeline import Plan
    from penstock.spark.spread import Opener, Shares

    prepared.note_written()
    deployment, parts, sources = prepared.deployment, prepared.parts, prepared.origins.indexes
    portable = for_tasks(deployment)

    def opener(sinks: Sequence[str]) -> Opener:
        generations = {
            (index, one.name): one.generation(index)
            for index, held in parts.sinks.items()
            for one in held
            if one.name in sinks
        }
        token = json.dumps([dict(prepared.origins.indexes), sorted(sinks), list(generations.items())])
        return Opener(join_parts, (portable, prepared.origins, generations), token)

    def cut(index: str) -> Sequence[Key]:
        return cuts(prepared.settings, prepared.schemas.schema(index))

    return Plan(
        options={**_source_options(prepared), **chosen},
        checkpoint=str(checkpoint.of(deployment.locate(deployment.state))),
        socket=chosen.get("directSocket", ""),
        parts=parts,
        opener=opener,
        identities={one.index: f"{sources[one.index]} {fingerprint(one)}" for one in prepared.schemas.schemas},
        on_error={index.name: index.on_error.value for index in deployment.enabled},
        seeds={
            index: tuple(sink.name for sink in sinks if sink.seeded(index) is None)
            for index, sinks in parts.sinks.items()
            if not is_outgoing(index)
        },
        cuts=cut,
        confirmed=lambda: _confirmed(prepared),
        misfits=functools.partial(_misfits, prepared),
        lacking=functools.partial(lacking, prepared),
        claim=prepared.claim.renew,
        abandon=prepared.abandon,
        without=lambda misfits: _plan(prepared.without(misfits), chosen),
        reopened=lambda: _plan(prepared.reopened(), chosen),
        roll=_roll(prepared, lambda changed: _plan(changed, chosen)),
        heirs=heirs(prepared, lambda changed: _plan(changed, chosen)),
        connections=Shares(*shares(deployment)),
    )


def _roll(prepared: Prepared, plan: Callable[[Prepared], Plan]) -> Roll:
    from penstock.spark.absence import Roll

    source = prepared.deployment.source

    known = {sink.name for sink in prepared.deployment.sinks}
    return Roll(
        limit=source.max_retained_wal,
        on_down={sink.name: sink.on_down.value for sink in prepared.deployment.sinks},
        away=tuple(name for name in prepared.lineage.away() if name in known),
        retained=functools.partial(_retained, prepared.settings, source.slot),
        silent=lambda: _silent(prepared),
        leave=lambda names: plan(prepared.leaving(names)),
        open=prepared.returning,
        join=lambda sink: plan(prepared.joining(sink)),
    )


def _retained(settings: ConnectionSettings, name: str) -> int | None:
    with open_sql(settings) as connection:
        found = slot.inspect(connection, name)
    return found.retained_bytes if found else None


def _silent(prepared: Prepared) -> dict[str, str]:
    """The sinks that do not answer, and what is said about them."""
    found = {}
    for sink in prepared.parts.every_sink:
        try:
            for index in prepared.origins.indexes:
                sink.holdings(f"{prepared.deployment.prefix}{index}")
        except RetryableError as error:
            found[sink.name] = error.message
    return found


def _source_options(prepared: Prepared) -> dict[str, str]:
    source = prepared.deployment.source
    columns = prepared.schemas.thin_columns()
    return {
        **_connection_options(prepared),
        "tables": ", ".join(sorted(table.sql for table in prepared.schemas.all_tables)),
        "slot": source.slot,
        "publication": source.publication,
        "managePublication": str(source.manage_publication).lower(),
        "mode": "keys",
        "spoolMaxBytes": str(_SPOOL_BYTES),
        "checkpointFolder": str(checkpoint.of(prepared.deployment.locate(prepared.deployment.state))),
        "keyColumns": json.dumps({table.sql: list(names) for table, names in columns.items()}),
    }


def _connection_options(prepared: Prepared) -> dict[str, str]:
    """How the stream's reader connects: its process gets the environment of the JVM that starts it."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # that JVM is still to be started, by this process
        os.environ["PENSTOCK_SOURCE_URL"] = prepared.settings.conninfo().decode()
        return {"urlEnv": "PENSTOCK_SOURCE_URL"}
    deployment, source = prepared.deployment, prepared.deployment.source
    certificates = {"sslRootCert": source.ssl_root_cert, "sslCert": source.ssl_cert, "sslKey": source.ssl_key}
    tls = {name: deployment.locate(path) if path != "system" else path for name, path in certificates.items() if path}
    if source.ssl_mode:
        tls["sslMode"] = source.ssl_mode.value
    variable = source.url.env or (source.url.reserved if os.environ.get(source.url.reserved) else "")
    if variable:
        return tls | {"urlEnv": variable}
    if source.url.open_text:
        return tls | {"url": source.url.open_text}
    raise ConfigError(
        "the connection's password is in the file, and the JVM was started by spark-submit: it cannot be handed over",
        hint=f'Write connection_url = {{ env = "{source.url.variable}" }}, and set that variable for spark-submit.',
    )


def _confirmed(prepared: Prepared) -> Lsn:
    """Where the slot stands, once it is there, or how far it was read and done: a server that crashed may set it back.

    Of a new slot, once what was open then has ended.
    """
    deadline, deployment = time.monotonic() + _SLOT_WAIT_S, prepared.deployment
    name = deployment.source.slot
    while time.monotonic() < deadline:
        with open_sql(prepared.settings) as connection:
            found = slot.inspect(connection, name)
            if found and found.confirmed_flush_lsn:
                prepared.beginning.settle()
                return max(found.confirmed_flush_lsn, committed(Path(deployment.locate(deployment.state))))
        time.sleep(0.1)
    raise UnavailableError(f"slot {name} was not made within {_SLOT_WAIT_S:.0f} s")


def for_tasks(deployment: Deployment) -> Deployment:
    """The deployment as tasks get it: passwords that stand in the file are variables of this process's environment."""

    def carried(value: Any) -> Any:
        if isinstance(value, Secret) and value.holds_password:
            name = "PENSTOCK_" + value.variable
            os.environ[name] = value.require()
            return Secret(value.label, env=name, place=value.place)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            changes = {one.name: carried(getattr(value, one.name)) for one in dataclasses.fields(value) if one.init}
            return dataclasses.replace(value, **changes)
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return tuple(map(carried, value))
        if isinstance(value, Mapping):
            return {key: carried(one) for key, one in value.items()}
        return value

    return dataclasses.replace(
        deployment, source=carried(deployment.source), sinks=tuple(map(carried, deployment.sinks))
    )
