"""The public vocabulary: every name, signature and default, spelled out, so that none changes by accident.

mypy holds `WalChangeCapture` to its contracts as well (in penstock.app); here the same is asked at run time.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import contracts, model
from penstock.model import Lsn, ReplicationConfig
from penstock.postgres.capture import Stream, WalChangeCapture
from penstock.reference import PostgresReferenceTableSource

SIGNATURES = {
    "penstock.contracts": {
        "AckSink.confirm": "(self, position: Position) -> None",
        "Ack.confirm": "(self) -> None",
        "ChangeStream.__iter__": "(self) -> Iterator[Change]",
        "ChangeStream.__next__": "(self) -> Change",
        "ChangeStream.close": "(self) -> None",
        "ChangeCapture.live": "(self) -> ChangeStream",
        "ChangeCapture.snapshot": "(self, tables: Sequence[SnapshotTable]) -> Iterator[Change]",
        "ChangeCapture.lag": "(self) -> int | None",
        "DocumentBuilder.affected": "(self, index: str, changes: pa.RecordBatch) -> Iterator[list[Key]]",
        "DocumentBuilder.truncated": "(self, index: str, changes: pa.RecordBatch) -> Extent",
        "DocumentBuilder.build": "(self, index: str, keys: Sequence[Key]) -> Iterator[Documents]",
        "DocumentBuilder.build_range": (
            "(self, index: str, after: Key | None, upto: Key | None) -> Iterator[Documents]"
        ),
        "DocumentBuilder.keys": "(self, index: str, ids: Collection[str]) -> Mapping[str, Key]",
        "DocumentBuilder.settle": "(self, xids: Collection[int]) -> None",
        "Catalog.column": "(self, table: QualifiedTable, name: str) -> ColumnType | None",
        "Sink.open": "(self, target: Target) -> None",
        "Sink.shows": "(self, target: Target) -> bool",
        "Sink.revive": "(self, target: Target) -> bool",
        "Sink.generation": "(self, index: str) -> str",
        "Sink.seeded": "(self, index: str) -> Lsn | None",
        "Sink.seeding": "(self, index: str) -> None",
        "Sink.complete": "(self, index: str, version: Lsn) -> None",
        "Sink.write": "(self, writes: Writes) -> Sequence[Rejection]",
        "Sink.outdone": "(self) -> int",
        "Sink.flush": "(self) -> None",
        "Sink.clear": "(self, index: str, version: Lsn) -> None",
        "Sink.forget": "(self, index: str) -> None",
        "Sink.holdings": "(self, name: str) -> Sequence[str]",
        "Sink.remove": "(self, name: str) -> None",
        "Sink.close": "(self) -> None",
        "SharedSink.join": "(self, target: Target, generation: str) -> None",
        "ReadableSink.look": "(self, index: str, ids: Sequence[str]) -> Mapping[str, Held]",
        "StampedSink.stamp": "(self, index: str) -> str",
        "StampedSink.restamp": "(self, stamp: str) -> None",
        "ReadableSink.scan": "(self, index: str) -> Iterator[list[str]]",
        "ReferenceTableSource.poll_snapshot": "(self) -> pa.RecordBatch | None",
        "ReferenceTableSource.is_snapshot_complete": "(self) -> bool",
        "ReferenceTableSource.poll_changes": "(self) -> pa.RecordBatch | None",
        "ReferenceTableSource.checkpoint": "(self) -> SourceCheckpoint",
        "ReferenceTableSource.confirm": "(self, checkpoint: SourceCheckpoint) -> None",
        "ReferenceTableSource.restore": "(self, checkpoint: SourceCheckpoint) -> None",
        "ReferenceTableSource.close": "(self) -> None",
        "CaptureProvisioning.inspect_coverage": "(self, required: set[QualifiedTable]) -> CoverageReport",
        "CaptureProvisioning.ensure_coverage": "(self, required: set[QualifiedTable], manage: bool) -> CoverageReport",
    },
    "penstock.postgres.capture": {
        "WalChangeCapture": "(config: ReplicationConfig, connection_url: str | ConnectionSettings) -> None",
        "WalChangeCapture.with_publication_management": (
            "(self, required: set[QualifiedTable], manage: bool) -> WalChangeCapture"
        ),
        "WalChangeCapture.live": "(self) -> Stream[Change]",
        "WalChangeCapture.runs": "(self, *, whole: bool = False) -> Stream[ChangeRun]",
        "WalChangeCapture.batches": (
            "(self, shape: RowShape | None = None, *, max_rows: int = 16384, max_bytes: int = 4194304)"
            " -> Stream[ChangeBatch]"
        ),
        "WalChangeCapture.key_batches": (
            "(self, *, max_rows: int = 16384, max_bytes: int = 4194304) -> Stream[KeyBatch]"
        ),
        "WalChangeCapture.snapshot": "(self, tables: Sequence[SnapshotTable]) -> Iterator[Change]",
        "WalChangeCapture.lag": "(self) -> int | None",
        "WalChangeCapture.heartbeat": "(self) -> Lsn",
        "WalChangeCapture.inspect_coverage": "(self, required: set[QualifiedTable]) -> CoverageReport",
        "WalChangeCapture.ensure_coverage": "(self, required: set[QualifiedTable], manage: bool) -> CoverageReport",
    },
    "penstock.postgres.replication": {
        "connect": "(connection_url: str | ConnectionSettings, *, timeout_s: float | None = None) -> Client",
        "ensure_slot": (
            "(client: Client, name: str, *, temporary: bool = False, failover: bool = False) -> slot.SlotInfo"
        ),
        "advance_slot": "(client: Client, name: str, to: Lsn) -> Lsn",
        "drop_slot": "(client: Client, name: str) -> bool",
        "start_replication": "(client: Client, params: ReplicationParams) -> Duplex",
        "recv": "(duplex: Duplex, timeout_s: float | None = None) -> ReplicationEvent | None",
        "send_status_update": "(duplex: Duplex, flushed: Lsn, *, reply: bool = False) -> None",
        "is_slot_active_error": "(error: BaseException) -> bool",
        "retry_on_slot_active": (
            "(max_retries: int, op: Callable[[], _T], *, stop: threading.Event | None = None) -> _T"
        ),
        "postgres_clock_now": "() -> int",
        "postgres_clock_to_unix_ms": "(micros: int) -> int | None",
    },
    "penstock.document.build": {
        "PgDocumentBuilder": (
            "(spec: SourceSpec, connection_url: str | ConnectionSettings, *, max_connections: int = 4,"
            " chunk_keys: int = 1000, chunk_bytes: int = 8388608, settle_timeout_s: float = 60.0) -> None"
        ),
    },
    "penstock.document.spec": {
        "SourceSpec": "(schemas: Sequence[DocumentSchema]) -> None",
        "SourceSpec.thin_columns": "(self) -> Mapping[QualifiedTable, Sequence[str]]",
    },
    "penstock.document.reading": {
        "read_schema": "(source: str | Path, index: str) -> DocumentSchema",
    },
    "penstock.reference": {
        "ReferenceCapture": (
            "(config: ReplicationConfig, connection_url: str | ConnectionSettings, *, manage_publication: bool = True,"
            " spool_bytes: int = 1073741824) -> None"
        ),
        "ReferenceCapture.table": (
            "(self, table: str | QualifiedTable, *, key: Sequence[str] = (), unrepresentable: Unrepresentable = error)"
            " -> PostgresReferenceTableSource"
        ),
        "ReferenceView": (
            "(source: ViewSource, *, path: str | Path | None = None,"
            " refresh: Refresh | str = <Refresh.CHANGES: changes>,"
            " every_s: float = 60.0, save_every_s: float = 5.0, fresh: bool = False) -> None"
        ),
    },
    "penstock.model": {
        "Lsn.parse": "(text: str) -> Lsn",
        "QualifiedTable.parse": "(text: str) -> QualifiedTable",
    },
}

REQUIRED = "required"
FIELDS = {
    "penstock.contracts:Ack": {"sink": REQUIRED, "position": REQUIRED},
    "penstock.contracts:Change": dict.fromkeys(("table", "op", "new", "old", "xid", "position", "ack"), REQUIRED),
    "penstock.contracts:SourceCheckpoint": dict.fromkeys(
        ("format", "system_id", "slot", "table", "position", "metadata"), REQUIRED
    ),
    "penstock.contracts:Documents": dict.fromkeys(("index", "ids", "bodies"), REQUIRED),
    "penstock.contracts:ColumnType": dict.fromkeys(("name", "nullable", "base"), REQUIRED),
    "penstock.model:Position": {"lsn": REQUIRED, "row": REQUIRED},
    "penstock.model:QualifiedTable": {"schema": REQUIRED, "name": REQUIRED},
    "penstock.model:SnapshotTable": {"table": REQUIRED, "columns": ()},
    "penstock.model:Blocker": {"table": REQUIRED, "reason": REQUIRED, "sql": ""},
    "penstock.model:CoverageReport": {
        "publication": REQUIRED, "present": frozenset(), "missing": frozenset(), "manageable": True, "blockers": (),
        "sql": (), "notes": (),
    },
    "penstock.model:TlsConfig": {"mode": model.SslMode.PREFER, "root_cert": None, "cert": None, "key": None},
    "penstock.model:ReplicationConfig": {
        "slot": REQUIRED, "publication": REQUIRED, "start_lsn": Lsn.ZERO, "origin": None, "temporary_slot": False,
        "failover": False, "streaming": False, "columns": {}, "buffer_bytes": 64 << 20, "spill_bytes": 64 << 20,
        "spill_dir": None, "slot_wait_s": 90.0,
    },
    "penstock.postgres.replication:ReplicationParams": {
        "slot": REQUIRED, "publication": REQUIRED, "start_lsn": Lsn.ZERO, "protocol": 2, "streaming": False,
        "binary": False, "messages": False,
    },
}  # fmt: skip

CONSTANTS = {
    "penstock.postgres.replication:POSTGRES_EPOCH_MICROS": 946_684_800_000_000,
    "penstock.model:Lsn.ZERO": 0,
    "penstock.model:Lsn.MAX": (1 << 64) - 1,
    "penstock.model:SslMode": ["disable", "prefer", "require", "verify-ca", "verify-full"],
    "penstock.model:Op": ["insert", "update", "delete", "truncate"],
}


def find(module: str, path: str) -> Any:
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize(
    ("module", "name", "expected"),
    [(module, name, text) for module, listed in SIGNATURES.items() for name, text in listed.items()],
)
def test_signature(module: str, name: str, expected: str) -> None:
    assert str(inspect.signature(find(module, name))).replace("'", "") == expected


def fields_of(kind: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(kind):
        return {name: kind._field_defaults.get(name, REQUIRED) for name in kind._fields}
    found = {}
    for field in dataclasses.fields(kind):
        made = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        found[field.name] = REQUIRED if made is dataclasses.MISSING else made
    return found


@pytest.mark.parametrize("where", FIELDS)
def test_fields_and_their_defaults(where: str) -> None:
    found = fields_of(find(*where.split(":")))
    assert list(found.items()) == list(FIELDS[where].items()), "order counts: fields can be given by position"


@pytest.mark.parametrize("where", CONSTANTS)
def test_constant(where: str) -> None:
    found = find(*where.split(":"))
    assert (list(found) if isinstance(found, type) else found) == CONSTANTS[where]


def test_the_top_of_the_package() -> None:
    assert penstock.__all__ == ["Lsn", "ReplicationConfig", "SslMode", "TlsConfig", "__version__"]
    for name in ("Lsn", "ReplicationConfig", "SslMode", "TlsConfig"):
        assert getattr(penstock, name) is getattr(model, name)
    assert re.fullmatch(r"\d+\.\d+\.\d+", penstock.__version__)


def test_the_report_of_coverage_says_whether_it_is_complete() -> None:
    table = model.QualifiedTable("public", "t")
    assert model.CoverageReport("p", present=frozenset({table})).complete
    assert not model.CoverageReport("p", missing=frozenset({table})).complete
    assert not model.CoverageReport("p", blockers=(model.Blocker(table, "no key"),)).complete


def test_the_capture_keeps_both_contracts() -> None:
    capture = WalChangeCapture(ReplicationConfig("s", "p"), "postgresql://u:hunter2@nowhere.invalid/d")
    assert isinstance(capture, contracts.ChangeCapture)
    assert isinstance(capture, contracts.CaptureProvisioning)
    assert issubclass(Stream, contracts.ChangeStream)
    assert "hunter2" not in repr(capture)
    source = (Path(penstock.__file__).parent / "app" / "__init__.py").read_text()
    for contract in ("ChangeCapture", "CaptureProvisioning"):
        assert f"type[{contract}] = WalChangeCapture" in source, "mypy checks this assignment"


def test_a_bare_mechanism_has_no_snapshot_and_no_lag() -> None:
    class Bare(contracts.ChangeCapture):
        def live(self) -> contracts.ChangeStream:
            raise NotImplementedError

    assert list(Bare().snapshot([])) == []
    assert Bare().lag() is None


def test_a_copy_with_publication_management_leaves_the_original_alone() -> None:
    capture = WalChangeCapture(ReplicationConfig("s", "p"), "postgresql://u@nowhere.invalid/d")
    copy = capture.with_publication_management({model.QualifiedTable("public", "t")}, manage=True)
    assert copy is not capture
    assert copy.config is capture.config
    assert (capture._required, copy._required) == (frozenset(), {model.QualifiedTable("public", "t")})


def test_a_table_of_references_keeps_its_contract() -> None:
    for name in (one for one in vars(contracts.ReferenceTableSource) if not one.startswith("_")):
        expected = inspect.signature(getattr(contracts.ReferenceTableSource, name))
        assert inspect.signature(getattr(PostgresReferenceTableSource, name)) == expected, name


def test_every_seam_says_what_it_promises() -> None:
    for name, kind in vars(contracts).items():
        if inspect.isclass(kind) and kind.__module__ == contracts.__name__:
            assert kind.__doc__, name
            methods = [one for one in vars(kind).values() if inspect.isfunction(one)]
            assert all(one.__doc__ for one in methods if not one.__name__.startswith("_")), name
