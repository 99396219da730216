"""Which of the required tables a publication carries, what is missing, and the exact SQL, from one observation.

Guarantees: a pure answer; the SQL, run in order by a role that may, leaves nothing missing and nothing in the way but
what no statement can mend; it adds no table on which the server would then reject an UPDATE or DELETE. Deliberately
not: who may run it (`alteration` tries), and running it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.model import Blocker, Op, QualifiedTable, literal, quote
from penstock.postgres import identity
from penstock.postgres.catalog import IdentityKind, TableInfo, TableKind
from penstock.postgres.examination import Examined, Finding, Stage, cure, examine, in_order
from penstock.postgres.observation import Observation, Standing

Columns = Mapping[QualifiedTable, Collection[str]]

# Writers queue behind a lock request, so it must not wait long.
LOCK_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Addition:
    """Tables to be put into a publication: made for them where it does not exist, else widened.

    `lists` has the columns of the tables that are published in part.
    """

    publication: str
    tables: tuple[QualifiedTable, ...]
    only: frozenset[QualifiedTable]
    creates: bool
    generated: bool
    lists: Columns = field(default_factory=dict)

    def with_tables(self, tables: Iterable[QualifiedTable]) -> Addition:
        """The same for other tables."""
        return replace(self, tables=tuple(tables))

    @property
    def statement(self) -> str:
        """The CREATE or ALTER PUBLICATION."""
        if not self.creates:
            return f"ALTER PUBLICATION {quote(self.publication)} ADD TABLE {self._listed(self.lists)};"
        option = " WITH (publish_generated_columns = stored)" if self.generated else ""
        return f"CREATE PUBLICATION {quote(self.publication)} FOR TABLE {self._listed(self.lists)}{option};"

    @property
    def lock(self) -> str:
        """Wait for every transaction that has written to the tables, and hold off new ones.

        SHARE is enough for that; SHARE ROW EXCLUSIVE is SHARE plus what the ALTER takes next (SHARE UPDATE EXCLUSIVE),
        so two sessions at once queue here and do not deadlock while both raise their locks.
        """
        return f"LOCK TABLE {self._listed()} IN SHARE ROW EXCLUSIVE MODE;"

    def script(self, lock_timeout_s: float = LOCK_TIMEOUT_S) -> str:
        """What to run by hand: for a publication that exists, one transaction that loses no change (E43)."""
        if self.creates:
            return self.statement
        return "\n".join(["BEGIN;", set_lock_timeout(lock_timeout_s), self.lock, self.statement, "COMMIT;"])

    def _listed(self, lists: Columns | None = None) -> str:
        # Without ONLY, tables that inherit would be published along, with whatever identity they have.
        columns = {table: f" ({', '.join(map(quote, names))})" for table, names in (lists or {}).items()}
        return ", ".join(
            f"{'ONLY ' if table in self.only else ''}{table.sql}{columns.get(table, '')}"
            for table in sorted(self.tables)
        )


def set_lock_timeout(seconds: float) -> str:
    """Bound each wait for a lock until the transaction's end."""
    return f"SET LOCAL lock_timeout = {literal(f'{max(1, round(seconds * 1000))}ms')};"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict before privileges: `addition` is what may be added as things stand, if anything."""

    publication: str
    present: frozenset[QualifiedTable]
    missing: frozenset[QualifiedTable]
    addition: Addition | None
    blockers: tuple[Blocker, ...]
    notes: tuple[str, ...]
    sql: tuple[str, ...]


def decide(
    seen: Observation,
    required: Collection[QualifiedTable],
    columns: Columns | None = None,
    lists: Columns | None = None,
) -> Judgement:
    """Judge what was seen. `columns` names, for some tables, the columns whose values a reader follows.

    Of a table in `lists` only those columns and its identity are to be published, where that can break no write.
    """
    examined = [examine(seen, table, (columns or {}).get(table, ())) for table in sorted(required)]
    findings = [*_operation_findings(seen), *(finding for one in examined for finding in one.findings)]
    missing = [one for one in examined if one.standing is not Standing.PRESENT]
    sound = [one for one in missing if not one.findings]
    mendable = [one for one in missing if all(finding.steps for finding in one.findings)]
    script = (_addition(seen, mendable, lists).script(),) if mendable else ()
    return Judgement(
        publication=seen.name,
        present=frozenset(one.table for one in examined if one.standing is Standing.PRESENT),
        missing=frozenset(one.table for one in missing),
        addition=_addition(seen, sound, lists) if sound else None,
        blockers=tuple(dict.fromkeys(finding.blocker for finding in findings)),
        notes=tuple(dict.fromkeys(note for one in examined for note in one.notes)),
        sql=(*in_order(step for finding in findings for step in finding.steps), *script),
    )


def _addition(seen: Observation, examined: Sequence[Examined], lists: Columns | None) -> Addition:
    tables = tuple(one.table for one in examined)
    listed = {
        table: _list(seen, seen.tables[table], names) for table, names in (lists or {}).items() if table in tables
    }
    return Addition(
        seen.name,
        tables,
        only=frozenset(table for table in tables if seen.tables[table].inheritors),
        creates=seen.publication is None,
        generated=any(one.generated for one in examined),
        lists={table: names for table, names in listed.items() if names},
    )


def _list(seen: Observation, info: TableInfo, wanted: Collection[str]) -> tuple[str, ...]:
    """The columns to publish of it; none where it has to be published whole.

    The server rejects writes to a FULL table with a list, and lists of partitioned tables, beside whole schemas, and
    before 15; a partition is published with the table above it.
    """
    beside_schemas = seen.publication is not None and bool(seen.publication.schemas)
    generated = {column.name for column in info.columns if column.generated}
    names = {*wanted, *info.identity.columns}
    if (
        seen.server_version < 150000
        or beside_schemas
        or info.kind is TableKind.PARTITIONED
        or info.ancestors
        or info.identity.kind is IdentityKind.FULL
        or not info.identity.usable
        or names & generated
    ):
        return ()
    return tuple(info.ordered(names))


def _operation_findings(seen: Observation) -> list[Finding]:
    """A publication that leaves operations out. Before it takes updates on, every table in it needs an identity."""
    if seen.publication is None or seen.publication.operations.issuperset(Op):
        return []
    absent = ", ".join(op for op in Op if op not in seen.publication.operations)
    reason = f"publication {quote(seen.name)} does not publish {absent}"
    held = [seen.tables[table] for table in sorted(seen.published) if table in seen.tables]
    flawed = [leaf for info in held for leaf in seen.leaves(info) if identity.flaw(leaf)]
    cures = [cure(seen, info).steps for info in flawed]
    if flawed:
        reason += f"; {', '.join(str(info.table) for info in flawed)} of it must get a replica identity first"
    if not all(cures):
        return [Finding(Blocker(None, reason))]
    publish = f"ALTER PUBLICATION {quote(seen.name)} SET (publish = {literal(', '.join(Op))});"
    steps = (*(step for steps in cures for step in steps), (Stage.OPERATIONS, publish))
    return [Finding(Blocker(None, reason, "\n".join(in_order(steps))), steps)]
