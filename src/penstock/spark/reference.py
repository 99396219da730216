"""`reference(spark, view)`: a view as a frame, read anew by each micro-batch that uses it.

The view stays in the driver's process. A task that reads the frame asks there for its rows, by the micro-batch (or, in
a batch query, the execution) that it belongs to. The first who asks has the view catch up with everything that was
committed before; everybody else of that micro-batch gets the same version, also a task that is tried again. A query
that is restarted asks anew, also for a micro-batch that is run again.

Guarantees: rows of two versions never meet in one micro-batch, as long as at most 64 streaming queries share the view:
the versions of a query's last two micro-batches are kept. Only who was given the frame is answered, by a key that
shows in no plan. A view that cannot be updated is shown as it is, with a warning, unless it is older than `max_age_s`.
Deliberately not: encryption of the rows on their way to executors; Spark Connect, whose driver is another process.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, OperatorError, PenstockError, UnavailableError
from penstock.postgres.parley import Line
from penstock.spark.requirement import require_pyspark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from penstock.reference.view import ReferenceView

log = logging.getLogger(__name__)

# How many streaming queries may share a view, each with the version of its micro-batch; and how many batch executions
# may still ask for theirs.
_QUERIES, _EXECUTIONS = 64, 8
# Of each query: a task of the micro-batch before may come late, one that was run twice, say.
_RUNS = 2
_RUN_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CATCH_UP_S = 10.0
_CALL_S = 30.0
_ANSWER_S = 600.0


def reference(
    spark: SparkSession, view: ReferenceView, *, partitions: int = 1, max_age_s: float | None = None
) -> DataFrame:
    """A frame of the view's rows. It serves as long as the view is open; the view is updated when it is read."""
    require_pyspark()
    if "connect" in type(spark).__module__:
        raise ConfigError(
            "a view lives in the driver's process, which is not this one under Spark Connect",
            hint="Use a classic session, or read the table: spark.read.format('penstock').",
        )
    if partitions < 1:
        raise ConfigError(f"partitions is {partitions}; at least 1 is needed")
    if not view.version:
        view.update()
    desk = ViewDesk(view, _host(spark), max_age_s)
    source = _source(desk.place, view.schema, partitions, f"penstock_{view.table.name}_{os.urandom(4).hex()}")
    spark.dataSource.register(source)
    return spark.read.format(source.name()).load()


def _host(spark: SparkSession) -> str:
    """Where tasks find the driver: on its own machine they need no network."""
    context = spark.sparkContext
    master = context.master or ""
    return (
        "127.0.0.1"
        if master.startswith("local[") or master == "local"
        else str(context.getConf().get("spark.driver.host") or socket.gethostname())
    )


@dataclass(frozen=True)
class Place:
    """Where the rows of a view are asked for."""

    host: str
    port: int
    key: bytes = field(repr=False)


class ViewDesk:
    """The driver's side: answers tasks until the view is closed."""

    def __init__(self, view: ReferenceView, host: str, max_age_s: float | None = None) -> None:
        self._view = view
        self._max_age_s = max_age_s
        self._lock = threading.Lock()
        self._versions: OrderedDict[str, pa.Table] = OrderedDict()  # by run, those asked for last at the end
        self._listener = socket.create_server((host if host == "127.0.0.1" else "", 0))
        self.place = Place(host, self._listener.getsockname()[1], os.urandom(32))
        threading.Thread(target=self._accept, name="penstock-view-desk", daemon=True).start()
        view.on_close(self.close)

    def version(self, run: str) -> pa.Table:
        """The rows for a micro-batch: the newest there are for the first who asks, the same for all others."""
        with self._lock:
            run = self._known(run)
            if run not in self._versions:
                self._catch_up()
                self._versions[run] = self._view.to_arrow()
                self._forget_old()
            self._versions.move_to_end(run)
            return self._versions[run]

    def _known(self, run: str) -> str:
        """The same; of a micro-batch that does not say in which run of its query it is, the one that asked last."""
        if not run.endswith("/"):
            return run
        return next((one for one in reversed(self._versions) if one.startswith(run)), run)

    def _forget_old(self) -> None:
        by_query: OrderedDict[str, list[str]] = OrderedDict()  # those asked for last first; executions have none
        for run in reversed(self._versions):
            by_query.setdefault(run.split("/")[0] if "/" in run else "", []).append(run)
        old = by_query.pop("", [])[_EXECUTIONS:]
        for rank, runs in enumerate(by_query.values()):
            old += runs[_RUNS:] if rank < _QUERIES else runs
        for run in old:
            del self._versions[run]

    def _catch_up(self) -> None:
        try:
            if self._view.catch_up(_CATCH_UP_S):
                return
            trouble = f"it has not caught up within {_CATCH_UP_S:.0f} s"
        except PenstockError as error:
            trouble = error.message
        age_s = self._view.status().age_s
        if age_s is None or (self._max_age_s is not None and age_s > self._max_age_s):
            shown = "has no contents" if age_s is None else f"is {age_s:.0f} s old, and may be {self._max_age_s:.0f}"
            raise OperatorError(f"the view of {self._view.table} {shown}: {trouble}")
        log.warning("the view of %s is used as it was %.0f s ago: %s", self._view.table, age_s, trouble)

    def _accept(self) -> None:
        while True:
            try:
                asking, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(asking,), name="penstock-view-desk", daemon=True).start()

    def _serve(self, asking: socket.socket) -> None:
        try:
            with Line(asking, self.place.key, calling=False) as line:
                wanted = line.receive(_CALL_S)
                if wanted is None:
                    return
                try:
                    body = self._answer(wanted)
                except PenstockError as error:
                    line.send({"error": error.message, "hint": error.hint})
                    return
                line.send({"bytes": len(body)})
                asking.sendall(body)
        except (OSError, PenstockError) as error:
            log.debug("a task was given up: %s", type(error).__name__)

    def _answer(self, wanted: dict[str, Any]) -> memoryview:
        import pyarrow as pa

        table, part, parts = self.version(wanted["run"]), wanted["part"], wanted["parts"]
        found = [[field.name, str(field.type)] for field in table.schema]
        if any(column not in found for column in wanted["columns"]):
            raise OperatorError(
                f"the columns of {self._view.table} are not those that the frame was made with",
                hint="Make it again: penstock.spark.reference(spark, view).",
            )
        first, end = (table.num_rows * number // parts for number in (part, part + 1))
        rows = table.select([name for name, _ in wanted["columns"]]).slice(first, end - first)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows)
        return memoryview(sink.getvalue())

    def close(self) -> None:
        """Answer nobody any more. Any number of times."""
        try:
            self._listener.shutdown(socket.SHUT_RDWR)  # a close alone leaves the thread waiting for callers
        except OSError:
            pass
        self._listener.close()


def fetch(place: Place, run: str, part: int, parts: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A task's side: the rows of one part, of the version that the run sees."""
    import pyarrow as pa

    try:
        asking = socket.create_connection((place.host, place.port), _CALL_S)
        with Line(asking, place.key, calling=True) as line:
            columns = [[column.name, str(column.type)] for column in schema]
            line.send({"run": run, "part": part, "parts": parts, "columns": columns})
            said = line.receive(_ANSWER_S)
            body = _received(asking, said["bytes"]) if said and "bytes" in said else b""
    except (OSError, PenstockError) as error:
        raise UnavailableError(
            f"the driver at {place.host}:{place.port}, which has the view, does not answer: {type(error).__name__}",
            hint="Its view was closed, or the executors do not reach that port.",
        ) from None
    if said is None or "error" in said:
        told = said or {"error": "the driver, which has the view, gave no answer", "hint": ""}
        raise OperatorError(told["error"], hint=told["hint"])
    yield from pa.ipc.open_stream(body).read_all().to_batches()


def _received(asking: socket.socket, size: int) -> bytes:
    asking.settimeout(_CALL_S)
    data, got = bytearray(size), 0
    view = memoryview(data)
    while got < size:
        count = asking.recv_into(view[got:])
        if not count:
            raise ConnectionResetError
        got += count
    return bytes(data)


def run_of(task: Any) -> str:
    """What all tasks that must see one version have in common: the micro-batch, else the execution.

    A query that is restarted has the same id, and begins with the micro-batch that failed: its run is another one.
    Spark names that as the job group, which code in foreachBatch may change: it then says nothing of the run.
    """
    query, batch = task.getLocalProperty("sql.streaming.queryId"), task.getLocalProperty("streaming.sql.batchId")
    if query and batch is not None:
        group = task.getLocalProperty("spark.jobGroup.id") or ""
        return f"{query}/{batch}/{group if _RUN_ID.fullmatch(group) else ''}"
    return str(task.getLocalProperty("spark.sql.execution.id") or f"stage {task.stageId()}")


def _source(place: Place, schema: pa.Schema, parts: int, format_name: str) -> Any:
    """A data source of this one view: made here, so that what it knows travels inside of it and is in no option."""
    import pyarrow as pa
    from pyspark.sql import types as spark
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.taskcontext import TaskContext

    from penstock.spark.schema import spark_type

    columns = spark.StructType([spark.StructField(one.name, spark_type(one.type)) for one in schema])
    plain = pa.schema([pa.field(one.name, one.type) for one in schema])

    class ViewReader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(parts)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            run = run_of(TaskContext.get())
            target = to_arrow_schema(columns, timezone="UTC")
            for batch in fetch(place, run, partition.value, parts, plain):
                yield batch.cast(target)

    class ViewSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> spark.StructType:
            return columns

        def reader(self, schema: spark.StructType) -> DataSourceReader:
            return ViewReader()

    return ViewSource
