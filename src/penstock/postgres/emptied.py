"""What a TRUNCATE says of a partitioned table: as a rule the server names the partitions that it emptied, one by one.

Where the publication speaks of such a table as one (publish_via_partition_root), the table itself is named, and of a
TRUNCATE of single partitions nothing is said. Guarantees: a pure answer; partitions are told by oid, or by name where
they were made anew. Deliberately not: what to do about a table of which some partitions were spared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.model import QualifiedTable
from penstock.postgres.pgoutput import Relation


def spared(
    truncated: Collection[Relation], table: QualifiedTable, partitions: Mapping[int, QualifiedTable]
) -> list[QualifiedTable]:
    """The partitions of a table, by oid, that a TRUNCATE left as they were; none where it named the table itself."""
    oids, names = {relation.oid for relation in truncated}, {relation.table for relation in truncated}
    if table in names:
        return []
    return sorted(name for oid, name in partitions.items() if oid not in oids and name not in names)
