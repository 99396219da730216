"""`PgDocumentBuilder`: which documents a change touches, and documents as bytes, from a Postgres database."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.contracts import ColumnType, Documents, Extent, Key
from penstock.document.spec import SourceSpec
from penstock.model import QualifiedTable
from penstock.postgres.connection import ConnectionSettings

if TYPE_CHECKING:
    import pyarrow as pa


class PgDocumentBuilder:
    """Implements `DocumentBuilder` and `Catalog`. Use it in a `with` statement, or `close` it."""

    def __init__(
        self,
        spec: SourceSpec,
        connection_url: str | ConnectionSettings,
        *,
        max_connections: int = 4,
        chunk_keys: int = 1000,
        chunk_bytes: int = 8 << 20,
        settle_timeout_s: float = 60.0,
    ) -> None:
        raise NotImplementedError

    def affected(self, index: str, changes: pa.RecordBatch) -> Iterator[list[Key]]:
        raise NotImplementedError

    def truncated(self, index: str, changes: pa.RecordBatch) -> Extent:
        raise NotImplementedError

    def build(self, index: str, keys: Sequence[Key]) -> Iterator[Documents]:
        raise NotImplementedError

    def build_range(self, index: str, after: Key | None, upto: Key | None) -> Iterator[Documents]:
        raise NotImplementedError

    def settle(self, xids: Collection[int]) -> None:
        raise NotImplementedError

    def column(self, table: QualifiedTable, name: str) -> ColumnType | None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> PgDocumentBuilder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
