"""A proposed schema as a `*.schema.yml`, with comments.

Guarantees: what is written reads back as the same schema, whatever the tables and columns are called; what was left out
stands as a comment where it would stand. Deliberately not: schemas in general; only what a proposal holds is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from penstock.document.proposal import Keys, Proposal
from penstock.document.reading_names import fold, is_name
from penstock.document.schema import AnyOf, Columns, Comparison, Field, Filter, Geo, Join, JoinKind, Scalar
from penstock.model import QualifiedTable, quote, visible

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
# Words that some reader of YAML takes for something else than a text.
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def schema_text(proposal: Proposal) -> str:
    """The file."""
    schema = proposal.schema
    lines = [
        f"# One document for each row of {visible(str(schema.table))}.",
        "# Proposed by penstock init from columns and foreign keys; change it as you like, and ask penstock check.",
        "version: 1",
        f"table: {scalar(spelled(schema.table.name))}",
    ]
    if schema.table.schema != "public":
        lines.append(f"schema: {scalar(spelled(schema.table.schema))}")
    if schema.primary_key:
        lines.append(f"primary_key: {_listed(schema.primary_key)}")
    if schema.soft_delete:
        column = schema.soft_delete.column
        lines += ["", f"# A row that {visible(column)} marks as deleted has no document."]
        lines += ["soft_delete:", f"  column: {scalar(spelled(column))}"]
    writer = _Writer(schema.table, proposal.remarks)
    return "\n".join([*lines, "", "fields:", *writer.fields(schema.fields, (), schema.table)]) + "\n"


def scalar(text: str) -> str:
    """A text as YAML takes it for one."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return "\\" + letter
    return letter if letter.isprintable() else f"\\U{ord(letter):08X}"


def spelled(name: str) -> str:
    """A name of the catalog as SQL spells it: in quotes where it would not be read as it is."""
    return name if is_name(name) and fold(name) == name else quote(name)


class _Writer:
    """Writes the fields of one document."""

    def __init__(self, table: QualifiedTable, remarks: Mapping[Keys, tuple[str, ...]]) -> None:
        self._table = table
        self._remarks = remarks

    def fields(self, fields: tuple[Field, ...], keys: Keys, above: QualifiedTable) -> Iterator[str]:
        indent = "  " + "    " * len(keys)
        for one in fields:
            if isinstance(one, Scalar | Geo):
                yield from (indent + line for line in _plain(one))
        for remark in self._remarks.get(keys, ()):
            yield f"{indent}# Left out: {visible(remark)}."
        for one in fields:
            if isinstance(one, Join):
                yield from self._join(one, keys, above, indent)

    def _join(self, one: Join, keys: Keys, above: QualifiedTable, indent: str) -> Iterator[str]:
        if not keys:
            yield ""
        yield f"{indent}- {one.kind}: {scalar(one.key)}"
        yield from (f"{indent}  {line}" for line in _link(one, above))
        if one.required:
            yield f"{indent}  required: true"
        if one.filters:
            yield f"{indent}  filters:"
            yield from (f"{indent}    - {_filter(each)}" for each in one.filters)
        yield f"{indent}  fields:"
        yield from self.fields(one.fields, (*keys, one.key), one.table)


def _plain(one: Scalar | Geo) -> Iterator[str]:
    word = "geo" if isinstance(one, Geo) else one.type
    yield f"- {word}: {scalar(one.key)}"
    if isinstance(one, Geo) or not is_name(one.key) or fold(one.key) != one.column:
        yield f"  column: {scalar(spelled(one.column))}"
    if one.required:
        yield "  required: true"


def _link(one: Join, above: QualifiedTable) -> Iterator[str]:
    yield f"table: {_table(one.table, above.schema)}"
    if one.primary_key:
        yield f"primary_key: {_listed(one.primary_key)}"
    if one.kind is JoinKind.BELONGS_TO:
        yield f"column: {_listed(one.column)}"
    elif one.through:
        yield "through:"
        yield f"  table: {_table(one.through.table, one.table.schema)}"
        yield f"  left_key: {_listed(one.through.left_key)}"
        yield f"  right_key: {_listed(one.through.right_key)}"
    else:
        yield f"foreign_key: {_listed(one.foreign_key)}"


def _table(table: QualifiedTable, schema: str) -> str:
    """With its schema only where that is not the one of the table above."""
    name = spelled(table.name)
    return scalar(name if table.schema == schema else f"{spelled(table.schema)}.{name}")


def _listed(columns: Columns) -> str:
    names = [scalar(spelled(name)) for name in columns]
    return names[0] if len(names) == 1 else f"[{', '.join(names)}]"


def _filter(one: Filter) -> str:
    if isinstance(one, AnyOf):
        return f"{{ any: [{', '.join(map(_filter, one.filters))}] }}"
    assert isinstance(one, Comparison)  # no other is proposed
    value = f", value: {str(one.values[0]).lower()}" if one.values else ""
    return f"{{ column: {scalar(spelled(one.column))}, op: {one.op}{value} }}"
