"""What a condition in SQL reads beside its own row, found by letting the server parse it.

The condition becomes a view in a transaction that is rolled back, and the server's own parse tree says which
relations and functions it names. Guarantees: nothing is left behind and no row is read; one condition only, because a
second statement is refused; names are looked up as a build looks them up (`search_path` pg_catalog). Where no view may
be made (a standby, no right to temporary objects) the condition is only planned: whether it is valid is then known,
what it reads is not. Deliberately not: looking into functions; one that is declared immutable is believed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg.pq import ExecStatus

from penstock.model import QualifiedTable
from penstock.postgres.catalog import SqlConnection
from penstock.postgres.sqlstate import read_error, translate

_VIEW = "pg_temp.penstock_condition"
# Blanks inside a name are escaped in a parse tree, so no name can look like these.
_RELATION = re.compile(r":rtekind 0 :relid (\d+)")
_FUNCTION = re.compile(r":(?:funcid|opfuncid|aggfnoid|winfnoid) (\d+)")
_SQL_VALUE = re.compile(r"\{SQLVALUEFUNCTION :op (\d+)")
_LAST_CLOCK_OP = 8  # CURRENT_DATE to LOCALTIMESTAMP(n); then come CURRENT_USER and the like
_CLOCK = frozenset(
    {"now", "transaction_timestamp", "statement_timestamp", "clock_timestamp", "timeofday", "current_timestamp"}
)
# Words that a date or time literal takes for the moment at which it is read.
_MOMENTS = re.compile(r"'\s*(?:now|today|tomorrow|yesterday)\s*'", re.IGNORECASE)
_CANNOT_TRY = frozenset({"42501", "25006", "0A000"})
# The statement is wrong as it stands: syntax, names, types, a literal that does not fit.
_WRONG = ("42", "22", "54")


@dataclass(frozen=True, slots=True)
class Condition:
    """What the server made of a condition. `flaw` is its sentence where it takes none of it.

    `relations` are those beside its own table; `functions` are users' functions, and the server's own, that may answer
    otherwise tomorrow; `known` is False where only the flaw could be asked for.
    """

    flaw: str = ""
    relations: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    reads_clock: bool = False
    known: bool = True


def examine(conn: SqlConnection, table: QualifiedTable, condition: str) -> Condition:
    """Look at one condition over the columns of a table."""
    query = f"SELECT 1 FROM {table.sql} WHERE (\n{condition}\n)"
    try:
        return _by_view(conn, table, query)
    except psycopg.Error as error:
        if error.sqlstate in _CANNOT_TRY:
            return _by_plan(conn, query)
        return _flawed(error)


def fits(conn: SqlConnection, type_name: str, text: str) -> bool:
    """Whether a text is a value of a type; the type is spelled as the catalog does."""
    try:
        with conn.transaction(force_rollback=True):
            conn.execute("SET LOCAL search_path = pg_catalog")
            conn.execute(f"SELECT CAST(%s AS {type_name})", [text])
    except psycopg.Error as error:
        state = error.sqlstate or ""
        if not state.startswith(("22", "23")):
            raise translate(error, "trying a value") from None
        return state.startswith("23")  # a domain's own rule: no row has that value, but it can be compared with
    return True


def flaw(conn: SqlConnection, statement: str) -> str:
    """What the server has against a whole statement, which is prepared and not run; empty where it takes it."""
    with conn.transaction(force_rollback=True):
        conn.execute("SET LOCAL search_path = pg_catalog")
        result = conn.pgconn.prepare(b"", statement.encode())
        if result.status == ExecStatus.COMMAND_OK:
            return ""
        said = read_error(result)
        if not (said.sqlstate or "").startswith(_WRONG):
            raise translate(result, "preparing a statement")
        return said.sentence


def _by_view(conn: SqlConnection, table: QualifiedTable, query: str) -> Condition:
    with conn.transaction(force_rollback=True):
        conn.execute("SET LOCAL search_path = pg_catalog")
        # By the extended protocol, which takes one statement at a time.
        conn.cursor(binary=True).execute(f"CREATE VIEW {_VIEW} AS {query}")
        row: Any = conn.execute(
            "SELECT r.ev_action::text, pg_catalog.pg_get_viewdef(r.ev_class)"
            " FROM pg_catalog.pg_rewrite r WHERE r.ev_class = %s::regclass",
            [_VIEW],
        ).fetchone()
        tree, definition = row
        found = _read(conn, table, tree)
        # As a text such a word is still in the definition; as a time it has become a constant.
        folded = len(_MOMENTS.findall(query)) > len(_MOMENTS.findall(definition))
        return replace(found, reads_clock=found.reads_clock or folded)


def _read(conn: SqlConnection, table: QualifiedTable, tree: str) -> Condition:
    relations = conn.execute(
        "SELECT c.oid = %s::regclass, c.oid::regclass::text, pg_catalog.count(*)"
        " FROM pg_catalog.unnest(%s::oid[]) AS named (oid) JOIN pg_catalog.pg_class c USING (oid)"
        " WHERE c.oid <> %s::regclass GROUP BY c.oid ORDER BY 2",
        [table.sql, list(map(int, _RELATION.findall(tree))), _VIEW],
    ).fetchall()
    functions = conn.execute(
        "SELECT DISTINCT p.proname::text, n.nspname = 'pg_catalog', p.provolatile::text, p.oid::regprocedure::text"
        " FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace"
        " WHERE p.oid = ANY (%s::oid[]) ORDER BY 4",
        [list(map(int, _FUNCTION.findall(tree)))],
    ).fetchall()
    clock = [name for name, own, _, signature in functions if own and _is_clock(name, signature)]
    # The server's own stable functions depend on settings, which every session of ours pins.
    unsure = [
        signature
        for name, own, volatility, signature in functions
        if name not in clock and (volatility == "v" or (volatility == "s" and not own))
    ]
    by_value = any(int(op) <= _LAST_CLOCK_OP for op in _SQL_VALUE.findall(tree))
    # Once is the row that the condition is about.
    others = [f"other rows of {name}" if own else name for own, name, times in relations if not own or times > 1]
    return Condition("", tuple(others), tuple(unsure), bool(clock) or by_value)


def _is_clock(name: str, signature: str) -> bool:
    # age with one argument counts from today.
    return name in _CLOCK or (name == "age" and signature.count(",") == 0 and "timestamp" in signature)


def _by_plan(conn: SqlConnection, query: str) -> Condition:
    try:
        with conn.transaction(force_rollback=True):
            conn.execute("SET LOCAL search_path = pg_catalog")
            conn.cursor(binary=True).execute(f"EXPLAIN {query}")
    except psycopg.Error as error:
        if error.sqlstate in _CANNOT_TRY:
            return Condition(known=False)
        return _flawed(error)
    return Condition(known=False)


def _flawed(error: psycopg.Error) -> Condition:
    """The server's sentence quotes the condition itself, which is the file's, and no row."""
    said = read_error(error)
    if said.sqlstate is None or not said.sqlstate.startswith(_WRONG):
        raise translate(error, "looking at a condition") from None
    return Condition(flaw=said.sentence)
