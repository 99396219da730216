"""Each thing that can be wrong with a server, produced for real: one clear sentence, a next step, an exit code.

Every test runs the command twice: in a child process as a user does, and once more for its JSON.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from penstock.cli import main
from penstock.demo.server import Server
from penstock.model import Lsn
from tests.fixtures.commands import run_penstock, running
from tests.fixtures.databases import Database
from tests.fixtures.tls import Certificates, TlsProxy
from tests.fixtures.waiting import wait_until

Start = Callable[..., Server]
StartProxy = Callable[..., TlsProxy]
SECRET = "hunter2"


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """`fails(url, arguments, code=…, kind=…, said=…, hints=…)`: run it both ways and compare."""

    def check(url: str, *arguments: str, code: int, kind: str, said: str, hints: tuple[str, ...]) -> None:
        done = run_penstock(*arguments, PENSTOCK_URL=url)
        assert done.returncode == code, done
        lines = [line for line in done.stderr.splitlines() if line.startswith(("Error: ", "Hint: "))]
        assert [line.split(":")[0] for line in lines] == ["Error", "Hint"], done.stderr
        assert said in lines[0]
        assert all(hint in done.stderr.partition("Hint: ")[2] for hint in hints)
        assert done.stdout == ""
        for unwanted in ("Traceback", SECRET, url):
            assert unwanted not in done.stdout + done.stderr
        monkeypatch.setenv("PENSTOCK_URL", url)
        assert main.run([*arguments, "--json", "--log-level", "error"]) == code
        shown = capsys.readouterr()
        assert SECRET not in shown.out + shown.err
        (line,) = shown.err.splitlines()
        error = json.loads(line)["error"]
        assert (error["type"], error["exit_code"]) == (kind, code)
        assert said in error["message"]
        assert all(hint in error["hint"] for hint in hints)

    return check


@pytest.fixture
def shop(db18: Database) -> Database:
    """A database with a published table."""
    db18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    db18.execute("CREATE PUBLICATION penstock FOR TABLE t")
    return db18


def test_a_wrong_password(db18: Database, fails: Callable[..., None], tmp_path: Path) -> None:
    """E110: and where it came from makes no difference."""
    db18.role("bob", password="right")
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    wrong = {
        "code": 1,
        "kind": "AuthenticationError",
        "said": "password of 'bob'",
        "hints": ("Check the user and the",),
    }
    with db18.server.access("host all bob 127.0.0.1/32 scram-sha-256"):
        fails(db18.url, "slots", "list", "--user", "bob", "--password-file", str(file), **wrong)
        fails(db18.server.url(db18.name, f"bob:{SECRET}"), "tail", **wrong)
        none = {"said": "asks 'bob' for a password, and none is given", "hints": ("PGPASSWORD",)}
        fails(db18.url, "slots", "list", "--user", "bob", **{**wrong, **none})
        file.write_text("right\n")
        done = run_penstock("slots", "list", "--user", "bob", "--password-file", str(file), PENSTOCK_URL=db18.url)
        assert done.returncode == 0, done.stderr


def test_no_such_database(pg18: Server, fails: Callable[..., None]) -> None:
    """E110: named, with the statement that would make it."""
    fails(
        pg18.url("nowhere"), "slots", "list", code=1, kind="DatabaseMissingError",
        said="there is no database 'nowhere'", hints=('CREATE DATABASE "nowhere"',),
    )  # fmt: skip


def test_no_role_of_that_name(pg18: Server, fails: Callable[..., None]) -> None:
    """E110: told apart from a wrong password where the server lets us."""
    said = "has no role 'nobody_here' that may log in"
    url = pg18.url(user="nobody_here")
    fails(url, "coverage", code=1, kind="AuthenticationError", said=said, hints=('CREATE ROLE "nobody_here" LOGIN',))


def test_wal_level_replica(start_server: Start, fails: Callable[..., None]) -> None:
    """E34, E35: the setting, the SQL, and what managed services call it."""
    server = start_server(18, {"wal_level": "replica"})
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION penstock FOR TABLE t")
    said = "wal_level = replica; logical is needed"
    hints = ("ALTER SYSTEM SET wal_level = 'logical'", "rds.logical_replication = 1", "cloudsql.logical_decoding")
    for arguments in (("slots", "create", "s"), ("tail",)):
        fails(server.url(), *arguments, code=1, kind="WalLevelError", said=said, hints=hints)


def test_a_role_that_may_not_replicate(shop: Database, fails: Callable[..., None]) -> None:
    """E34, E35: the SQL to run, on a server of one's own and on managed services."""
    url = shop.role("reader", attributes="LOGIN")
    said = "the role 'reader' may not "
    hints = ('ALTER ROLE "reader" REPLICATION;', 'GRANT rds_replication TO "reader";')
    for arguments in (("slots", "create", "s"), ("tail",)):
        fails(url, *arguments, code=1, kind="PrivilegeError", said=said, hints=hints)


def test_no_free_slot_and_no_free_sender(start_server: Start, fails: Callable[..., None]) -> None:
    """E34: which of the two it is, and the setting to raise."""
    server = start_server(18, {"max_replication_slots": "1", "max_wal_senders": "1"})
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION penstock FOR TABLE t")
        connection.execute("SELECT pg_create_logical_replication_slot('taken', 'pgoutput')")
        for arguments in (("slots", "create", "another"), ("tail",)):
            fails(
                server.url(), *arguments, code=1, kind="CapacityError",
                said="no replication slot is free", hints=("raise max_replication_slots",),
            )  # fmt: skip
        senders = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'"
        wait_until(lambda: connection.execute(senders).fetchone() == (0,), what="the command's walsender to end")
        with psycopg.connect(server.url(), autocommit=True, replication="database"):
            fails(
                server.url(), "tail", "--slot", "taken", code=1, kind="CapacityError",
                said="has no walsender free", hints=("max_wal_senders",),
            )  # fmt: skip


def test_a_slot_that_somebody_else_reads(shop: Database, fails: Callable[..., None], tmp_path: Path) -> None:
    """E33: by name and process, for those who would read, move or drop it; trying again later may help."""
    assert run_penstock("slots", "create", "busy", PENSTOCK_URL=shop.url).returncode == 0
    query = "SELECT active_pid FROM pg_replication_slots WHERE active_pid IS NOT NULL"
    with running(tmp_path, "tail", "--slot", "busy", PENSTOCK_URL=shop.url) as reader:
        ((pid,),) = wait_until(lambda: shop.execute(query), what="the slot to be held")
        for arguments in (
            ("slots", "drop", "busy", "--yes"),
            ("slots", "advance", "busy", "FFFF/0", "--yes"),
            ("tail", "--slot", "busy", "--wait", "0", "--confirm"),
        ):
            fails(shop.url, *arguments, code=3, kind="SlotActiveError", said=f"PID {pid}", hints=("Stop that process",))
        assert reader.end() == 130
    wait_until(lambda: not shop.execute(query), what="the slot to be free")
    assert run_penstock("slots", "drop", "busy", "--yes", PENSTOCK_URL=shop.url).returncode == 0


def test_a_lost_slot(start_server: Start, fails: Callable[..., None]) -> None:
    """E27: what is lost, and the way out."""
    server = start_server(18, {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"})
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION penstock FOR TABLE t")
        connection.execute("SELECT pg_create_logical_replication_slot('old', 'pgoutput')")

        def burn() -> bool:
            connection.execute("SELECT pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()")
            connection.execute("CHECKPOINT")
            return connection.execute("SELECT wal_status FROM pg_replication_slots").fetchone() == ("lost",)

        wait_until(burn, 30, "the slot to be lost")
    for arguments in (("tail", "--slot", "old"), ("slots", "advance", "old", "FFFF/0", "--yes")):
        hints = ("penstock slots drop old", "max_slot_wal_keep_size")
        fails(server.url(), *arguments, code=1, kind="SlotLostError", said="slot old is lost", hints=hints)
    listed = run_penstock("slots", "list", PENSTOCK_URL=server.url())
    assert "lost" in listed.stdout


def test_a_slot_of_another_plugin_or_database_or_none_at_all(
    shop: Database, pg18: Server, fails: Callable[..., None]
) -> None:
    """E28: each is told apart."""
    with psycopg.connect(pg18.url(), autocommit=True) as elsewhere:
        shop.execute("SELECT pg_create_logical_replication_slot('foreign_plugin', 'test_decoding')")
        shop.execute("SELECT pg_create_physical_replication_slot('physical')")
        elsewhere.execute("SELECT pg_create_logical_replication_slot('elsewhere', 'pgoutput')")
        try:
            for name, said in (
                ("foreign_plugin", "made for the plugin test_decoding; pgoutput is needed"),
                ("physical", "slot physical is a physical slot"),
                ("elsewhere", f"belongs to database postgres, not to {shop.name}"),
            ):
                mismatch = {
                    "code": 1,
                    "kind": "SlotMismatchError",
                    "said": said,
                    "hints": ("Choose another slot name",),
                }
                fails(shop.url, "tail", "--slot", name, **mismatch)
                fails(shop.url, "slots", "advance", name, "FFFF/0", "--yes", **mismatch)
        finally:
            for name in ("foreign_plugin", "physical", "elsewhere"):
                elsewhere.execute("SELECT pg_drop_replication_slot(%s)", [name])
    missing = {"code": 1, "kind": "SlotMissingError", "said": "slot absent does not exist"}
    for arguments in (("tail", "--slot", "absent"), ("slots", "lag", "absent"), ("slots", "advance", "absent", "0/1")):
        fails(shop.url, *arguments, hints=("penstock slots create absent",), **missing)


def test_a_slot_that_exists_already(shop: Database, fails: Callable[..., None]) -> None:
    """E28: 42710 on creation."""
    shop.execute("SELECT pg_create_logical_replication_slot('there', 'pgoutput')")
    said = "a replication slot of that name exists already"
    fails(
        shop.url, "slots", "create", "there", code=1, kind="SlotExistsError", said=said, hints=("pg_replication_slots",)
    )
    shop.execute("SELECT pg_drop_replication_slot('there')")


def test_a_slot_that_is_told_to_go_back(shop: Database, fails: Callable[..., None]) -> None:
    """E30: 55000 is explained."""
    shop.execute("SELECT pg_create_logical_replication_slot('ahead', 'pgoutput')")
    ((at,),) = shop.execute("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'ahead'")
    fails(
        shop.url, "slots", "advance", "ahead", str(Lsn(Lsn.parse(at) - 1)), "--yes", code=1, kind="PositionError",
        said=f"slot ahead stands at {at}", hints=("only moves forward",),
    )  # fmt: skip
    shop.execute("SELECT pg_drop_replication_slot('ahead')")


def test_a_missing_publication(db18: Database, fails: Callable[..., None]) -> None:
    """E40: before any slot is made."""
    db18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    missing = {"code": 1, "kind": "PublicationError", "hints": ('CREATE PUBLICATION "absent" FOR TABLE',)}
    said = f'publication "absent" does not exist in database "{db18.name}"'
    for arguments in (("tail",), ("slots", "create", "s"), ("coverage",)):
        fails(db18.url, *arguments, "--publication", "absent", said=said, **missing)
    assert db18.execute("SELECT slot_name FROM pg_replication_slots") == []


def test_a_table_without_a_key(db18: Database, fails: Callable[..., None]) -> None:
    """E42: by name, with the SQL; `coverage` reports it and says so by its exit code."""
    db18.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE nokey (id int)")
    db18.execute("CREATE PUBLICATION penstock FOR TABLE t")
    sql = 'ALTER TABLE "public"."nokey" REPLICA IDENTITY FULL;'
    said = "public.nokey: it has no primary key"
    fails(db18.url, "tail", "nokey", code=1, kind="CoverageError", said=said, hints=(sql,))
    done = run_penstock("coverage", "nokey", "--fix", PENSTOCK_URL=db18.url)
    assert done.returncode == 1
    assert said in done.stdout
    assert sql in done.stdout
    assert db18.execute("SELECT tablename FROM pg_publication_tables") == [("t",)]


def test_a_server_that_is_down(fails: Callable[..., None]) -> None:
    """E32: nothing listens there; a script may try again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"postgresql://postgres:{SECRET}@127.0.0.1:{port}/postgres"
    for arguments in (("slots", "list"), ("coverage",), ("tail",)):
        fails(
            url, *arguments, code=3, kind="UnavailableError", said=f"nothing listens at 127.0.0.1:{port}",
            hints=("that the server runs",),
        )  # fmt: skip


def test_a_server_in_recovery(start_server: Start, fails: Callable[..., None], tmp_path: Path) -> None:
    """E35: on a real standby, for each command that needs the primary; a copy that needs no slot is taken there."""
    server = start_server(18)
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION penstock FOR TABLE t")
    server.halt()
    (server.data / "standby.signal").touch()
    server.start()
    for arguments in (("slots", "create", "s"), ("tail",)):
        fails(
            server.url(), *arguments, code=1, kind="RecoveryError", said="the server is a standby in recovery",
            hints=("target_session_attrs=read-write",),
        )  # fmt: skip
    with psycopg.connect(server.url(), autocommit=True) as connection:
        assert connection.execute("SELECT FROM pg_replication_slots").fetchall() == []
    assert run_penstock("slots", "list", PENSTOCK_URL=server.url()).returncode == 0
    copying = "follow", "t", "--once", "--refresh", "snapshot", "--path", str(tmp_path)
    assert run_penstock(*copying, PENSTOCK_URL=server.url()).returncode == 0


def test_tls_that_is_required_or_not_to_be_had(
    shop: Database, tls_proxy: StartProxy, fails: Callable[..., None]
) -> None:
    """E111: both ways round, on SQL and on replication connections."""
    url = tls_proxy(shop.server, mode="insists").url(shop.name)
    for arguments in (("slots", "list"), ("tail",)):
        fails(
            url, *arguments, "--ssl-mode", "disable", code=1, kind="AccessError", said="without TLS",
            hints=("sslmode=require",),
        )  # fmt: skip
    fails(shop.url, "tail", "--ssl-mode", "require", code=1, kind="TlsError", said="offers no TLS", hints=("ssl = on",))


@pytest.mark.parametrize(
    ("leaf", "root", "said"),
    [
        ("expired", "root", "has expired"),
        ("good", "other_root", "is not signed by an authority we trust"),
        ("other_name", "root", "is for another host name"),
    ],
)
def test_a_wrong_certificate(
    leaf: str, root: str, said: str, shop: Database, tls_proxy: StartProxy, certificates: Certificates,
    fails: Callable[..., None],
) -> None:  # fmt: skip
    """E111: what is wrong with it, before anything is sent."""
    proxy = tls_proxy(shop.server, leaf=getattr(certificates, leaf))
    flags = ("--ssl-mode", "verify-full", "--ssl-root-cert", getattr(certificates, root))
    fails(proxy.url(shop.name), "slots", "list", *flags, code=1, kind="TlsError", said=said, hints=())
    assert proxy.startups == []


def test_certificates_that_fit_let_every_command_through(
    shop: Database, tls_proxy: StartProxy, certificates: Certificates, tmp_path: Path
) -> None:
    """E111: the same flags hold for every connection of a command."""
    proxy = tls_proxy(shop.server, mode="insists", client_ca=certificates.authority)
    url = urlsplit(proxy.url(shop.name))
    flags = [
        "--host", str(url.hostname), "--port", str(url.port), "--database", shop.name, "--user", "postgres",
        "--ssl-mode", "verify-full", "--ssl-root-cert", certificates.root,
        "--ssl-cert", certificates.client.cert, "--ssl-key", certificates.client.key,
    ]  # fmt: skip
    with running(tmp_path, "tail", "t", "--limit", "1", *flags) as tail:
        streams = "SELECT 1 FROM pg_stat_replication WHERE state IN ('catchup', 'streaming')"
        wait_until(lambda: shop.execute(streams), 30, "the stream")
        shop.execute("INSERT INTO t VALUES (1)")
        assert "public.t  id=1" in tail.await_lines(1)[0]
        assert tail.process.wait(30) == 0
    assert {(one.encrypted, one.client_certificate) for one in proxy.startups} == {(True, True)}
    assert {one.replication for one in proxy.startups} == {True, False}
