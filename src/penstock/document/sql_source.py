"""The rows that a level of a document is made of, as a source in FROM: filtered, ranked and cut before they are joined.

Guarantees: only columns that are used are read; filters see their own table alone, under its own name, so that a raw
condition means what it says; a far row of a junction comes once for each link, however often the junction says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.document.schema import Aggregate, Columns, Join, JoinKind, Through
from penstock.document.sql_catalog import SqlCatalog
from penstock.document.sql_filters import Conditions, operator
from penstock.document.sql_scope import Link, Scope, Within, contained
from penstock.model import QualifiedTable, quote


class Source:
    """Rows of one table under a name; columns are noted as they are asked for."""

    HERE = '"is here"'
    _RANK = '"rank here"'

    def __init__(self, table: QualifiedTable, conditions: Sequence[str]) -> None:
        self.table = table
        self.name = "t0"
        self._conditions = conditions
        self._columns: dict[str, None] = {}
        self._marked = False
        self.link: Columns = ()
        self.link_kinds: list[str] = []
        self.junction = ""  # read before the rows, joined to them by `junction_on`
        self.junction_on: list[tuple[str, str, str]] = []
        self.first_only = False
        self.fenced = False  # the rows are chosen first; the planner would write the JSON of all of them
        self.limit: int | None = None
        self.ranking: list[tuple[str, str]] = []

    def column(self, name: str) -> str:
        """A column of the rows."""
        self._columns[name] = None
        return f"{self.name}.{quote(name)}"

    def mark(self) -> None:
        """Tell rows of this source from those that an outer join makes up."""
        self._marked = True

    def links(self) -> list[str]:
        """What ties each row to a row above it."""
        if self.junction and self.limit is None:
            return [f"j{self.name[1:]}.{quote(name)}" for name in self.link]
        if self.junction:
            return [f'{self.name}."link {n}"' for n in range(len(self.link))]
        return [self.column(name) for name in self.link]

    def order(self, join: Join) -> list[str]:
        """How the rows stand in an array."""
        return [self.column(name) + ending for name, ending in _ranking(join)]

    def sql(self) -> str:
        """What stands in FROM."""
        if self.limit is not None:
            return f"({self._cut()}) AS {self.name}"
        if self.junction:
            return self._joined(f"({self._select()}) AS {self.name}")
        return f"({self._select()}) AS {self.name}"

    def _select(self, more: str = "") -> str:
        own = quote(self.table.name)
        distinct = ordered = ""
        if self.first_only:
            keys = ", ".join(f"{own}.{quote(name)}" for name in self.link)
            ranks = ", ".join([keys, *(f"{own}.{quote(name)}{ending}" for name, ending in self.ranking)])
            distinct, ordered = f"DISTINCT ON ({keys}) ", f" ORDER BY {ranks}"
        listed = [f"{own}.{quote(name)}" for name in self._columns] + ([f"true AS {self.HERE}"] if self._marked else [])
        where = f" WHERE {' AND '.join(self._conditions)}" if self._conditions else ""
        chosen = ", ".join([*listed, *([more] if more else [])])
        fence = " OFFSET 0" if self.fenced else ""
        return f"SELECT {distinct}{chosen} FROM {self.table.sql}{where}{ordered}{fence}"

    def _joined(self, rows: str) -> str:
        name = f"j{self.name[1:]}"
        same = [
            f"{self.name}.{quote(key)} {operator('=', kind)} {name}.{quote(right)}"
            for right, key, kind in self.junction_on
        ]
        return f"({self.junction}) AS {name} JOIN {rows} ON {' AND '.join(same)}"

    def _cut(self) -> str:
        """The rows of each link up to the limit."""
        if not self.junction:
            own = quote(self.table.name)
            window = self._window([f"{own}.{quote(name)}" for name in self.link], own)
            return f"SELECT * FROM ({self._select(window)}) AS ranked WHERE {self._RANK} <= {self.limit}"
        for name, _ in self.ranking:
            self.column(name)
        for _, key, _ in self.junction_on:
            self.column(key)
        links = [f"j{self.name[1:]}.{quote(name)}" for name in self.link]
        listed = [f'{link} AS "link {n}"' for n, link in enumerate(links)]
        inner = self._joined(f"({self._select()}) AS {self.name}")
        chosen = ", ".join([f"{self.name}.*", *listed, self._window(links, self.name)])
        return f"SELECT * FROM (SELECT {chosen} FROM {inner}) AS ranked WHERE {self._RANK} <= {self.limit}"

    def _window(self, links: Sequence[str], alias: str) -> str:
        ranks = ", ".join(f"{alias}.{quote(name)}{ending}" for name, ending in self.ranking)
        return f"row_number() OVER (PARTITION BY {', '.join(links)} ORDER BY {ranks}) AS {self._RANK}"


def root_source(table: QualifiedTable, conditions: Sequence[str]) -> Source:
    """The root rows."""
    return Source(table, conditions)


def joined_source(
    join: Join | Aggregate, above: Scope, ours: Columns, catalog: SqlCatalog, index: str
) -> tuple[Source, Scope]:
    """The rows that a relation or an aggregate reads, and the scope of what hangs on them."""
    filters = Conditions(join.table, catalog, index).all(join.filters)
    belongs = isinstance(join, Join) and join.kind is JoinKind.BELONGS_TO
    own = join.primary_key if belongs or join.through else join.foreign_key
    kinds = [catalog.type_of(join.table, name, index) for name in own]
    if join.through:
        source = Source(join.table, filters)
        junction, reached = _junction(join.through, above, ours, catalog)
        source.junction, source.link = junction, join.through.left_key
        source.link_kinds = [catalog.type_of(join.through.table, name, index) for name in source.link]
        source.junction_on = list(zip(join.through.right_key, own, kinds, strict=True))
        for name in own:
            source.column(name)
        far = contained(
            Link(join.table, own), Link(join.through.table, join.through.right_key), reached, catalog, index
        )
        conditions = [*filters] if above.everything else [far, *filters]
    else:
        conditions = [*_restricted(join, above, Link(join.table, own), ours), *filters]
        source = Source(join.table, conditions)
        source.link, source.link_kinds = own, kinds
    if isinstance(join, Join):
        source.ranking = _ranking(join)
        source.limit = join.limit
        many = join.kind in (JoinKind.HAS_MANY, JoinKind.MANY_TO_MANY)
        source.first_only = not many and not catalog.is_unique(join.table, own)
        source.fenced = not many and not source.first_only and bool(conditions)
    return source, Within(join.table, tuple(conditions), catalog, index)


def _restricted(join: Join | Aggregate, above: Scope, link: Link, ours: Columns) -> list[str]:
    if isinstance(join, Join) and join.kind is JoinKind.BELONGS_TO and above.everything:
        return []
    restriction = above.restrict(link, ours)
    return [restriction] if restriction else [f"{column} IS NOT NULL" for column in link.sql()]


def _junction(through: Through, above: Scope, ours: Columns, catalog: SqlCatalog) -> tuple[str, list[str]]:
    """The junction's links, each pair once, and the conditions by which its rows are chosen."""
    left = Link(through.table, through.left_key)
    restriction = above.restrict(left, ours)
    conditions = [restriction] if restriction else [f"{column} IS NOT NULL" for column in left.sql()]
    columns = tuple(dict.fromkeys((*through.left_key, *through.right_key)))
    distinct = "" if catalog.is_unique(through.table, columns) else "DISTINCT "
    listed = ", ".join(Link(through.table, columns).sql())
    return f"SELECT {distinct}{listed} FROM {through.table.sql} WHERE {' AND '.join(conditions)}", conditions


def _ranking(join: Join) -> list[tuple[str, str]]:
    """The columns that rows are sorted by, with how: as the schema says, then by their key."""
    asked = [(one.column, " DESC NULLS LAST" if one.descending else " NULLS LAST") for one in join.order_by]
    return asked + [(name, "") for name in join.primary_key if name not in {column for column, _ in asked}]
