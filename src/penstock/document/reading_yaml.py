"""YAML as a tree with places.

Plain words mean what YAML 1.2 says: `true`, `false`, `null` and numbers; `yes`, `no` and dates are texts. Guarantees:
a key that occurs twice is a problem, where YAML would take the last; aliases are followed, within a bound, so that a
small file cannot grow without end. Deliberately not: merge keys, tags, several documents in a file.
"""

from __future__ import annotations

import re

import yaml

from penstock.document.reading_tree import Entry, Node, Problems
from penstock.document.schema import Place

_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_STRING = "tag:yaml.org,2002:str"
# Far more than any schema has; aliases of aliases can ask for more than there are atoms.
_MOST_NODES = 20_000
_DEEPEST = 200


def parse_yaml(text: str, file: str, problems: Problems) -> Node | None:
    """The tree of a file, or None where it is no YAML; what is wrong is noted."""
    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(file, mark.line + 1, mark.column + 1) if mark else Place(file, 1, 1)
        problems.add(place, *_explain(error))
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = Place(file, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
        problems.add(place, "a character that YAML does not allow", "remove it")
    except RecursionError:
        problems.add(Place(file, 1, 1), "the file is nested too deeply to be read", "write it flatter")
    else:
        if root is not None:
            reader = _Reader(file, problems)
            node = reader.node(root, ())
            return None if reader.endless else node
        problems.add(Place(file, 1, 1), "the file is empty", "see `penstock schema index` for what it may hold")
    return None


def _explain(error: yaml.MarkedYAMLError) -> tuple[str, str]:
    if "'\\t'" in (error.problem or ""):
        return "a tab", "YAML is indented with spaces"
    if "single document" in (error.context or "") + (error.problem or ""):
        return "a second document begins here", "a file holds one document: take the `---` away"
    return f"not valid YAML: {error.problem or error.context}", "look at the indentation, and at quotes around texts"


class _Reader:
    def __init__(self, file: str, problems: Problems) -> None:
        self._file = file
        self._problems = problems
        self._left = _MOST_NODES
        self.endless = False

    def node(self, found: yaml.Node, above: tuple[int, ...]) -> Node:
        place = Place(self._file, found.start_mark.line + 1, found.start_mark.column + 1)
        self._left -= 1
        if id(found) in above or len(above) > _DEEPEST or self._left < 0:
            if not self.endless:
                self._problems.add(place, "an alias that never ends, or too many of them", "write the value out")
            self.endless = True
            return Node(place, None)
        inside = (*above, id(found))
        if isinstance(found, yaml.ScalarNode):
            return Node(place, self._scalar(found, place))
        if isinstance(found, yaml.SequenceNode):
            return Node(place, tuple(self.node(one, inside) for one in found.value))
        return Node(place, self._entries(found, inside))

    def _entries(self, found: yaml.Node, above: tuple[int, ...]) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        for key, value in found.value:
            place = Place(self._file, key.start_mark.line + 1, key.start_mark.column + 1)
            if not isinstance(key, yaml.ScalarNode):
                self._problems.add(place, "a key that is a list or a mapping", "a key is a word")
            elif key.value == "<<" and key.style is None:
                self._problems.add(place, "`<<` merges another mapping in", "write its keys out")
            elif key.value in entries:
                first = entries[key.value].place.line
                self._problems.add(place, f"`{key.value}` is given twice, first in line {first}", "keep one of them")
            else:
                entries[key.value] = Entry(place, self.node(value, above))
        return entries

    def _scalar(self, found: yaml.ScalarNode, place: Place) -> str | int | float | bool | None:
        text: str = found.value
        if found.tag not in (_STRING, "!"):
            self._problems.add(place, f"the tag {_shown(found.tag)}", "take it away; put quotes around a text")
        if found.style is not None:
            return text
        if text in _WORDS or (text.lower() in _WORDS and text in (text.title(), text.upper())):
            return _WORDS[text.lower()]
        if _INTEGER.fullmatch(text) and len(text) <= 100:
            return int(text)
        return float(text) if _FLOAT.fullmatch(text) else text


def _shown(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")
