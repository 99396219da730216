"""Documents that are built while their rows still change: the few interleavings that chance would rarely meet."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.document.build import PgDocumentBuilder
from penstock.document.schema import DocumentSchema, Join, JoinKind, LeafType, Scalar
from penstock.document.spec import SourceSpec
from penstock.model import Lsn, QualifiedTable, ReplicationConfig
from penstock.postgres.capture import WalChangeCapture
from tests.fixtures.databases import Database
from tests.fixtures.documents.feed import Feed
from tests.fixtures.documents.oracle import Oracle, read_state
from tests.fixtures.documents.shelf import Shelf
from tests.fixtures.documents.work import Work, check
from tests.fixtures.standbys import no_standby_answers
from tests.fixtures.waiting import wait_until

PARENT, CHILD = QualifiedTable("public", "parent"), QualifiedTable("public", "child")
ID = Scalar("id", LeafType.LONG, "id")
SCHEMA = DocumentSchema(
    "parents",
    PARENT,
    (ID, Join("children", JoinKind.HAS_MANY, CHILD, (ID,), foreign_key=("parent",), primary_key=("id",))),
    ("id",),
)
NO_SPLITS: dict[str, list[tuple[str, ...]]] = {"parents": []}
_numbers = itertools.count(1)


class Race:
    """Parents 1, 2 and 3, a child of the first, and what follows their changes."""

    def __init__(self, database: Database, feed: Feed, builder: PgDocumentBuilder, boundary: int) -> None:
        self.database = database
        self.feed = feed
        self.work = Work(builder, [SCHEMA], random.Random(0))
        self.shelf = Shelf(boundary)

    def apply(self) -> None:
        """Bring the shelf up to what was committed, in one cut."""
        mark = self.feed.mark(self.database.connect())
        list(self.work.apply(self.feed.until(mark), [self.shelf]))

    def check(self) -> None:
        """The shelf holds what the tables say."""
        check(self.shelf, [SCHEMA], Oracle(read_state(self.database.connect(), [PARENT, CHILD]), {}), "in the end")


@contextmanager
def race(database: Database) -> Iterator[Race]:
    """A race that has not begun."""
    for statement in (
        "CREATE TABLE marks (n bigint PRIMARY KEY)",
        "CREATE TABLE parent (id bigint PRIMARY KEY)",
        "CREATE TABLE child (id bigint PRIMARY KEY, parent bigint)",
        "ALTER TABLE child REPLICA IDENTITY FULL",
        "INSERT INTO parent VALUES (1), (2), (3)",
        "INSERT INTO child VALUES (10, 1)",
        "CREATE PUBLICATION race FOR ALL TABLES",
    ):
        database.execute(statement)
    slot = f"race_{next(_numbers)}"
    ((start,),) = database.execute("SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
    spec = SourceSpec([SCHEMA])
    config = ReplicationConfig(slot, "race", columns=spec.thin_columns())
    feed = Feed(WalChangeCapture(config, database.url), "public", 1000)
    try:
        with PgDocumentBuilder(spec, database.url) as builder:
            yield Race(database, feed, builder, int(Lsn.parse(start)))
    finally:
        feed.close()
        inactive = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND NOT active"
        wait_until(lambda: database.execute(inactive, slot), what="the slot to be free")
        database.execute("SELECT pg_drop_replication_slot(%s)", slot)


def test_a_child_that_moves_leaves_its_old_parent(db18: Database) -> None:
    """E61: both parents are built again."""
    with race(db18) as found:
        found.work.seed(found.shelf, NO_SPLITS)
        db18.execute("UPDATE child SET parent = 2")
        found.apply()
        found.check()


def test_a_parent_that_had_a_child_only_between_two_moves_is_rebuilt(database: Database) -> None:
    """E61: a seed saw it there; both moves come in one cut, and neither stands for the other."""
    with race(database) as found:
        database.execute("UPDATE child SET parent = 2")
        found.work.seed(found.shelf, NO_SPLITS)
        database.execute("UPDATE child SET parent = 3")
        found.apply()
        found.check()


def test_a_document_that_a_seed_saw_and_a_delete_removed_stays_removed(db18: Database) -> None:
    """E60, E61: its rows are gone when the changes are applied, and so is the document."""
    with race(db18) as found:
        found.work.seed(found.shelf, NO_SPLITS)
        db18.execute("DELETE FROM child")
        db18.execute("DELETE FROM parent WHERE id = 1")
        found.apply()
        found.work.seed(found.shelf, NO_SPLITS)
        found.check()


def test_nothing_is_built_from_a_commit_that_cannot_be_seen_yet(db18: Database) -> None:
    """E71: a commit is streamed while it waits for a standby; what is built in the end shows it."""
    with race(db18) as found:
        found.work.seed(found.shelf, NO_SPLITS)
        db18.execute("SET synchronous_commit = local")  # the test's own statements do not wait
        with no_standby_answers(db18):
            writer = db18.connect()
            moving = threading.Thread(target=writer.execute, args=["UPDATE child SET parent = 2"])
            moving.start()
            cut = found.feed.cut(random.Random(0), 1)
            applying = threading.Thread(target=lambda: list(found.work.apply(cut, [found.shelf])))
            applying.start()
            asked = "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%%pg_current_snapshot%%' AND pid <> %s"
            pid = db18.execute("SELECT pg_backend_pid()")[0][0]
            wait_until(lambda: not applying.is_alive() or db18.execute(asked, pid), what="somebody to look")
        moving.join()
        applying.join()
        found.check()
