"""The sample shop's deployment at work: its files in a folder of their own, and `penstock run` as a process.

It is the product as a user runs it, so that `penstock search` and `penstock status` work beside it. Guarantees: after
`close` neither the process nor one of its children nor the folder is there; Ctrl-C in the terminal does not reach it,
because it has to go on until everything is written. Deliberately not: what it does with the changes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.app.watching import page_link
from penstock.demo.sample import INDEXES, write_deployment
from penstock.engine.state import State
from penstock.errors import OperatorError, PenstockError
from penstock.ops.control import ask

_COMMAND = (sys.executable, "-c", "from penstock.cli.main import main; main()", "run", "--log-level", "warning")
# Variables of the caller that are meant for another server, another deployment or another Spark.
_NOT_OURS = ("PG", "PENSTOCK_", "SPARK_REMOTE")
# Another deployment on this machine may have the usual ones.
_ANY_PORT = '\n[server]\npublic_address = "127.0.0.1:0"\nprivate_address = "127.0.0.1:0"\n'
_STOP_S = 60.0
_LAST_WORDS = 5


class Deployment:
    """One folder, and at most one process. `close` it."""

    def __init__(self, url: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
        self.store = self.folder / "search.db"
        self._state = self.folder / ".penstock"
        self._log = self.folder / "run.log"
        self._url = url
        self._process: subprocess.Popen[bytes] | None = None
        write_deployment(self.folder)
        with open(self.folder / "penstock.toml", "a") as file:
            file.write(_ANY_PORT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Start `penstock run`."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_OURS)}
        temporary = self.folder / "t"  # a short name: sockets lie below
        temporary.mkdir()
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [*_COMMAND, "--config", str(self.folder)],
                env={**own, "DATABASE_URL": self._url, "TMPDIR": str(temporary)},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def require_running(self) -> None:
        """Raise with its last words where it has ended by itself."""
        if self._process and self._process.poll() is not None:
            raise OperatorError(f"penstock run ended with exit code {self._process.returncode}: {self.last_words()}")

    def last_words(self) -> str:
        """The end of its log."""
        return " ".join(self._log.read_text(errors="replace").split("\n")[-_LAST_WORDS - 1 :]).strip()

    def status(self) -> dict[str, Any] | None:
        """What `penstock status` shows; None while there is nobody to ask, or no answer in time."""
        try:
            told: dict[str, Any] = ask(self._state, "status")
            return told
        except PenstockError:
            return None

    def page_link(self, shown: str = "") -> str:
        """A link into its page, for one browser: the one that is `shown` while it is good; empty: there is none."""
        told = self.status()
        try:
            return page_link(self._state, told["page"], shown) if told and told["page"] else ""
        except PenstockError:
            return ""

    def is_seeded(self) -> bool:
        """Whether no index has a seed to do. A seed is noted down before the batch that asks for it counts as done."""
        state = State(self._state)
        try:
            return not any(state.seed(index) for index in INDEXES)
        finally:
            state.close()

    def stop(self) -> int:
        """Ask it to end in good order; its exit code, -9 where it did not."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            return self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL

    def close(self) -> None:
        """End whatever still runs, and remove the folder. Any number of times."""
        if self._process:
            with suppress(ProcessLookupError, PermissionError):  # nobody is left in its group
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
