"""Coverage-guided fuzzing of the decoders: `FUZZ_SECONDS=300 python fuzz/decoder.py`, or `make fuzz`.

Starts from the inputs in fuzz/corpus, messages that real servers sent, and looks for one that makes anything but a
DecodeError. A finding is written to a file in the working folder and ends the run with a failure; to try such a file
again, name it: `python fuzz/decoder.py crash-…`. Inputs found on the way are kept in a temporary folder and thrown
away. Where atheris is not to be had, inputs are changed at random, without coverage to guide it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "fuzz" / "corpus"
SECONDS = int(os.environ.get("FUZZ_SECONDS", "300"))
_INSIDE = "--inside"

sys.path[:0] = [str(ROOT), str(ROOT / "src")]


def main(arguments: list[str]) -> int:
    """Fuzz, or try the named files."""
    if arguments and arguments[0] == _INSIDE:
        _fuzz(arguments[1])
    if arguments:
        return _replay([Path(name) for name in arguments])
    seeds = sorted(CORPUS.iterdir())
    if not seeds:
        print(f"no inputs in {CORPUS}; python fuzz/record.py makes them")
        return 1
    if importlib.util.find_spec("atheris") is None:
        return _change_at_random(seeds)
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as found:
        done = subprocess.run(
            [sys.executable, __file__, _INSIDE, found], stderr=subprocess.PIPE, text=True, errors="replace", check=False
        )
    return _report(done)


def _report(done: subprocess.CompletedProcess[str]) -> int:
    stats = dict(
        line.removeprefix("stat::").split(":") for line in done.stderr.splitlines() if line.startswith("stat::")
    )
    tried = int(stats.get("number_of_executed_units", "0"))
    if done.returncode == 0 and tried:
        print(f"{tried:,} inputs tried in {SECONDS} s, {int(stats['new_units_added']):,} of them new to the coverage")
        return 0
    print(done.stderr)
    for line in done.stderr.splitlines():
        if "Test unit written to" in line:
            print(f"a finding after {tried:,} inputs; try it again with: python fuzz/decoder.py {line.split()[-1]}")
    return done.returncode or 1


def _fuzz(found: str) -> None:
    import atheris

    with atheris.instrument_imports(include=["penstock.postgres"]):
        from fuzz import targets

    options = [f"-max_total_time={SECONDS}", "-timeout=10", "-rss_limit_mb=2048", "-max_len=4096", "-verbosity=0"]
    options += ["-print_final_stats=1", f"-dict={ROOT / 'fuzz' / 'decoder.dict'}"]
    atheris.Setup([sys.argv[0], *options, found, str(CORPUS)], targets.run)
    atheris.Fuzz()


def _change_at_random(seeds: list[Path]) -> int:
    from fuzz import targets

    rng = random.Random(seed := random.SystemRandom().getrandbits(32))
    print(f"atheris is not installed: inputs are changed at random (seed {seed})")
    inputs, deadline, tried = [path.read_bytes() for path in seeds], time.monotonic() + SECONDS, 0
    while time.monotonic() < deadline:
        data = bytearray(rng.choice(inputs))
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(data) or 1)
            data[place : place + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 2))
        tried += 1
        try:
            targets.run(bytes(data))
        except Exception:  # noqa: BLE001 - whatever comes is the finding
            path = Path(f"crash-{hashlib.sha1(data).hexdigest()}")
            path.write_bytes(data)
            traceback.print_exc()
            print(f"a finding after {tried:,} inputs; try it again with: python fuzz/decoder.py {path}")
            return 1
    print(f"{tried:,} inputs tried in {SECONDS} s")
    return 0


def _replay(paths: list[Path]) -> int:
    from fuzz import targets

    for path in paths:
        targets.run(path.read_bytes())
        print(f"{path}: nothing but a DecodeError comes of it")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
