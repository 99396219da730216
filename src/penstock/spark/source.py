"""`format("penstock")`: what Spark asks of a data source, and which part of ours answers.

`spark.read` gives what a table holds now, all of one moment; `spark.readStream` gives its changes. Guarantee: options
are checked before anything is connected to, and every failure is one sentence with the next step.
"""

from __future__ import annotations

from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from penstock.errors import ConfigError
from penstock.model import QualifiedTable
from penstock.postgres import catalog
from penstock.postgres.catalog import ColumnInfo
from penstock.postgres.connection import open_sql
from penstock.postgres.observation import carried
from penstock.postgres.publication_catalog import read_publication
from penstock.spark.batch import snapshot_reader, snapshot_type
from penstock.spark.options import SourceOptions
from penstock.spark.reader import ChangeReader
from penstock.spark.schema import KEYS, MANY, changes_type


class PenstockSource(DataSource):
    """The source under its short name."""

    @classmethod
    def name(cls) -> str:
        """The word in `format(…)`."""
        return "penstock"

    def schema(self) -> spark.StructType:
        """The columns: all of the table in a batch read; those that are published, and what is added, in a stream."""
        options = SourceOptions.parse(self.options)
        if options.slot and options.mode == "keys":
            return KEYS
        if options.slot and options.many:
            return MANY
        if options.slot:
            return changes_type(self._sent(options), options.json_columns)
        return snapshot_type(options.for_batch())

    def reader(self, schema: spark.StructType) -> DataSourceReader:
        """The batch side."""
        return snapshot_reader(SourceOptions.parse(self.options).for_batch(), schema)

    def streamReader(self, schema: spark.StructType) -> DataSourceStreamReader:
        """The streaming side."""
        return ChangeReader(SourceOptions.parse(self.options).for_stream(), schema)

    @staticmethod
    def _sent(options: SourceOptions) -> tuple[ColumnInfo, ...]:
        (table,) = _one(options.tables)
        with open_sql(options.settings()) as connection:
            found = catalog.read_tables(connection, [table])
            published = read_publication(connection, options.publication)
        if table not in found:
            raise ConfigError(f"table {table} does not exist in the database", hint="Check its schema and spelling.")
        return carried(found[table], published)


def _one(tables: tuple[QualifiedTable, ...]) -> tuple[QualifiedTable]:
    if len(tables) != 1:
        raise ConfigError("a batch read takes one table", hint='Give it as .option("table", …).')
    return (tables[0],)
