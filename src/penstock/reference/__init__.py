"""Reference tables: a table that is read once and then follows its changes, as Arrow in this process.

`ReferenceCapture` is a slot, `PostgresReferenceTableSource` a table of it, `ReferenceView` the table as it stands.
"""

from penstock.reference.capture import ReferenceCapture
from penstock.reference.snapshot_source import PostgresSnapshotSource
from penstock.reference.source import PostgresReferenceTableSource
from penstock.reference.view import ReferenceView, Refresh, ViewStatus

__all__ = [
    "PostgresReferenceTableSource",
    "PostgresSnapshotSource",
    "ReferenceCapture",
    "ReferenceView",
    "Refresh",
    "ViewStatus",
]
