"""What `engine.py` loads a world with: writers (pgbench) to the database, ready-made documents to the node."""

from __future__ import annotations

import http.client
import itertools
import json
import multiprocessing
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from engine_world import World

BULK = 1000
UPDATE = """
\\set id random(1, {books})
\\set price random(1, 99999)
UPDATE book SET price = :price / 100.0 WHERE id = :id;
"""


class Written(NamedTuple):
    """What writers did."""

    transactions: int
    seconds: float
    p50_ms: float


def write(world: World, seconds: int, *, rate: int = 0) -> Written:
    """Two writers of single-row transactions, at full speed or at so many a second together."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        script = Path(folder) / "update.sql"
        script.write_text(UPDATE.format(books=world.books))
        command = [str(world.server.binaries / "pgbench"), "-n", "-M", "prepared", "-c", "2", "-j", "2"]
        paced = ["-R", str(rate), "-l", "--log-prefix", f"{folder}/log"] if rate else []
        began = time.perf_counter()
        told = subprocess.run(
            [*command, "-T", str(seconds), "-f", str(script), *paced, world.server.url()],
            capture_output=True, text=True, check=True, cwd=folder,
        ).stdout  # fmt: skip
        took = time.perf_counter() - began
        counted = re.search(r"actually processed: (\d+)", told)
        assert counted, told
        times = [int(line.split()[2]) for log in Path(folder).glob("log*") for line in log.read_text().splitlines()]
    return Written(int(counted[1]), took, statistics.median(times) / 1000 if times else 0.0)


class Limit:
    """The most that the node takes: ready-made bulk requests of the world's documents, from some processes."""

    def __init__(self, world: World, body: dict[str, Any], processes: int) -> None:
        self._world = world
        self._numbers = itertools.count()
        index = {**body["settings"]["index"], "refresh_interval": "-1", "translog.durability": "request"}
        self._body = {**body, "settings": {**body["settings"], "index": index}}
        requests = list(_requests(world))
        self._shares = [requests[at::processes] for at in range(processes)]

    def docs_s(self) -> float:
        """Documents a second into a new index, until they can be found."""
        name = f"limit-{next(self._numbers)}"
        status, said = self._world.node.ask("PUT", f"/{name}", self._body)
        assert status == 200, said
        ready = multiprocessing.get_context("fork").Barrier(len(self._shares) + 1)
        sending = [
            multiprocessing.get_context("fork").Process(target=_send, args=(self._world.node.port, name, share, ready))
            for share in self._shares
        ]
        for one in sending:
            one.start()
        ready.wait()
        began = time.perf_counter()
        for one in sending:
            one.join()
        self._world.node.ask("POST", f"/{name}/_refresh")
        seconds = time.perf_counter() - began
        count = self._world.node.ask("GET", f"/{name}/_count")[1]["count"]
        assert count == self._world.books, f"{count} documents"
        self._world.node.ask("DELETE", f"/{name}")
        return self._world.books / seconds


def _requests(world: World) -> Any:
    lines: list[bytes] = []
    for key, body in world.by_hand():
        lines += [f'{{"index":{{"_id":"{key}","version":1,"version_type":"external_gte"}}}}\n'.encode(), body, b"\n"]
        if len(lines) == BULK * 3:
            yield b"".join(lines)
            lines = []
    if lines:
        yield b"".join(lines)


def _send(port: int, index: str, requests: list[bytes], ready: Any) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    ready.wait()
    for body in requests:
        connection.request("POST", f"/{index}/_bulk?filter_path=errors", body, {"Content-Type": "application/json"})
        said = json.loads(connection.getresponse().read())
        assert not said["errors"], said
