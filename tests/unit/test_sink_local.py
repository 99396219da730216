"""The local sink keeps the contract of all sinks, and its file what it promises beyond."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.sinks.local import LocalSettings, LocalSink
from penstock.sinks.local_search import LocalReader
from tests.sinks.contract import Rig, SinkContract


def make(place: str) -> LocalSink:
    return LocalSink(LocalSettings("local", place))


def rig_in(folder: Path) -> Rig:
    path = str(folder / "documents.db")

    def read(name: str) -> Mapping[str, bytes]:
        with LocalReader(path) as reader:
            return dict(reader.documents(name)) if name in reader.names() else {}

    return Rig(make, path, read, bad=b'{"n": 1, "title": ')


class TestLocalSink(SinkContract):
    @pytest.fixture
    def rig(self, tmp_path: Path) -> Rig:
        return rig_in(tmp_path)
