"""The layers, and that the order written down for people is the order that is checked."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[2]


def test_imports_only_go_down_and_drivers_stay_in_their_layer(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "src"))
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == 0


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
