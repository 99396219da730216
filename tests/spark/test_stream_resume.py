"""Stopping, failing and starting again: the same rows for the same batch, and a clear stop where none can be had."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import (
    ConfigError,
    CoverageError,
    PenstockError,
    PositionError,
    PrivilegeError,
    SlotMissingError,
)
from penstock.model import Lsn
from penstock.postgres import replication
from penstock.spark import health
from tests.fixtures.databases import Database
from tests.fixtures.streams import Rows, Steps, Streamed
from tests.fixtures.waiting import wait_until

TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, v text)"


def insert(tapped: Steps | Streamed, *ids: int) -> None:
    """Rows of one transaction."""
    tapped.execute("INSERT INTO t SELECT unnest(%s::bigint[]), 'x'", list(ids))


def ids(rows: Rows) -> list[int]:
    return [row["id"] for row in rows]


@pytest.fixture
def opened(steps: Steps) -> Steps:
    steps.execute(TABLE)
    return steps.begin(table="t").open()


def refusal(steps: Steps, kind: type[PenstockError], **options: Any) -> str:
    """What a restart says, asked for the next offset."""
    with pytest.raises(kind) as caught:
        steps.restart(**options)
        wait_until(steps.poll, what="a refusal")
    steps.close_reader()
    return str(caught.value)


def test_a_failed_batch_comes_again_the_same_in_a_new_query(stream: Streamed) -> None:
    """E13, E20, E22, E100, E102: a sink that fails once, before and after it wrote; the slot waits for it."""
    stream.execute(TABLE)
    running = stream.start(table="t")
    stream.await_streaming()
    insert(stream, 1)
    running.await_rows(1)
    running.stop()

    def fail(number: int, rows: Rows) -> None:
        if rows:
            raise ValueError("the sink is out of order")

    insert(stream, 2, 3)
    insert(stream, 4)
    stream.execute("UPDATE t SET v = 'y' WHERE id = 2")
    failed = stream.start(table="t", then=fail)
    assert "the sink is out of order" in failed.await_failure()
    stream.await_free()
    number, rows = failed.calls[-1]
    assert stream.confirmed() < rows[0]["_commit_lsn"], "what the sink did not take is not acknowledged"
    insert(stream, 5)  # it has no part in the batch that was planned
    again = stream.start(table="t")
    again.await_rows(len(rows) + 1)
    assert again.calls[0] == (number, rows)
    assert ids(again.rows)[-1] == 5
    wait_until(lambda: stream.confirmed() >= again.rows[-1]["_commit_lsn"], what="the slot to follow")
    again.stop()


def test_a_stop_without_a_change_resumes_without_one(stream: Streamed) -> None:
    """E22: exactly at the end of a transaction, nothing is skipped and nothing comes twice."""
    stream.execute(TABLE)
    stream.available_now(table="t")
    insert(stream, 1)
    assert ids(stream.available_now(table="t").rows) == [1]
    insert(stream, 2)
    assert ids(stream.available_now(table="t").rows) == [2]
    assert stream.available_now(table="t").rows == []


def test_a_planned_batch_is_the_same_however_often_and_by_whom_it_is_read(opened: Steps) -> None:
    """E100: twice by one reader, by the next, and inside a transaction that was cut."""
    insert(opened, 1, 2, 3)
    opened.execute("BEGIN; UPDATE t SET v = 'y'; DELETE FROM t WHERE id = 2; COMMIT")
    for _ in range(3):
        wait_until(opened.poll, what="rows")
        rows = opened.read()
        assert rows and opened.read() == rows
        opened.restart(maxRowsPerTrigger=2)
        assert opened.read() == rows
        insert(opened, *(opened.done * 10 + n for n in range(5)))
        assert opened.restart().read() == rows
        opened.commit()


def test_a_slot_that_is_gone_is_not_made_again(opened: Steps) -> None:
    """E26: with changes, before the first change, and before even the first batch was done."""
    insert(opened, 1)
    opened.rows(1)
    opened.close_reader()
    opened.drop()
    assert "is gone, but the checkpoint has read up to" in refusal(opened, SlotMissingError)
    assert not opened.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", opened.slot)
    del opened.offsets[1:]
    opened.done = 1
    assert "is gone" in refusal(opened, SlotMissingError)
    opened.done = 0
    opened.restart()
    with pytest.raises(SlotMissingError, match="is gone"):
        opened.read()


def test_with_fail_on_data_loss_false_it_goes_on_behind_what_is_gone(opened: Steps) -> None:
    """E26, E29: by a user's own word."""
    insert(opened, 1)
    opened.rows(1)
    opened.close_reader()
    insert(opened, 2)
    opened.drop()
    opened.restart(failOnDataLoss="false")
    assert not opened.poll()
    opened.await_streaming()
    insert(opened, 3)
    assert ids(opened.rows(1)) == [3]


def test_a_slot_that_somebody_else_consumed_is_a_clear_stop(opened: Steps) -> None:
    """E29: the checkpoint stands behind the slot."""
    opened.close_reader()
    insert(opened, 1)
    opened.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", opened.slot)
    assert "somebody else consumed it" in refusal(opened, PositionError)
    opened.restart(failOnDataLoss="false")
    assert not opened.poll()
    insert(opened, 2)
    assert ids(opened.rows(1)) == [2]


def test_a_checkpoint_ahead_of_the_wal_is_a_clear_stop(opened: Steps) -> None:
    """E29: the server was restored from an older backup; a place inside of a transaction counts too."""
    far = str(Lsn(opened.wal_end() + (1 << 40)))
    opened.offsets[-1] |= {"lsn": far}
    assert "ahead of the server's WAL" in refusal(opened, PositionError)
    opened.offsets[-1] |= {"rows": 3}
    assert "ahead of the server's WAL" in refusal(opened, PositionError)
    said = refusal(opened, PositionError, failOnDataLoss="false")
    assert "ahead of the server's WAL" in said and "a new checkpoint" in said
    opened.drop()
    assert "ahead of the server's WAL" in refusal(opened, PositionError)
    assert not opened.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", opened.slot)


def test_a_checkpoint_of_another_server_or_slot_is_a_clear_stop(opened: Steps) -> None:
    """E29."""
    mine = opened.offsets[-1]
    opened.offsets[-1] = {**mine, "system": "4711"}
    assert "belongs to the server with system identifier 4711" in refusal(opened, PositionError)
    opened.offsets[-1] = {**mine, "timeline": 7}
    assert "is on timeline 7" in refusal(opened, PositionError)
    opened.offsets[-1] = {**mine, "system": "4711"}
    assert "system identifier 4711" in refusal(opened, PositionError, failOnDataLoss="false")
    opened.drop()
    assert "system identifier 4711" in refusal(opened, PositionError)
    opened.offsets[-1] = mine
    said = refusal(opened, PositionError, slot="another")
    assert f"belongs to slot {opened.slot}, but the query reads slot another" in said


def test_a_place_inside_of_a_transaction_has_to_be_on_the_timeline_too(
    opened: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E29: a failover that left before it lost a part of that transaction."""
    insert(opened, 1, 2, 3)
    opened.restart(maxRowsPerTrigger=2)
    assert ids(opened.batch()) == [1, 2]
    opened.offsets[-1] |= {"timeline": 7}
    monkeypatch.setattr(replication, "timeline_switch", lambda client, timeline: Lsn(5))
    assert "on timeline 7; this server is on 1 and left it at 0/5" in refusal(opened, PositionError)


def test_a_temporary_slot_serves_a_run_without_a_checkpoint_and_no_other(steps: Steps) -> None:
    """E26, E31: it ends with the run, and what came after it is gone."""
    steps.execute(TABLE)
    steps.begin(table="t", temporarySlot="true").open()
    insert(steps, 1)
    assert ids(steps.rows(1)) == [1]
    assert "a temporary slot cannot serve a checkpoint that has offsets" in refusal(steps, ConfigError)
    steps.done = 0
    steps.restart()
    with pytest.raises(ConfigError, match="temporary slot"):
        steps.read()


def test_a_table_that_a_query_gained_is_published_before_it_streams(steps: Steps) -> None:
    """E40, E43: managePublication adds it, and from then on nothing of it is missed."""
    steps.execute(TABLE)
    steps.execute("CREATE TABLE u (id bigint PRIMARY KEY)")
    steps.begin(tables="t", publication="pub").open()
    insert(steps, 1)
    steps.rows(1)
    writing = steps.database.connect(autocommit=False)
    writing.execute("INSERT INTO t VALUES (2)")
    writing.commit()
    steps.restart(tables="t, u")
    wait_until(steps.poll, what="the row that was written meanwhile")
    steps.read()
    steps.commit()
    steps.execute("INSERT INTO u VALUES (7)")
    (row,) = steps.rows(1)
    assert row["_table"] == "public.u"
    published = steps.execute("SELECT tablename FROM pg_publication_tables WHERE pubname = 'pub' ORDER BY 1")
    assert published == [("t",), ("u",)]


def test_without_managing_a_missing_table_is_refused_with_the_sql(steps: Steps) -> None:
    """E41, E43: nothing is made behind the user's back."""
    steps.execute(TABLE)
    steps.execute("CREATE PUBLICATION pub")
    steps.begin(table="t", publication="pub", managePublication="false")
    with pytest.raises(CoverageError) as caught:
        steps.poll()
    assert "not published: public.t" in str(caught.value)
    assert 'ALTER PUBLICATION "pub" ADD TABLE "public"."t"' in str(caught.value)
    assert not steps.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", steps.slot)


def test_interleaved_transactions_come_whole_in_commit_order(opened: Steps) -> None:
    """E10, E11: rolled back, to a savepoint too, empty; positions are unique and in order."""
    one, two = (opened.database.connect(autocommit=False) for _ in range(2))
    one.execute("INSERT INTO t VALUES (1)")
    two.execute("INSERT INTO t VALUES (2)")
    one.execute("SAVEPOINT a")
    one.execute("INSERT INTO t VALUES (3)")
    one.execute("ROLLBACK TO a")
    two.commit()
    two.execute("INSERT INTO t VALUES (9)")
    two.rollback()
    one.execute("INSERT INTO t VALUES (4)")
    one.commit()
    rows = opened.rows(3)
    assert ids(rows) == [2, 1, 4]
    positions = [(row["_commit_lsn"], row["_seq"]) for row in rows]
    assert positions == sorted(set(positions)) and [seq for _, seq in positions] == [0, 0, 1]
    assert rows[1]["_xid"] == rows[2]["_xid"] != rows[0]["_xid"]


def test_a_commit_is_nowhere_to_be_seen_before_it_is_one(opened: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """E13: a crash of the reader between begin and commit changes nothing; prepared transactions wait."""
    writing = opened.database.connect(autocommit=False)
    writing.execute("INSERT INTO t VALUES (1)")
    assert not opened.poll()
    opened.restart()
    assert not opened.poll()
    writing.commit()
    assert ids(opened.rows(1)) == [1]


def test_a_server_that_restarts_is_followed(opened: Steps) -> None:
    """E32: the reader connects again by itself, and what was planned comes again."""
    insert(opened, 1)
    wait_until(opened.poll, what="a row")
    rows = opened.read()
    opened.database.server.restart()
    insert(opened, 2)
    assert opened.read() == rows
    (seen,) = health.readers()
    assert (seen.slot, seen.pid) == (opened.slot, os.getpid())
    wait_until(lambda: health.readers()[0].state == "streaming" and health.readers()[0].error, what="the last trouble")
    opened.commit()
    assert ids(opened.rows(1)) == [2]


def test_a_server_that_refuses_an_answer_is_told_in_our_words_and_ends_no_report(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E34: a right that is taken away while the query runs; the stream itself needs it no more."""
    monkeypatch.setattr(health, "_EVERY_S", 0.05)
    monkeypatch.setattr(health, "_NEWEST_EVERY_S", 0.0)
    steps.execute(TABLE)
    steps.execute("CREATE PUBLICATION pub FOR TABLE t")
    url = steps.database.role("follower", attributes="LOGIN REPLICATION")
    steps.begin(url=url, table="t", publication="pub").open()
    (known,) = wait_until(health.readers, what="the first report")
    steps.execute("REVOKE EXECUTE ON FUNCTION pg_catalog.pg_current_wal_flush_lsn() FROM PUBLIC")
    seen = {known.updated_at}
    for _ in range(3):  # each but the first comes behind a question that was refused
        seen.add(wait_until(lambda: {one.updated_at for one in health.readers()} - seen, what="a later report").pop())
    assert steps.reader is not None
    with pytest.raises(PrivilegeError, match="asking how far the WAL reaches failed: the role lacks a right"):
        steps.reader.prepareForTriggerAvailableNow()
    insert(steps, 1)
    assert ids(steps.rows(1)) == [1]


def test_a_reader_that_is_not_asked_for_long_keeps_its_stream(db18: Database, steps: Steps) -> None:
    """E24: a sink that takes longer than wal_sender_timeout, with the spool full and the socket unread."""
    steps.execute(TABLE)
    steps.execute(f"ALTER ROLE postgres IN DATABASE {db18.name} SET wal_sender_timeout = '2s'")
    steps.begin(table="t", spoolMaxBytes=10_000).open()
    senders = "SELECT pid FROM pg_stat_replication"
    (before,) = steps.execute(senders)
    steps.execute("INSERT INTO t SELECT n, repeat('x', 1000) FROM generate_series(1, 20) n")
    steps.execute("INSERT INTO t SELECT n, repeat('x', 1000) FROM generate_series(21, 40) n")
    ((began,),) = steps.execute("SELECT clock_timestamp()")
    late = "SELECT clock_timestamp() > %s + interval '5 s'"
    wait_until(lambda: steps.execute(late, began) == [(True,)], what="the timeout to pass twice")
    assert ids(steps.rows(40)) == [*range(1, 41)]
    assert steps.execute(senders) == [before], "it is the same connection"


def test_offsets_in_a_checkpoint_name_their_format_server_and_slot(stream: Streamed) -> None:
    """E29, E103: what Spark wrote to disk is the whole of what a resume needs."""
    stream.execute(TABLE)
    stream.available_now(table="t")
    files: list[Path] = sorted((stream.checkpoint / "offsets").iterdir())
    offset = json.loads(files[-1].read_text().splitlines()[-1])
    assert list(offset) == ["format", "system", "timeline", "slot", "lsn", "rows"]
    assert (offset["format"], offset["slot"]) == (1, stream.slot)


def test_a_second_query_waits_for_the_slot_and_tells_what_it_missed(opened: Steps) -> None:
    """E25, E33: no split brain. It goes on where the slot stands, and refuses where its own log stands elsewhere."""
    insert(opened, 1)
    opened.rows(1)
    other = Steps(opened.database, opened.slot)
    other.offsets, other.done = opened.offsets[:], opened.done
    other.begin(table="t")
    assert not other.poll()
    insert(opened, 2)
    assert ids(opened.rows(1)) == [2]
    assert not other.poll()
    assert opened.reader is not None and opened.reader._live is not None
    assert other.reader is not None and other.reader._live is not None
    follower, waiting = opened.reader._live.replay, other.reader._live.replay
    assert (follower.state, waiting.state) == ("streaming", "waiting")
    assert opened.slot in waiting.trouble
    opened.poll()
    wait_until(lambda: opened.confirmed() > Lsn.parse(other.offsets[-1]["lsn"]), what="the slot to move on")
    opened.reader.stop()
    with pytest.raises(PositionError, match="somebody else consumed it"):
        wait_until(other.poll, 30, "the slot")
    assert waiting.state == "failed" and "somebody else consumed it" in waiting.trouble
    other.close_reader()
