"""What stands in the way of one table's changes, and the statements that would clear it away.

Guarantees: a pure answer from an observation. Nothing that is proposed here would make the server reject an UPDATE or
DELETE that it takes today, in any step of it: each finding's statements carry the stage at which they are safe.
Deliberately not: privileges, which are found by trying (`alteration`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from penstock.model import Blocker, Op, QualifiedTable, quote
from penstock.postgres import identity
from penstock.postgres.catalog import Identity, IdentityKind, Persistence, TableInfo, TableKind
from penstock.postgres.observation import Observation, PublishedTable, Standing, standing

_REJECTS = "the server rejects UPDATE and DELETE on it"
_WOULD_REJECT = "once it is published, the server would reject UPDATE and DELETE on it"


class Stage(IntEnum):
    """The order of statements: what widens a publication's view of a table comes before a new identity needs it."""

    OPTION = 0
    LISTING = 1
    IDENTITY = 2
    OPERATIONS = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in the way, and the statements that mend it, each with its stage."""

    blocker: Blocker
    steps: tuple[tuple[Stage, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Examined:
    """One required table, looked at. `generated`: its publication must publish stored generated columns."""

    table: QualifiedTable
    standing: Standing
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    generated: bool = False


@dataclass(frozen=True, slots=True)
class _Listing:
    """A published table (or one to be), how it is listed, and the tables whose identity its changes depend on."""

    carrier: TableInfo
    columns: tuple[str, ...] | None
    filtered: bool
    members: tuple[TableInfo, ...]


@dataclass(frozen=True, slots=True)
class _Case:
    seen: Observation
    info: TableInfo
    standing: Standing
    needed: frozenset[str]

    @property
    def consequence(self) -> str:
        rejecting = self.seen.publication is not None and self.seen.publication.operations & {Op.UPDATE, Op.DELETE}
        return _REJECTS if self.standing is Standing.PRESENT and rejecting else _WOULD_REJECT


def examine(seen: Observation, table: QualifiedTable, needed: Collection[str] = ()) -> Examined:
    """Everything about one required table; `needed` are the columns whose old and new values a reader follows."""
    info = seen.tables.get(table)
    if info is None:
        return Examined(table, Standing.MISSING, (Finding(Blocker(table, "there is no such table")),))
    if reason := _unfit(info):
        return Examined(table, Standing.MISSING, (Finding(Blocker(table, reason)),))
    case = _Case(seen, info, standing(seen, info), frozenset(needed))
    findings = [*_partition_findings(case), *_column_findings(case)]
    generated = False
    for listing in _listings(case):
        cures = []
        for member in listing.members:
            cured, found = _identity_findings(case, member, listing)
            cures.append(cured)
            findings += found
        findings += _listing_findings(case, listing, [cured.identity for cured in cures])
        generated |= any(cured.generated for cured in cures)
    return Examined(table, case.standing, tuple(findings), tuple(_notes(case)), generated)


def republish(publication: str, carrier: TableInfo, columns: tuple[str, ...] | None) -> str:
    """List a table anew, without a row filter and with those columns, so that no change falls between."""
    listed = f" ({', '.join(map(quote, columns))})" if columns is not None else ""
    only = "ONLY " if carrier.inheritors else ""
    return (
        f"BEGIN;\nALTER PUBLICATION {quote(publication)} DROP TABLE {only}{carrier.table.sql};\n"
        f"ALTER PUBLICATION {quote(publication)} ADD TABLE {only}{carrier.table.sql}{listed};\nCOMMIT;"
    )


def _unfit(info: TableInfo) -> str:
    if info.kind not in (TableKind.TABLE, TableKind.PARTITIONED):
        return f"it is a {info.kind}: Postgres publishes tables only"
    if info.persistence is not Persistence.PERMANENT:
        return f"it is {info.persistence}: the WAL does not carry its rows"
    return "" if info.publishable else "it belongs to the system: Postgres does not publish it"


def _partition_findings(case: _Case) -> Iterator[Finding]:
    if case.standing is Standing.ABSORBED:
        above = next(table for table in reversed(case.info.ancestors) if table in case.seen.published)
        yield Finding(
            Blocker(
                case.info.table,
                f"its changes are published as those of {above} (publish_via_partition_root): require {above} instead",
            )
        )
    for leaf in case.seen.leaves(case.info):
        if leaf is not case.info and (reason := _unfit(leaf)):
            yield Finding(Blocker(leaf.table, f"{reason}, and it is a partition of {case.info.table}"))


def _column_findings(case: _Case) -> Iterator[Finding]:
    if unknown := sorted(case.needed - {column.name for column in case.info.columns}):
        yield Finding(Blocker(case.info.table, f"it has no column {_names(unknown)}"))
    unsent = _generated(case.info, "virtual") | (set() if case.seen.is_18 else _generated(case.info, "stored"))
    if unsendable := case.info.ordered(case.needed & unsent):
        reason = f"{_names(unsendable)} is generated, and this server does not publish it"
        yield Finding(Blocker(case.info.table, reason))


def _listings(case: _Case) -> Iterator[_Listing]:
    """Under which names the rows travel, or will once the table is added; each with what listing there is."""
    by_carrier: dict[QualifiedTable, list[TableInfo]] = defaultdict(list)
    for leaf in case.seen.leaves(case.info):
        added_as = case.info if case.seen.via_root else leaf
        if leaf.publishable:
            by_carrier[case.seen.carrier(leaf) or added_as.table].append(leaf)
    for table, leaves in by_carrier.items():
        carrier = case.seen.tables[table]
        # A partitioned table describes the stream's rows by its own identity, while the old values are the leaf's.
        members = (*leaves, carrier) if carrier.kind is TableKind.PARTITIONED else tuple(leaves)
        listed = case.seen.published.get(table, PublishedTable())
        yield _Listing(carrier, listed.columns, listed.filtered, members)


@dataclass(frozen=True, slots=True)
class Cure:
    """The identity a table should have, how to get there, and whether that takes stored generated columns."""

    identity: Identity
    steps: tuple[tuple[Stage, str], ...] = ()
    generated: bool = False


def cure(seen: Observation, info: TableInfo, needed: Collection[str] = ()) -> Cure:
    """A usable identity with the needed columns; no steps where nothing helps."""
    # Under FULL, Postgres 18 wants every generated column published, and a virtual one cannot be.
    full_allowed = not (seen.is_18 and _generated(info, "virtual"))
    found = identity.remedy(info, needed, full_allowed=full_allowed)
    steps = tuple((Stage.IDENTITY, statement) for statement in found.statements)
    unsent = _unsent(seen, info, found.identity, needed)
    return Cure(found.identity, (*_option(seen, unsent), *steps) if steps else (), seen.is_18 and bool(unsent))


def _identity_findings(case: _Case, member: TableInfo, listing: _Listing) -> tuple[Cure, list[Finding]]:
    """What is wrong with a member's identity, and the one it should have (its own where nothing is)."""
    reasons = []
    if flaw := identity.flaw(member):
        reasons.append(f"{flaw}: {case.consequence}")
    elif lacking := identity.lacking(member, case.needed):
        reasons.append(lacking)
    if case.seen.is_18 and member.identity.kind is IdentityKind.FULL and _generated(member, "virtual"):
        reasons.append(f"it has virtual generated columns and REPLICA IDENTITY FULL: {case.consequence}")
    if reasons:
        cured = cure(case.seen, member, case.needed)
        return cured, [_finding(member, reason, cured.steps) for reason in reasons]
    # With a column list, the list says what is sent.
    unsent = () if listing.columns is not None else _unsent(case.seen, member, member.identity, case.needed)
    kept = Cure(member.identity, generated=case.seen.is_18 and bool(unsent))
    if not unsent or (case.seen.is_18 and case.seen.publication is None):
        return kept, []
    reason = f"generated column {_names(unsent)} of its replica identity is not published"
    reason += f": {case.consequence}" if case.seen.is_18 else ""
    return kept, [_finding(member, reason, _option(case.seen, unsent))]


def _unsent(seen: Observation, info: TableInfo, target: Identity, needed: Collection[str]) -> tuple[str, ...]:
    """Stored generated columns that an identity or a reader needs, and that the publication is not told to send."""
    if seen.publication is not None and seen.publication.generated:
        return ()
    stored = _generated(info, "stored")
    wanted = stored if seen.is_18 and target.kind is IdentityKind.FULL else stored & {*target.columns}
    return info.ordered(wanted | stored & {*needed} if seen.is_18 else wanted)


def _option(seen: Observation, unsent: tuple[str, ...]) -> tuple[tuple[Stage, str], ...]:
    if not unsent or not seen.is_18 or seen.publication is None:
        return ()
    return ((Stage.OPTION, f"ALTER PUBLICATION {quote(seen.name)} SET (publish_generated_columns = stored);"),)


def _generated(info: TableInfo, kind: str) -> set[str]:
    return {column.name for column in info.columns if column.generated == kind}


def _listing_findings(case: _Case, listing: _Listing, targets: list[Identity]) -> Iterator[Finding]:
    columns = renewed = listing.columns
    reasons = ["a row filter keeps rows of it out of the publication"] if listing.filtered else []
    if columns is not None:
        reasons += _list_flaws(case, listing, columns)
        identified = {name for target in targets for name in target.columns}
        full = any(target.kind is IdentityKind.FULL for target in targets)
        renewed = None if full else listing.carrier.ordered({*columns, *identified, *case.needed})
        if not reasons and renewed != listing.carrier.ordered(columns):
            reasons.append("its column list has to follow its new replica identity")
    step = (Stage.LISTING, republish(case.seen.name, listing.carrier, renewed))
    for reason in reasons:
        yield _finding(listing.carrier, reason, [step])


def _list_flaws(case: _Case, listing: _Listing, columns: tuple[str, ...]) -> Iterator[str]:
    if any(member.identity.kind is IdentityKind.FULL for member in listing.members):
        yield f"it has a column list and REPLICA IDENTITY FULL: {_REJECTS}"
        return
    identified = {name for member in listing.members for name in member.identity.columns}
    if missing := listing.carrier.ordered(identified - set(columns)):
        yield f"its column list leaves out {_names(missing)} of its replica identity: {_REJECTS}"
    if missing := listing.carrier.ordered(case.needed - identified - set(columns)):
        yield f"its column list leaves out {_names(missing)}"


def _notes(case: _Case) -> Iterator[str]:
    info, publication = case.info, case.seen.publication
    for listing in _listings(case):
        carrier = listing.carrier.table
        if listing.columns is not None:
            yield f"{carrier}: its column list publishes {_names(listing.columns)} only"
        if listing.carrier.kind is TableKind.PARTITIONED:
            yield f"{carrier}: a TRUNCATE of one of its partitions is not published (publish_via_partition_root)"
    if case.standing is Standing.PRESENT and info.partitions and publication and not publication.names(info):
        yield f"{info.table}: its partitions are published one by one, so one that is attached later will not be"
    if unpublished := [str(table) for table in info.inheritors if table not in case.seen.published]:
        yield f"{info.table}: rows of the tables that inherit from it ({', '.join(unpublished)}) are not published"


def in_order(steps: Iterable[tuple[Stage, str]]) -> tuple[str, ...]:
    """The statements, each once, in the order in which they are safe."""
    return tuple(dict.fromkeys(statement for _, statement in sorted(steps, key=lambda step: step[0])))


def _finding(info: TableInfo, reason: str, steps: Iterable[tuple[Stage, str]]) -> Finding:
    found = tuple(steps)
    return Finding(Blocker(info.table, reason, "\n".join(in_order(found))), found)


def _names(columns: Iterable[str]) -> str:
    return ", ".join(map(quote, columns))
