"""The verdict on coverage as a pure function: from what was seen to what is missing, in the way, and the SQL."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import Op, QualifiedTable
from penstock.postgres import identity
from penstock.postgres.catalog import (
    ColumnInfo,
    ForeignKey,
    Identity,
    IdentityKind,
    IndexInfo,
    Persistence,
    TableInfo,
    TableKind,
)
from penstock.postgres.coverage import Addition, Judgement, decide
from penstock.postgres.observation import Observation, PublicationInfo, PublishedTable, Standing, standing
from penstock.postgres.publication_catalog import options_sql, published_sql


def q(name: str) -> QualifiedTable:
    return QualifiedTable("public", name)


def column(name: str, nullable: bool = False, generated: str = "") -> ColumnInfo:
    return ColumnInfo(name, 23, -1, "integer", nullable, generated, 1)


def index(name: str, *columns: str, primary: bool = False, immediate: bool = True, not_null: bool = True) -> IndexInfo:
    return IndexInfo(
        name,
        columns,
        unique=True,
        primary=primary,
        valid=True,
        immediate=immediate,
        partial=False,
        expression=False,
        identity=False,
        all_not_null=not_null,
    )


def table(name: str, *columns: ColumnInfo, key: bool = True) -> TableInfo:
    """An ordinary table with `id` and the given columns."""
    return TableInfo(
        q(name),
        1,
        TableKind.TABLE,
        Persistence.PERMANENT,
        "owner",
        True,
        columns=(column("id"), *columns),
        primary_key=("id",) if key else (),
        indexes=(index(f"{name}_pkey", "id", primary=True),) if key else (),
        identity=Identity(IdentityKind.DEFAULT, ("id",) if key else ()),
    )


def seen(*tables: TableInfo, publication: PublicationInfo | None = None, version: int = 170000) -> Observation:
    return Observation("p", version, publication, {info.table: info for info in tables})


def publishing(*names: str, **options: object) -> PublicationInfo:
    tables = [q(name) for name in names]
    listing = {table: PublishedTable() for table in tables}
    whole = PublicationInfo("owner", listed=frozenset(tables), published=listing)
    return replace(whole, **options)  # type: ignore[arg-type]


def test_a_table_is_either_present_or_missing() -> None:
    judgement = decide(seen(table("a"), table("b"), publication=publishing("a")), {q("a"), q("b"), q("c")})
    assert (judgement.present, judgement.missing) == ({q("a")}, {q("b"), q("c")})
    assert judgement.addition is not None and judgement.addition.tables == (q("b"),)


def test_sql_sets_identities_before_it_publishes_their_tables() -> None:
    """E41: replica identity comes before publication, all tables in one statement, in the order of their names."""
    judgement = decide(seen(table("b"), table("a", key=False)), {q("b"), q("a")})
    assert judgement.sql == (
        'ALTER TABLE "public"."a" REPLICA IDENTITY FULL;',
        'CREATE PUBLICATION "p" FOR TABLE "public"."a", "public"."b";',
    )
    assert judgement.addition is not None and judgement.addition.tables == (q("b"),)


def test_a_table_required_twice_over_is_blamed_once() -> None:
    root = replace(table("r"), kind=TableKind.PARTITIONED, partitions=(q("leaf"),))
    leaf = replace(table("leaf", key=False), ancestors=(q("r"),))
    judgement = decide(seen(root, leaf), {q("r"), q("leaf")})
    assert [blocker.table for blocker in judgement.blockers] == [q("leaf")]
    assert judgement.sql[0] == 'ALTER TABLE "public"."leaf" REPLICA IDENTITY FULL;' and len(judgement.sql) == 2


def test_the_script_for_people_bounds_its_wait() -> None:
    script = Addition("p", (q("b"), q("a")), frozenset({q("b")}), creates=False, generated=False).script(2.5)
    assert script.splitlines()[1:4] == [
        "SET LOCAL lock_timeout = '2500ms';",
        'LOCK TABLE "public"."a", ONLY "public"."b" IN SHARE ROW EXCLUSIVE MODE;',
        'ALTER PUBLICATION "p" ADD TABLE "public"."a", ONLY "public"."b";',
    ]


def test_names_are_quoted() -> None:
    odd = QualifiedTable('we"ird.', "Straße; DROP")
    assert '"we""ird."."Straße; DROP"' in Addition('p"q', (odd,), frozenset(), True, False).statement
    assert Addition('p"q', (odd,), frozenset(), True, False).statement.startswith('CREATE PUBLICATION "p""q" FOR')


@pytest.mark.parametrize(
    ("listed", "via_root", "expected"),
    [
        ((), False, Standing.MISSING),
        (("leaf",), False, Standing.MISSING),
        (("leaf", "other"), False, Standing.PRESENT),
        (("r",), True, Standing.PRESENT),
        (("top",), True, Standing.ABSORBED),
    ],
)
def test_a_partitioned_table_stands_by_its_leaves(listed: tuple[str, ...], via_root: bool, expected: Standing) -> None:
    """E41: as its root, or as all of its leaves; under the name of a table above it, it is not there."""
    top = replace(table("top"), kind=TableKind.PARTITIONED, partitions=(q("leaf"), q("other")))
    root = replace(top, table=q("r"), ancestors=(q("top"),))
    leaves = [replace(table(name), ancestors=(q("r"), q("top"))) for name in ("leaf", "other")]
    observed = seen(top, root, *leaves, publication=publishing(*listed, via_root=via_root))
    assert standing(observed, root) is expected


def test_traceable_asks_for_an_index_over_not_null_links_and_for_full_over_nullable_ones() -> None:
    """E42: and an index that is there already is used."""
    key = ForeignKey("fk", q("t"), ("parent_id",), q("parent"), ("id",))
    tight = replace(table("t", column("parent_id")), foreign_keys=(key,))
    loose = replace(table("t", column("parent_id", nullable=True)), foreign_keys=(key,))
    ready = replace(tight, indexes=(*tight.indexes, index("both", "parent_id", "id")))
    assert identity.traceable(tight, ["id"]) is None
    blockers = [identity.traceable(info, ["id", "parent_id"]) for info in (tight, loose, ready)]
    assert [blocker.sql.splitlines()[-1] for blocker in blockers if blocker] == [
        'ALTER TABLE "public"."t" REPLICA IDENTITY USING INDEX "t_identity";',
        'ALTER TABLE "public"."t" REPLICA IDENTITY FULL;',
        'ALTER TABLE "public"."t" REPLICA IDENTITY USING INDEX "both";',
    ]


def test_no_index_is_proposed_that_could_reject_a_write() -> None:
    """E42: not over a key whose values may repeat until the commit, nor over a column that no index bounds."""
    late = replace(
        table("t"),
        indexes=(index("late", "id", primary=True, immediate=False),),
        identity=Identity(IdentityKind.DEFAULT),
    )
    assert identity.remedy(late).statements == ('ALTER TABLE "public"."t" REPLICA IDENTITY FULL;',)
    assert "deferrable" in identity.flaw(late)
    wide = table("t", column("essay"))
    assert identity.remedy(wide, ["essay"]).identity.kind is IdentityKind.FULL


def test_names_of_new_indexes_fit_and_do_not_collide() -> None:
    key = ForeignKey("fk", q("t"), ("link",), q("parent"), ("id",))
    names = []
    for name in ("ä" * 31 + "x", "ä" * 31 + "y", "short"):
        info = replace(table(name, column("link")), foreign_keys=(key,))
        for _ in range(3):
            create, use = identity.remedy(info, ["link"]).statements
            names.append(create.split('"')[1])
            assert len(names[-1].encode()) <= 63 and f'USING INDEX "{names[-1]}"' in use
            info = replace(info, indexes=(*info.indexes, index(names[-1], "id")))
    assert len(set(names)) == 9
    assert names[-3:] == ["short_identity", "short_identity2", "short_identity3"]


def test_a_server_of_14_is_asked_only_for_what_it_has() -> None:
    """E41: lists, filters and schemas came with 15, generated columns with 18."""
    newer = ("prattrs", "prqual", "pg_publication_namespace")
    asked = options_sql(140000) + published_sql(140000)
    assert not [word for word in (*newer, "pubgencols") if word in asked]
    asked = options_sql(170000) + published_sql(170000)
    assert "pg_publication_namespace" in asked and "prattrs" in asked and "pubgencols" not in asked
    assert "pubgencols" in options_sql(180000)


def test_an_operation_left_out_has_no_sql_where_a_table_cannot_be_mended() -> None:
    """E42: no statement is given that would make the server reject writes."""
    virtual = table("a", column("v", nullable=True, generated="virtual"), key=False)
    observed = seen(virtual, publication=publishing("a", operations=frozenset({Op.INSERT})), version=180000)
    judgement = decide(observed, set())
    assert [blocker.sql for blocker in judgement.blockers] == [""] and judgement.sql == ()


@st.composite
def tables(draw: st.DrawFn) -> TableInfo:
    info = table(draw(st.sampled_from("abcdef")), column("x", draw(st.booleans())), key=draw(st.booleans()))
    if draw(st.booleans()):
        info = replace(info, columns=(*info.columns, column("g", True, draw(st.sampled_from(["stored", "virtual"])))))
    kind = draw(st.sampled_from(list(IdentityKind)))
    if kind is IdentityKind.FULL:
        return replace(info, identity=Identity(kind, tuple(c.name for c in info.columns if not c.generated)))
    return info if kind is IdentityKind.DEFAULT else replace(info, identity=Identity(kind))


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    found = {info.table: info for info in draw(st.lists(tables(), max_size=6))}
    listing = st.builds(PublishedTable, st.sampled_from([None, ("id",), ("x",), ("id", "x")]), st.booleans())
    published = {name: draw(listing) for name in found if draw(st.booleans())}
    operations = draw(st.frozensets(st.sampled_from(list(Op))))
    made = PublicationInfo("o", operations=operations, generated=draw(st.booleans()), published=published)
    return Observation("p", draw(st.sampled_from([140000, 160000, 180000])), draw(st.sampled_from([None, made])), found)


def _after_identity(judgement: Judgement, info: TableInfo) -> bool:
    """Whether some statement before the last one gives the table another identity."""
    return any(s.startswith(f"ALTER TABLE {info.table.sql} REPLICA IDENTITY") for s in judgement.sql[:-1])


@given(observations(), st.sets(st.sampled_from("abcdefg")), st.sampled_from([(), ("x",), ("id", "x", "g")]))
def test_whatever_was_seen_nothing_unsound_is_added(
    seen: Observation, names: set[str], needed: tuple[str, ...]
) -> None:
    """E41, E42: what is added has a usable identity; what is proposed gets one first."""
    required = {q(name) for name in names}
    judgement = decide(seen, required, dict.fromkeys(required, needed))
    assert judgement.present | judgement.missing == required and not judgement.present & judgement.missing
    assert {blocker.table for blocker in judgement.blockers} >= required - seen.tables.keys()
    blamed = {blocker.table for blocker in judgement.blockers}
    added = set(judgement.addition.tables) if judgement.addition else set()
    assert added == judgement.missing - blamed
    for name in added:
        assert not identity.flaw(seen.tables[name]) and not identity.lacking(seen.tables[name], needed)
    for name in judgement.missing & seen.tables.keys():
        if judgement.sql and "PUBLICATION" in judgement.sql[-1] and name.sql in judgement.sql[-1]:
            assert not identity.flaw(seen.tables[name]) or _after_identity(judgement, seen.tables[name])
    assert len(set(judgement.sql)) == len(judgement.sql)
