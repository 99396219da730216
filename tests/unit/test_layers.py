"""The layers, and that the order written down for people is the order that is checked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_an_import_that_goes_up_or_takes_a_driver_elsewhere_is_caught(tmp_path: Path) -> None:
    """`make lint` runs the check on the project itself; here it is shown to fail where it should."""
    shutil.copytree(ROOT / "src", tmp_path / "src")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for module, forbidden in ("model", "penstock.cli"), ("contracts", "psycopg"), ("postgres/slot", "pyspark.sql"):
        with open(tmp_path / f"src/penstock/{module}.py", "a") as source:
            source.write(f"\nimport {forbidden}\n")
    (tmp_path / "src/penstock/unlisted.py").touch()
    command = [sys.executable, "-c", "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    shown = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert shown.returncode == 1
    for finding in "model -> penstock.cli", "contracts -> psycopg", "slot -> pyspark", "- penstock.unlisted":
        assert finding in shown.stdout


def test_the_documented_order_is_the_checked_one() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    checked = " > ".join(contracts[0]["layers"]).replace("(", "").replace(")", "")
    documented = re.search(r"^    (cli > .*)$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert documented, "CONTRIBUTING.md shows the order of the layers"
    assert documented[1] == checked


def test_importing_the_package_loads_no_driver() -> None:
    heavy = "import penstock, sys; print(*{'psycopg', 'pyarrow', 'pyspark', 'numpy'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", heavy], cwd=ROOT / "src", capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == ""
