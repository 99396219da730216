"""The options of the Spark source: read, checked, and turned into plain values.

Names are matched without regard to case, as everywhere in Spark. Guarantees: an unknown option, a value that does not
fit or a combination that makes no sense is one sentence with the nearest right word, before anything is connected to;
a password, or the name of a file or variable that holds one, is looked up in the process that connects, and shows in
no repr.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.model import QualifiedTable, SslMode, TlsConfig
from penstock.postgres.connection import ConnectionSettings, resolve
from penstock.spark.settings import local_folder

MODES = ("rows", "keys")
STARTS = ("slot", "snapshot")


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its name as documented, what it means, and its default as a user would write it."""

    name: str
    meaning: str
    default: str = ""
    words: tuple[str, ...] = ()


OPTIONS: tuple[Option, ...] = (
    Option("url", "a postgresql:// URL"),
    Option("host", "the server's host name or address", "localhost"),
    Option("port", "its port", "5432"),
    Option("database", "the database"),
    Option("user", "the role"),
    Option("password", "its password; better one of the next three, since options travel inside Spark's tasks"),
    Option("urlEnv", "the environment variable that holds the URL, looked up where the connection is made"),
    Option("passwordEnv", "the environment variable that holds the password, looked up where the connection is made"),
    Option("passwordFile", "the file that holds the password, read where the connection is made"),
    Option("sslMode", "how much TLS to ask for", "prefer", tuple(mode.value for mode in SslMode)),
    Option("sslRootCert", "the file of the certificate authority"),
    Option("sslCert", "the file of the client's certificate"),
    Option("sslKey", "the file of its key"),
    Option("table", "the table, as name, schema.name or \"Quoted\".\"Name\"; dbtable means the same"),
    Option("tables", "several tables, separated by commas; a stream then has before and after as VARIANT"),
    Option("slot", "stream: the replication slot, made on the first start; required"),
    Option("publication", "stream: the publication", "the slot's name"),
    Option("managePublication", "stream: make the publication, or add the tables to it, where the role may", "true"),
    Option("failover", "stream: make the slot a failover slot (Postgres 17 and newer)", "false"),
    Option("temporarySlot", "stream: a slot that ends with the query; not with a checkpoint that has offsets", "false"),
    Option("mode", "stream: whole rows, or only the keys of changed rows", "rows", MODES),
    Option("startingPosition", "stream: from the slot on, or first what the table holds now", "slot", STARTS),
    Option("maxRowsPerTrigger", "stream: at most this many rows a micro-batch"),
    Option("maxBytesPerTrigger", "stream: at most about this many bytes a micro-batch", "67108864"),
    Option("preimage", "stream: the old row of every update beside the new one; needs REPLICA IDENTITY FULL", "false"),
    Option("jsonColumns", "how json and jsonb columns come", "variant", ("variant", "string")),
    Option("unrepresentable", "a value that its column's type cannot hold", "error", ("error", "null")),
    Option("failOnDataLoss", "stream: stop when changes are gone for good, instead of going on behind them", "true"),
    Option("spoolDir", "stream: where large transactions wait on disk", "the system's temporary folder"),
    Option("spoolShared", "stream: every node reaches spoolDir, so large batches travel as files there", "false"),
    Option("spoolMaxBytes", "stream: how many bytes of changes may wait in memory for Spark", "268435456"),
    Option("keyColumns", "keys: the columns a change carries, as JSON: {\"table\": [columns]}", "identity and links"),
    Option("directSocket", "keys: where the reader also hands small batches to the driver; penstock run uses it"),
    Option("directChanges", "keys: whether they are; else directSocket only tells when they were committed", "true"),
    Option("checkpointFolder", "keys: the checkpoint, on the reader's machine, to be synced; penstock run uses it"),
    Option("columns", "snapshot: these columns only, separated by commas"),
    Option("where", "snapshot: an SQL condition for the rows"),
    Option("numPartitions", "snapshot: into how many parts the table is cut", "one for each 32 MB, at most 4"),
    Option("partitionColumn", "snapshot: cut by the ranges of this column, or of several, instead of by blocks"),
)  # fmt: skip

_ALIASES = {"dbtable": "table"}
_NAMES = {option.name.lower(): option for option in OPTIONS}
_TRUTH = {"true": True, "false": False}
_BETWEEN_COMMAS = re.compile(r'(?:"(?:[^"]|"")*"|[^,"])+')


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options as values. What connects is kept as it was given, and shows in no repr."""

    connection: Mapping[str, str] = field(repr=False)
    tables: tuple[QualifiedTable, ...]
    many: bool
    slot: str = ""
    publication: str = ""
    manage_publication: bool = True
    failover: bool = False
    temporary_slot: bool = False
    mode: str = "rows"
    starting_position: str = "slot"
    max_rows: int | None = None
    max_bytes: int = 64 << 20  # a batch travels through the memory of the JVM, several times over
    preimage: bool = False
    json_columns: str = "variant"
    unrepresentable: str = "error"
    fail_on_data_loss: bool = True
    spool_dir: str | None = None
    spool_shared: bool = False
    spool_max_bytes: int = 256 << 20
    key_columns: Mapping[QualifiedTable, tuple[str, ...]] = field(default_factory=dict)
    direct_socket: str = ""
    direct_changes: bool = True
    checkpoint_folder: str = ""
    columns: tuple[str, ...] = ()
    where: str = ""
    num_partitions: int | None = None
    partition_column: str = ""
    given: frozenset[str] = field(default=frozenset(), compare=False)  # the names, as they are documented

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Read what was given with `.option(…)`."""
        given = _Given(options)
        tables = given.tables()
        return cls(
            connection=given.only(*(option.name for option in OPTIONS[:13])),
            tables=tables,
            many="tables" in given,
            slot=given.text("slot"),
            publication=given.text("publication") or given.text("slot"),
            manage_publication=given.truth("managePublication"),
            failover=given.truth("failover"),
            temporary_slot=given.truth("temporarySlot"),
            mode=given.word("mode"),
            starting_position=given.word("startingPosition"),
            max_rows=given.number("maxRowsPerTrigger"),
            max_bytes=given.number("maxBytesPerTrigger") or 64 << 20,
            preimage=given.truth("preimage"),
            json_columns=given.word("jsonColumns"),
            unrepresentable=given.word("unrepresentable"),
            fail_on_data_loss=given.truth("failOnDataLoss"),
            spool_dir=given.text("spoolDir") or None,
            spool_shared=given.truth("spoolShared"),
            spool_max_bytes=given.number("spoolMaxBytes") or 256 << 20,
            key_columns=given.columns_by_table("keyColumns"),
            direct_socket=given.text("directSocket"),
            direct_changes=given.truth("directChanges"),
            checkpoint_folder=given.text("checkpointFolder"),
            columns=given.names("columns"),
            where=given.text("where"),
            num_partitions=given.number("numPartitions"),
            partition_column=given.text("partitionColumn"),
            given=given.names_of_all(),
        )

    def for_stream(self) -> SourceOptions:
        """Itself, once it is fit for a stream."""
        if not self.slot:
            raise ConfigError("a stream needs a slot", hint='Add .option("slot", "a_name"); it is made on first start.')
        if strange := self._given("snapshot"):
            raise ConfigError(
                f"{strange} belongs to a batch read, not to a stream",
                hint="Filter and select on the stream's DataFrame instead.",
            )
        if (self.key_columns or self.direct_socket) and self.mode != "keys":
            raise ConfigError("keyColumns and directSocket belong to mode keys", hint='Add .option("mode", "keys").')
        if self.preimage and self.mode == "keys":
            raise ConfigError("preimage belongs to mode rows", hint="Leave it out: keys have old and new beside it.")
        if self.spool_shared and not self.spool_dir:
            raise ConfigError("spoolShared needs spoolDir: the folder that every node reaches")
        if self.starting_position == "snapshot" and (self.mode != "rows" or self.many):
            raise ConfigError("startingPosition snapshot works for one table in mode rows")
        if self.starting_position == "snapshot" and self.temporary_slot:
            raise ConfigError("startingPosition snapshot needs a lasting slot", hint="Leave temporarySlot out.")
        if self.failover and self.temporary_slot:
            raise ConfigError(
                "a temporary slot ends with the query, and cannot survive a failover",
                hint="Leave failover or temporarySlot out.",
            )
        return self

    def for_batch(self) -> SourceOptions:
        """Itself, once it is fit for a batch read."""
        if self.slot:
            raise ConfigError("a slot belongs to a stream", hint="Leave slot out, or use spark.readStream.")
        if self.many:
            raise ConfigError("a batch read takes one table", hint='Give it as .option("table", …).')
        if strange := self._given("stream", "keys"):
            raise ConfigError(
                f"{strange} belongs to a stream, and no slot is given",
                hint='A stream needs .option("slot", "a_name"); for a batch read leave it out.',
            )
        return self

    def _given(self, *kinds: str) -> str:
        """The first option that was given though it belongs to reads of these kinds."""
        strange = (o.name for o in OPTIONS if o.name in self.given and o.meaning.partition(":")[0] in kinds)
        return next(strange, "")

    def batch_folder(self) -> str | None:
        """Where a large batch may lie as files: a folder that every task reaches. Asked in the reader's process."""
        return self.spool_dir if self.spool_shared else local_folder()

    def settings(self) -> ConnectionSettings:
        """Where to connect; secrets that are named, not given, are looked up now, in this process."""
        given = self.connection
        url = given.get("url")
        if name := given.get("urlEnv"):
            url = _from_environment(name, "urlEnv")
        password = given.get("password")
        if name := given.get("passwordEnv"):
            password = _from_environment(name, "passwordEnv")
        if path := given.get("passwordFile"):
            password = _from_file(path)
        tls = None
        if any(name in given for name in ("sslMode", "sslRootCert", "sslCert", "sslKey")):
            mode = SslMode(given.get("sslMode", "prefer"))
            tls = TlsConfig(mode, given.get("sslRootCert"), given.get("sslCert"), given.get("sslKey"))
        host, port, database, user = (given.get(name) for name in ("host", "port", "database", "user"))
        return resolve(url, tls=tls, host=host, port=port, database=database, user=user, password=password)


class _Given:
    """Options as they were given, found without regard to case."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values: dict[str, str] = {}
        for name, value in options.items():
            known = _NAMES.get(_ALIASES.get(name.lower(), name.lower()))
            if known is None:
                raise ConfigError(f"the penstock source has no option {name!r}", hint=_nearest(name.lower()))
            if known.name in self._values and self._values[known.name] != value:
                raise ConfigError(f"{known.name} is given twice, with different values")
            self._values[known.name] = value
        for one, other in (("url", "urlEnv"), ("password", "passwordEnv"), ("password", "passwordFile"),
                           ("passwordEnv", "passwordFile"), ("table", "tables")):  # fmt: skip
            if one in self._values and other in self._values:
                raise ConfigError(f"{one} and {other} are both given", hint="Give one of them.")

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def only(self, *names: str) -> dict[str, str]:
        found = {name: self._values[name] for name in names if name in self._values}
        if "sslMode" in found:
            found["sslMode"] = self.word("sslMode")
        return found

    def text(self, name: str) -> str:
        return self._values.get(name, "")

    def word(self, name: str) -> str:
        option = _NAMES[name.lower()]
        value = self._values.get(name, option.default).lower()
        if value not in option.words:
            raise ConfigError(f"{name} is {value!r}", hint=f"It is one of: {', '.join(option.words)}.")
        return value

    def truth(self, name: str) -> bool:
        value = self._values.get(name, _NAMES[name.lower()].default).lower()
        if value not in _TRUTH:
            raise ConfigError(f"{name} is {value!r}", hint="It is true or false.")
        return _TRUTH[value]

    def number(self, name: str) -> int | None:
        if name not in self._values:
            return None
        value = self._values[name]
        if not value.isdecimal() or int(value) < 1:
            raise ConfigError(f"{name} is {value!r}", hint="It is a whole number above zero.")
        return int(value)

    def names_of_all(self) -> frozenset[str]:
        return frozenset(self._values)

    def names(self, name: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in self._values.get(name, "").split(",") if part.strip())

    def columns_by_table(self, name: str) -> dict[QualifiedTable, tuple[str, ...]]:
        try:
            said = json.loads(self._values.get(name, "{}"))
            return {QualifiedTable.parse(table): tuple(map(str, columns)) for table, columns in said.items()}
        except (ValueError, AttributeError, TypeError):
            raise ConfigError(
                f"{name} is no JSON object of lists", hint='Write {"schema.table": ["column"]}.'
            ) from None

    def tables(self) -> tuple[QualifiedTable, ...]:
        several = _BETWEEN_COMMAS.findall(self._values.get("tables", ""))
        listed = [self._values["table"]] if "table" in self._values else [one for one in several if one.strip()]
        if not listed:
            raise ConfigError("no table is given", hint='Add .option("table", "schema.name"), or "tables" for several.')
        return tuple(dict.fromkeys(QualifiedTable.parse(one) for one in listed))


def _nearest(name: str) -> str:
    close = difflib.get_close_matches(name, [*_NAMES, *_ALIASES], 1, 0.5)
    known = _NAMES.get(close[0]) if close else None
    return f"Did you mean {known.name if known else close[0]}?" if close else "docs/reference/spark.md lists them."


def _from_environment(name: str, option: str) -> Any:
    value = os.environ.get(name)
    if not value:
        raise ConfigError(f"{option} names the environment variable {name}, which is not set in this process")
    return value


def _from_file(path: str) -> str:
    try:
        return Path(path).read_text().rstrip("\n")
    except OSError as error:
        raise ConfigError(f"passwordFile {path} cannot be read: {error.strerror}") from None
