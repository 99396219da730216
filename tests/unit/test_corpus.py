"""The fuzzer's first inputs: real messages of both majors, of each kind, of which nothing but a DecodeError comes."""

from __future__ import annotations

from pathlib import Path

from fuzz import targets
from penstock.postgres import pgoutput as pg

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus"


def inputs() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(CORPUS.iterdir())}


def test_nothing_but_a_decode_error_comes_of_the_corpus() -> None:
    """E2: an input that once was a finding is kept here."""
    for name, data in inputs().items():
        try:
            targets.run(data)
        except Exception as error:  # whatever comes is the finding; the name says of which input
            raise AssertionError(name) from error


def test_the_corpus_has_every_message_of_both_majors() -> None:
    """E1: and each is accepted, so that the fuzzer starts from what servers send."""
    for major in ("pg18", "pg16"):
        messages = {n: d[1:] for n, d in inputs().items() if n.startswith(major) and d[0] == targets.MESSAGE}
        assert {data[:1] for data in messages.values()} == {bytes([b]) for b in b"BCORYMIUDTSEcA"}
        for name, data in messages.items():
            assert pg.decode(data, streamed="streamed" in name)
