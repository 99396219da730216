"""Make the fuzzer's first inputs: what real servers of each major send for a small, varied history.

`python fuzz/record.py` starts the servers itself and writes fuzz/corpus anew: one file for each kind of message, one
for each stretch of frames, one for each run of rows. fuzz/targets.py says how a file is read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import psycopg

from fuzz.targets import BLOCK, FRAMES, MESSAGE, RELATIONS
from penstock.demo.server import Server, find_binaries
from penstock.postgres import replication
from penstock.postgres.replication import ReplicationParams
from penstock.postgres.transactions import XLOG_HEADER

CORPUS = ROOT / "fuzz" / "corpus"
_LARGEST = 2048  # bytes of a file: the fuzzer learns more from small ones

_END = b"the end"
_OIDS = {len(relation.columns): oid for oid, relation in RELATIONS.items()}

SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'fine');
CREATE TABLE a (id int PRIMARY KEY, m mood, note text);
CREATE TABLE f (id int PRIMARY KEY, note text); ALTER TABLE f REPLICA IDENTITY FULL;
CREATE TABLE i (code int NOT NULL UNIQUE, big text); ALTER TABLE i REPLICA IDENTITY USING INDEX i_code_key;
ALTER TABLE i ALTER big SET STORAGE EXTERNAL;
CREATE TABLE n ();
CREATE PUBLICATION p FOR ALL TABLES;
SELECT pg_replication_origin_create('upstream');
"""

HISTORY = [
    ["INSERT INTO a VALUES (1, 'sad', NULL), (2, 'fine', 'größe')", "UPDATE a SET note = '' WHERE id = 1"],
    ["UPDATE a SET id = 3 WHERE id = 1", "DELETE FROM a WHERE id = 2", "INSERT INTO n DEFAULT VALUES"],
    ["INSERT INTO f VALUES (1, 'x')", "UPDATE f SET note = NULL", "UPDATE f SET id = 2", "DELETE FROM f"],
    ["INSERT INTO i VALUES (1, repeat(md5('x'), 70))", "UPDATE i SET code = 2", "DELETE FROM i"],
    ["ALTER TABLE a ADD more int", "INSERT INTO a VALUES (4, 'sad', 'y', 7)", "TRUNCATE a, f CASCADE"],
    ["SELECT pg_logical_emit_message(true, 'prefix', 'content')", "SAVEPOINT s", "INSERT INTO a VALUES (5)",
     "ROLLBACK TO s", "INSERT INTO a VALUES (6)"],
    ["SELECT pg_replication_origin_session_setup('upstream')", "INSERT INTO a VALUES (7, NULL, 'the end')"],
]  # fmt: skip


def record(major: int, streaming: bool, binary: bool) -> list[bytes]:
    """The frames that a server of that major sends."""
    settings = {"debug_logical_replication_streaming": "immediate"} if streaming else {}
    with Server(find_binaries(major), settings) as server, psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(SETUP)
        client = replication.connect(server.url())
        replication.ensure_slot(client, "s", temporary=True)
        for statements in HISTORY:
            with connection.transaction():
                for statement in statements:
                    connection.execute(statement)
        params = ReplicationParams("s", "p", streaming=streaming, binary=binary, messages=True)
        duplex = replication.start_replication(client, params)
        frames: list[bytes] = []
        while not _whole(frames):
            duplex.wait(1)
            frames += map(bytes, duplex.drain())
        duplex.close()
    return frames


def _whole(frames: list[bytes]) -> bool:
    """Whether the last transaction has been received up to its commit."""
    last = next((at for at, frame in enumerate(frames) if _END in frame), len(frames))
    return any(frame[XLOG_HEADER : XLOG_HEADER + 1] in (b"C", b"c") for frame in frames[last:])


def write(name: str, frames: list[bytes]) -> None:
    """One file for each kind of message, for stretches of frames, and for runs of rows."""
    messages = [frame[XLOG_HEADER:] for frame in frames if frame[:1] == b"w"]
    kinds: dict[bytes, bytes] = {}
    for message in messages:
        kinds.setdefault(message[:1] + (message[5:6] if message[:1] in (b"U", b"D") else b""), message)
    for at, message in enumerate(kinds.values()):
        if len(message) < _LARGEST:
            (CORPUS / f"{name}-message-{at:02}-{chr(message[0])}").write_bytes(bytes([MESSAGE]) + message)
    for at, stretch in enumerate(_stretches([frame for frame in frames if len(frame) < _LARGEST])):
        data = b"".join(len(frame).to_bytes(2, "big") + frame for frame in stretch)
        (CORPUS / f"{name}-frames-{at:02}").write_bytes(bytes([FRAMES]) + data)
    rows = [message for message in messages if message[:1] in (b"I", b"U", b"D") and len(message) < 250]
    if b"S" in {message[:1] for message in messages}:
        return  # its rows carry an xid, which the block adds itself
    for at in range(0, len(rows), 4):
        some = [bytes([b"IUD".index(row[0]), _OIDS[row[7]] - 1]) + row[5:] for row in rows[at : at + 4]]
        data = b"\0" + b"".join(bytes([len(row)]) + row for row in some)
        (CORPUS / f"{name}-block-{at:02}").write_bytes(bytes([BLOCK]) + data)


def _stretches(frames: list[bytes]) -> Iterator[list[bytes]]:
    """Runs of whole transactions, each behind the descriptions that it needs."""
    described: dict[bytes, bytes] = {}
    stretch: list[bytes] = []
    known: list[bytes] = []
    for frame in frames:
        stretch.append(frame)
        tag = frame[XLOG_HEADER : XLOG_HEADER + 1]
        if tag == b"R":
            described[frame[XLOG_HEADER + 1 : XLOG_HEADER + 5]] = frame
        if tag in (b"C", b"c") and sum(map(len, stretch)) > 400:
            yield known + stretch
            stretch = []
            known = [] if tag == b"c" else list(described.values())


def write_pairs() -> None:
    """An update of each relation for each pair of kinds of an old and a new value, which no short history has."""
    kinds = [b"t\0\0\0\1x", b"b\0\0\0\1y", b"n", b"u"]
    for oid, relation in RELATIONS.items():
        count = len(relation.columns)
        rows = [
            bytes([1, oid - 1]) + tag + bytes([0, count]) + old * count + b"N" + bytes([0, count]) + new * count
            for tag in (b"K", b"O")
            for old in kinds
            for new in kinds
        ]
        data = b"\0" + b"".join(bytes([len(row)]) + row for row in rows)
        (CORPUS / f"pairs-block-{oid:02}").write_bytes(bytes([BLOCK]) + data)


def main() -> None:
    """Write the corpus anew."""
    CORPUS.mkdir(exist_ok=True)
    for old in CORPUS.iterdir():
        old.unlink()
    for major in (18, 16):
        for streaming, binary in ((False, False), (False, True), (True, False)):
            name = f"pg{major}{'-streamed' if streaming else ''}{'-binary' if binary else ''}"
            write(name, record(major, streaming, binary))
    write_pairs()
    files = list(CORPUS.iterdir())
    print(f"{len(files)} inputs, {sum(path.stat().st_size for path in files):,} bytes, in {CORPUS}")


if __name__ == "__main__":
    main()
