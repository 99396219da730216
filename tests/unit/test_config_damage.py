"""Good files with one part replaced by junk: read or refused, never a crash, and never at odds with the JSON Schema."""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path
from random import Random
from typing import Any

from penstock.config import words
from penstock.config.assembly import deployment_of
from penstock.document import reading_words
from penstock.document.reading import FileErrors, schema_of
from penstock.document.reading_shapes import BAD
from penstock.document.reading_tree import Problems
from penstock.document.reading_yaml import parse_yaml
from tests.unit.json_schemas import fits

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
JUNK: list[Any] = [
    None, True, 0, -1, 1, 2.5, "", "x", "a b", "x.y", '"Q"', "eq", "asc", "env", [], ["x"], ["x", "x"], [[]], [None],
    {}, {"x": 1}, {"env": "X"}, {"column": "x"}, {"raw": "x"}, [{"long": "x"}], [{"column": "x", "op": "is_null"}],
]  # fmt: skip
ROUNDS = 100


def parts(data: Any) -> list[tuple[Any, Any]]:
    """Every (container, key or index) inside the data."""
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [(data, key) for key, _ in inside] + [one for _, value in inside for one in parts(value)]


def damaged(data: Any, rng: Random) -> Any:
    """A copy with one part replaced, taken away, renamed or doubled."""
    data = copy.deepcopy(data)
    container, key = rng.choice(parts(data))
    what = rng.randrange(4)
    if what == 0 or (what > 1 and isinstance(container, list)):
        container[key] = copy.deepcopy(rng.choice(JUNK))
    elif what == 1:
        del container[key]
    elif what == 2:
        container[rng.choice(["x", "table", "column", "keyword", "count", "filters"])] = container.pop(key)
    else:
        container[rng.choice(["limit", "through", "fields", "required", "type", "path"])] = rng.choice(JUNK)
    return data


def test_a_damaged_schema_file_is_read_or_refused(rng: Random) -> None:
    good = []
    for file in [*EXAMPLES.glob("*/*.schema.yml"), *(HERE / "flusso_style").glob("*.schema.yml")]:
        node = parse_yaml(file.read_text(), file.name, Problems())
        assert node
        good.append(node.plain())
    outcomes = {True: 0, False: 0}
    for _ in range(ROUNDS):
        data = damaged(rng.choice(good), rng)
        problems = Problems()
        node = parse_yaml(json.dumps(data), "f", problems)
        schema = schema_of(node, "any", problems) if node else None
        accepted = not problems.found
        assert not accepted or (schema and fits(data, reading_words.json_schema(), reading_words.json_schema())), data
        outcomes[accepted] += 1
    assert min(outcomes.values()) > ROUNDS / 20, outcomes


def test_a_damaged_deployment_is_read_or_refused(rng: Random) -> None:
    files = [*EXAMPLES.glob("*/*.toml"), HERE / "flusso_style" / "flusso.toml"]
    good = [(file, tomllib.loads(file.read_text())) for file in files]
    outcomes = {True: 0, False: 0}
    for _ in range(ROUNDS // 2):
        file, data = rng.choice(good)
        data = damaged(data, rng)
        problems = Problems()
        node = parse_yaml(json.dumps(data), "f", problems)
        assert node
        found = words.DEPLOYMENT.read(node, "the file", problems)
        made = deployment_of(found, str(file.parent), problems) if found is not BAD else None
        accepted = not problems.found
        assert not accepted or (made and fits(data, words.json_schema(), words.json_schema())), data
        outcomes[accepted] += 1
    assert min(outcomes.values()) > ROUNDS / 40, outcomes


def test_problems_raise_once_and_in_order() -> None:
    problems = Problems()
    parse_yaml("b: 1\nb: 2\na: 1\na: 2\n", "f", problems)
    problems.found.reverse()
    problems.found *= 2
    try:
        problems.raise_any()
    except FileErrors as error:
        assert [one.place.line for one in error.problems] == [2, 4]
    else:
        raise AssertionError("nothing was raised")
