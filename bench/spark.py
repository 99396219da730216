"""Everything that is measured on Spark: the stream's latency and backlog, the snapshot beside JDBC and COPY.

    python bench/spark.py [--rows 2000000] [--rounds 3]

Each part is a program of its own beside this one, which says how it measures, and runs in a process of its own. The
last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

PARTS = ("spark_stream.py", "spark_snapshot.py")


def measured(part: str, *arguments: str) -> dict[str, float]:
    """What the last line of a part says; the lines before it, its table for people, are passed on."""
    command = [sys.executable, str(Path(__file__).parent / part), *arguments]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    print("\n".join(lines[:-1]), file=sys.stderr, flush=True)
    return dict(json.loads(lines[-1]))


def main() -> None:
    """Run every part and print one line for machines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="2000000", help="rows of the backlog and of the table")
    parser.add_argument("--rounds", default="3")
    options = parser.parse_args()
    found: dict[str, float] = {}
    for part in PARTS:
        found |= measured(part, "--rows", options.rows, "--rounds", options.rounds)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
