"""The wheel is the product: what lies in it, and that it works where nothing else of the tree is.

`make wheel` builds one into `dist/` and names it by `PENSTOCK_WHEEL`; otherwise the tests build their own. The quick
test shares the packages of the tests' own environment by the name of their folder alone, by which no editable install
is found: Penstock itself is the wheel's. The long one has pip install everything into an empty environment.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.programs import ROOT

SOURCE = ROOT / "src"
PACKAGES = ("penstock", "pyspark_penstock")
ASTRAY = ("PYTHON", "PIP_", "PG", "PENSTOCK_", "DEMO_", "SPARK_", "VIRTUAL_ENV")


class Installed:
    """An environment of its own outside the tree, with an empty folder to be in and an empty home."""

    def __init__(self, folder: Path) -> None:
        self.environment, self.here, self.home, self.tmp = (folder / name for name in ("env", "here", "home", "tmp"))
        for one in (self.here, self.home, self.tmp):
            one.mkdir()

    def run(self, program: str, *arguments: str, timeout_s: float = 100) -> str:
        """What one of its programs prints, when it ended well."""
        given = {name: value for name, value in os.environ.items() if not name.startswith(ASTRAY)}
        given |= {"HOME": str(self.home), "TMPDIR": str(self.tmp)}
        command = [str(self.environment / "bin" / program), *arguments]
        done = subprocess.run(
            command, cwd=self.here, env=given, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def imported(self) -> set[Path]:
        """Where it finds the packages."""
        program = f"import {', '.join(PACKAGES)}; print(*(one.__file__ for one in ({', '.join(PACKAGES)})))"
        return {Path(one) for one in self.run("python", "-I", "-c", program).split()}

    def left(self) -> list[str]:
        """What programs have left in its folders."""
        return [str(path) for one in (self.here, self.home, self.tmp) for path in one.rglob("*")]


@pytest.fixture
def installed() -> Iterator[Installed]:
    """An environment to be made. As root, Postgres runs as another user, who has to reach its temporary files."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        yield Installed(Path(folder))


@pytest.fixture(scope="module")
def wheel() -> Iterator[Path]:
    """The wheel, that of `make wheel` or one that is built now."""
    if given := os.environ.get("PENSTOCK_WHEEL"):
        yield (ROOT / given).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
        done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        (built,) = Path(folder).glob("*.whl")
        yield built


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    """Every file of both packages as it stands in the tree: page, SQL, schemas, `py.typed`; no tests, no docs."""
    with zipfile.ZipFile(wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
        (about,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    paths = [path for name in PACKAGES for path in (SOURCE / name).rglob("*") if path.is_file()]
    tree = {path.relative_to(SOURCE).as_posix(): path for path in paths if "__pycache__" not in path.parts}
    assert packed.keys() == tree.keys()
    assert not [name for name, path in tree.items() if packed[name] != path.read_bytes()]
    assert {Path(name).suffix for name in packed} >= {".py", ".sql", ".yml", ".toml", ".html", ".js", ".css", ".typed"}
    for extra in ("spark", "delta", "demo"):
        assert f"Provides-Extra: {extra}\n" in about


def test_the_wheel_alone_answers(wheel: Path, installed: Installed) -> None:
    """Its command line and its page's files are those of its own environment; nothing is left where it ran."""
    venv.create(installed.environment)
    (packages,) = installed.environment.glob("lib/python*/site-packages")
    install = [sys.executable, "-m", "pip", "--quiet", "--python", str(installed.environment / "bin" / "python")]
    subprocess.run([*install, "install", "--no-deps", "--no-index", str(wheel)], check=True, timeout=100)
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    assert installed.imported() == {packages / name / "__init__.py" for name in PACKAGES}
    version = re.search(r'__version__ = "(.+)"', (SOURCE / "penstock" / "__init__.py").read_text())
    assert version
    assert version[1] in installed.run("penstock", "--version")
    shop = packages / "penstock" / "demo" / "shop" / "penstock.toml"
    assert "products" in installed.run("penstock", "check", "--offline", "--config", str(shop))
    assert installed.left() == []


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_demo_runs_from_the_wheel_in_an_empty_environment(wheel: Path, installed: Installed) -> None:
    """Installed by pip with its extra, from the registry; run in an empty folder with an empty home."""
    venv.create(installed.environment, with_pip=True)
    (packages,) = installed.environment.glob("lib/python*/site-packages")
    python = str(installed.environment / "bin" / "python")
    wanted = [f"{wheel}[demo]", "--constraint", str(ROOT / "constraints.txt")]
    install = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", *wanted]
    subprocess.run(install, check=True, timeout=900, cwd=installed.here)
    assert installed.imported() == {packages / name / "__init__.py" for name in PACKAGES}
    said = installed.run("penstock", "demo", "--seconds", "30", timeout_s=240)
    print(said)
    assert re.search(r"^Equal: ", said, re.MULTILINE)
    assert installed.left() == []
