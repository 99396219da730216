"""A sink whose files were put back from a copy that was made before: what it remembers of itself came with them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.app.prepared import Prepared
from penstock.engine.lineage import Lineage
from penstock.errors import UnavailableError
from tests.fixtures.stepped import MORE, Stepped, apply


@pytest.mark.parametrize("ends", ["in order", "as by kill -9"])
@pytest.mark.parametrize("sink", ["local", "lake", "history"])
def test_a_sink_that_was_put_back_from_a_copy_is_seeded_anew(
    stepped: Stepped, monkeypatch: pytest.MonkeyPatch, sink: str, ends: str
) -> None:
    """E85: its files come with all that it remembers; a copy from before the last start is told, and one that was made
    while a run that ended in order was at work."""
    file = stepped.folder / "penstock.toml"
    file.write_text(file.read_text().replace("[[index]]", f"{MORE}[[index]]"))
    place = {"local": "local.db*"}.get(sink, sink)
    running, aside = stepped.start(), stepped.folder / "aside"
    if ends == "as by kill -9":
        stepped.stop()
    for one in stepped.folder.glob(place):
        copy(one, aside / one.name)
    if ends == "as by kill -9":
        running = stepped.start()
        monkeypatch.setattr(Prepared, "_stamp", lambda *_: None)
    apply(running, *stepped.committed("DELETE FROM person WHERE id = 8", "public.person", "update", "8"))
    stepped.stop()
    monkeypatch.undo()
    for one in stepped.folder.glob(place):
        shutil.rmtree(one) if one.is_dir() else one.unlink()
    for one in aside.iterdir():
        copy(one, stepped.folder / one.name)
    running = stepped.start(seeded=False)
    assert running.plan.seeds["people"] == (sink,)
    stepped.seed(running)
    stepped.judge()
    stepped.stop()
    assert not any(stepped.start(seeded=False).plan.seeds.values()), "what is there is believed"


def copy(one: Path, to: Path) -> None:
    """A file or a folder, as it is now."""
    to.parent.mkdir(exist_ok=True)
    (shutil.copytree if one.is_dir() else shutil.copy)(one, to)


def test_a_start_that_is_broken_off_makes_nobody_mistrust_a_sink(
    stepped: Stepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E85: what a sink is given as its stamp is noted down before and after; starts may end in between."""
    file = stepped.folder / "penstock.toml"
    file.write_text(file.read_text().replace("[[index]]", f"{MORE}[[index]]"))
    stepped.start()
    stepped.stop()

    def ends(*_: Any) -> None:
        raise UnavailableError("it ends")

    for before in ("coming_stamp", "note_stamped", "note_stamped"):
        with monkeypatch.context() as broken:
            broken.setattr(Lineage, before, ends)
            with pytest.raises(UnavailableError, match="it ends"):
                stepped.prepare()
    assert not any(stepped.start(seeded=False).plan.seeds.values())


def test_a_start_that_is_refused_does_not_make_a_copy_current(
    stepped: Stepped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E85: it is told by the next one."""
    stepped.start()
    stepped.stop()
    copy(stepped.folder / "local.db", stepped.folder / "aside" / "local.db")
    stepped.start(seeded=False)
    stepped.stop()
    copy(stepped.folder / "aside" / "local.db", stepped.folder / "local.db")

    def refused(_: Any) -> None:
        raise UnavailableError("not now")

    with monkeypatch.context() as broken, pytest.raises(UnavailableError, match="not now"):
        broken.setattr("penstock.app.running.check_versions", refused)
        stepped.prepare()
    assert stepped.start(seeded=False).plan.seeds["people"] == ("local",)
