"""Where an index's root rows are cut into ranges of keys, to be built a range at a time.

Guarantees: ranges hold about the same number of rows each, whatever the keys are; together they hold every row, also
those that come later, since the first and the last have no outer end. One statement; it reads an index of the key
where there is one. Deliberately not: remembering the ranges.
"""

from __future__ import annotations

from penstock.contracts import Key
from penstock.document.paths import root_key
from penstock.document.schema import DocumentSchema
from penstock.model import quote
from penstock.postgres.connection import open_sql
from penstock.postgres.settings import ConnectionSettings
from penstock.postgres.sqlstate import translating

ROWS = 1000
"""How many rows a range holds: one statement builds them, one bulk request takes them."""
_MOST_RANGES = 50_000


def cuts(settings: ConnectionSettings, schema: DocumentSchema, rows: int = ROWS) -> list[Key]:
    """The last key of every range but the last, as Postgres prints it; of a bound schema."""
    columns = [quote(name) for name in root_key(schema)]
    listed, texts = ", ".join(columns), ", ".join(f"{column}::pg_catalog.text" for column in columns)
    with open_sql(settings) as conn, translating(f"cutting {schema.table} into ranges"):
        conn.execute("SET row_security = off")
        ((count,),) = conn.execute(f"SELECT count(*) FROM {schema.table.sql}").fetchall()
        every = max(rows, -(-count // _MOST_RANGES))
        numbered = f"SELECT {listed}, pg_catalog.row_number() OVER (ORDER BY {listed}) AS n FROM {schema.table.sql}"
        query = f"SELECT {texts} FROM ({numbered}) AS numbered WHERE n % {every} = 0 ORDER BY n"
        return [key for key in conn.execute(query.encode()).fetchall() if None not in key]
