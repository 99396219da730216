"""The judgement on long runs: what leaks is seen, what breathes is not."""

from __future__ import annotations

import mmap
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.fixtures.attaching import resident_mb
from tests.fixtures.flatness import MB, Figure, Sample, figures, measure, supersedes, table

SAMPLES = 24


def judged(leak: Callable[[], object]) -> dict[str, Figure]:
    """The figures of this process while it leaks something before each sample."""
    itself = psutil.Process()
    samples: list[tuple[float, Sample]] = []
    for number in range(SAMPLES):
        leak()
        samples.append((number, measure("this", [itself])))
    return {one.name: one for one in figures(samples, SAMPLES)}


def test_what_does_not_leak_is_flat() -> None:
    """The same process, measured the same way."""
    found = judged(lambda: None)
    assert all(one.is_flat for one in found.values()), table([*found.values()])


def test_a_leaked_list_is_seen() -> None:
    """Two megabytes each time, written to."""
    kept: list[mmap.mmap] = []  # the kernel's own pages: those that malloc kept from a test before would hide a leak

    def leak() -> None:
        kept.append(mmap.mmap(-1, 2 * MB))
        kept[-1].write(os.urandom(2 * MB))

    found = judged(leak)
    for one in kept:
        one.close()
    assert not found["this memory"].is_flat
    assert "GROWS" in table([found["this memory"]])
    assert found["this descriptors"].is_flat


@contextmanager
def descriptors() -> Iterator[Callable[[], None]]:
    kept: list[int] = []
    try:
        yield lambda: kept.append(os.open(os.devnull, os.O_RDONLY))
    finally:
        for one in kept:
            os.close(one)


def test_leaked_descriptors_and_threads_are_seen() -> None:
    """One each time."""
    with descriptors() as leak:
        assert not judged(leak)["this descriptors"].is_flat
    ended = threading.Event()
    kept: list[threading.Thread] = []

    def leak_thread() -> None:
        kept.append(threading.Thread(target=ended.wait))
        kept[-1].start()

    try:
        assert not judged(leak_thread)["this threads"].is_flat
    finally:
        ended.set()
        for one in kept:
            one.join()


@pytest.mark.parametrize("name", ["run memory", "run descriptors", "state", "retained wal"])
def test_peaks_do_not_hide_a_leak_and_are_none(name: str) -> None:
    """A sixth of the samples is three times as high; without a leak it is flat, with one it is not."""
    chance = random.Random(7)
    peaks = [3.0 if chance.random() < 1 / 6 else 1.0 for _ in range(360)]
    healthy = [(10.0 * n, {name: 100 * peak + chance.uniform(-2, 2)}) for n, peak in enumerate(peaks)]
    (figure,) = figures(healthy, 3600)
    assert figure.is_flat, table([figure])
    leaking = [(at, {name: sample[name] + 0.6 * at / 10}) for at, sample in healthy]
    (figure,) = figures(leaking, 3600)
    assert not figure.is_flat, table([figure])


def test_processes_that_are_gone_hold_nothing() -> None:
    """A worker may end between two looks."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    gone = psutil.Process(child.pid)
    child.wait()
    assert set(measure("gone", [gone]).values()) == {0.0}


@pytest.mark.parametrize(
    ("minutes", "newer", "kept"),
    [(60, False, False), (61, False, False), (59, False, True), (30, True, False), (29, True, True)],
)
def test_a_kept_result_gives_way_to_as_long_a_run_or_to_half_an_hour_of_newer_code(
    minutes: float, newer: bool, kept: bool
) -> None:
    """And its first line is what tells."""
    result = "2026-11-16, commit abc1234, for 60 minutes: flat\n"
    assert supersedes(result, minutes, lambda commit: newer and commit == "abc1234") is not kept


def test_memory_is_told_by_its_addresses() -> None:
    everything = resident_mb(os.getpid(), range(1 << 64))
    assert everything == pytest.approx(measure("own", [psutil.Process()])["own memory"], abs=10)
    assert resident_mb(os.getpid(), range(0)) == 0
