"""A slot without a server: what its stream holds, how far it was acknowledged, and captures that read it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.contracts import SourceCheckpoint
from penstock.errors import PenstockError
from penstock.model import Lsn, Origin, Position, QualifiedTable, ReplicationConfig
from penstock.postgres.resume import check_slot
from penstock.postgres.snapshot_plan import Selection
from penstock.postgres.transactions import Transaction
from penstock.reference import PostgresReferenceTableSource, ReferenceCapture
from penstock.reference import capture as capture_module
from penstock.reference import checkpoint as checkpoints
from penstock.reference import source as source_module
from penstock.reference.footing import Footing
from penstock.reference.seen import Seen
from penstock.reference.shape import Known, TableShape
from tests.unit.reference_parts import ORIGIN, SHAPE


class Slot:
    """What a test sets up: transactions by what they end at, how far the server is, and where the slot stands."""

    def __init__(self) -> None:
        self.confirmed = Lsn(10)
        self.reached = Lsn(10)
        self.stream: list[Callable[[], Transaction]] = []
        self.answers: list[PenstockError | dict[int, QualifiedTable]] = []
        self.asked = 0
        self.is_held = False
        self.meanwhile: Callable[[], object] = lambda: None  # what happens while a snapshot waits
        self.timeline = 1
        self.starts: list[tuple[int, int, int | None]] = []  # from where, what else is held, and on which timeline
        self.oids: dict[QualifiedTable, int] = {}

    def known(self, table: QualifiedTable, parts: dict[int, QualifiedTable] | None = None) -> Known:
        """A table of two columns and its OID, and the partitions that it has, if any."""
        oid = self.oids.setdefault(table, len(self.oids) + 1)
        shape = TableShape(table, SHAPE.columns, SHAPE.key)
        return Known(shape, Selection(table, ()), {oid: table, **(parts or {})}, parts is not None)

    def capture(self) -> ReferenceCapture:
        """A process that reads it."""
        return ReferenceCapture(ReplicationConfig("dims", "dims"), "postgresql://u@h/d")

    def table(self, capture: ReferenceCapture, name: str, lsn: int, timeline: int = 1) -> PostgresReferenceTableSource:
        """A table that goes on from a checkpoint."""
        source = capture.table(name)
        source.restore(self.checkpoint(name, lsn, replace(ORIGIN, timeline=timeline)))
        return source

    def checkpoint(self, name: str, lsn: int, origin: Origin = ORIGIN) -> SourceCheckpoint:
        shape = self.known(QualifiedTable.parse(name)).shape
        return checkpoints.make("dims", origin, shape, Position(Lsn(lsn), 0), Lsn(lsn))


class _Receiver:
    """The stream from where it was asked for."""

    def __init__(self, slot: Slot, config: ReplicationConfig, mark: Any, promised: Lsn = Lsn.ZERO) -> None:
        self._slot, self._config, self._mark = slot, config, mark
        self.origin = config.origin
        self.reached = config.start_lsn or slot.confirmed
        slot.starts.append((int(config.start_lsn), int(promised), config.origin.timeline if config.origin else None))
        self._left: list[Transaction] | None = None
        self._ended = threading.Event()

    def opened(self, timeout_s: float) -> Lsn:
        if self._slot.is_held:
            self._ended.wait(timeout_s)
            return Lsn.ZERO
        found: Any = SimpleNamespace(confirmed_flush_lsn=self._slot.confirmed)
        check_slot("dims", found, max(self._config.start_lsn, self._mark.durable), may_create=True)
        self.origin = replace(ORIGIN, timeline=self._slot.timeline)
        return self._slot.confirmed

    def take(self, max_bytes: int, timeout_s: float | None = None) -> list[Transaction]:
        if self._left is None:
            self._left = [one for make in self._slot.stream if (one := make()).end_lsn > self._config.start_lsn]
        found = [one for one in self._left if one.end_lsn <= self._slot.reached]
        self._left = self._left[len(found) :]
        self.reached = max(self.reached, self._slot.reached)
        return found

    def close(self) -> None:
        self._ended.set()
        self._slot.confirmed = max(self._slot.confirmed, self._mark.durable)


class _Moment:
    """An empty snapshot."""

    seen = Seen("5:5:", Lsn(1000))

    def next(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def slot(monkeypatch: pytest.MonkeyPatch) -> Slot:
    """A slot, which every capture of the test reads."""
    made = Slot()

    def learn_again(_: ReferenceCapture, table: QualifiedTable, key: tuple[str, ...], was: Footing | None) -> Known:
        made.asked += 1
        answer = made.answers.pop(0) if made.answers else None
        if isinstance(answer, PenstockError):
            raise answer
        return made.known(table, answer)

    def receiver(_: Any, config: ReplicationConfig, mark: Any, prepare: Any, **more: Any) -> _Receiver:
        return _Receiver(made, config, mark, **more)

    monkeypatch.setattr(capture_module, "Receiver", receiver)

    def moment(*_: Any) -> _Moment:
        made.meanwhile()
        return _Moment()

    monkeypatch.setattr(source_module, "Moment", moment)
    monkeypatch.setattr(ReferenceCapture, "learn", lambda _, table, key: made.known(table))
    monkeypatch.setattr(ReferenceCapture, "learn_again", learn_again)
    monkeypatch.setattr(ReferenceCapture, "_look_when_due", lambda _: None)
    return made
