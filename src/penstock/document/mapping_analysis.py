"""How text is cut into the terms that a search finds: the analyzers and normalizers of an index.

`text` is prose: words, without case and accents. `identifier` is code: `C-01234` is found by `c01234`, `01234` and
`C-01234` alike. An enum with `variants` gets a normalizer that turns each of them into its rank, so that sorting by
the `rank` subfield follows the order of the file. Guarantees: pure and deterministic; the same words whatever the
schema, so that a field that is added later finds its analyzer there. Deliberately not: which field uses which
(`mapping`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

TEXT = "penstock_text"
CODE = "penstock_code"
CODE_SEARCH = "penstock_code_search"
_PARTS = "penstock_code_parts"


class TextAnalysis(StrEnum):
    """Which filters fold text: those of every node, or those of the ICU plugin, which know every script."""

    BUILTIN = "builtin"
    ICU = "icu"


def analysis(kind: TextAnalysis, rankings: Iterable[tuple[str, ...]]) -> dict[str, Any]:
    """The `analysis` settings of an index whose enums have those variants."""
    icu = kind is TextAnalysis.ICU
    folding = ["icu_folding"] if icu else ["lowercase", "asciifolding"]
    found: dict[str, Any] = {
        "filter": {
            _PARTS: {
                "type": "word_delimiter_graph",
                "preserve_original": True,
                "catenate_all": True,
                "stem_english_possessive": False,
            }
        },
        "analyzer": {
            TEXT: _custom("icu_tokenizer" if icu else "standard", folding),
            # Parts of a code stand at the same place as the whole. An index holds no such graph, a query may.
            CODE: _custom("whitespace", [_PARTS, "flatten_graph", *folding]),
            CODE_SEARCH: _custom("whitespace", [_PARTS, *folding]),
        },
    }
    ranked = sorted(set(rankings))
    if ranked:
        found["char_filter"] = {name: made for variants in ranked for name, made in _replacements(variants)}
        found["normalizer"] = {
            rank_normalizer(variants): {"type": "custom", "char_filter": [name for name, _ in _replacements(variants)]}
            for variants in ranked
        }
    return found


def rank_normalizer(variants: tuple[str, ...]) -> str:
    """The name of the normalizer for these variants in this order."""
    return f"penstock_rank_{hashlib.sha256(repr(variants).encode()).hexdigest()[:12]}"


def _custom(tokenizer: str, filters: list[str]) -> dict[str, Any]:
    return {"type": "custom", "tokenizer": tokenizer, "filter": filters}


def _replacements(variants: tuple[str, ...]) -> Iterable[tuple[str, dict[str, Any]]]:
    """One filter for each variant: the whole value becomes its rank, as digits that sort as numbers do.

    A rank starts with a space, so that no later filter takes it for a variant, and so that what is no variant, and
    stays as it is, sorts after all of them.
    """
    width = len(str(len(variants)))
    for rank, variant in enumerate(variants):
        name = f"{rank_normalizer(variants)}_{rank:0{width}}"
        yield name, {"type": "pattern_replace", "pattern": f"^{_java(variant)}$", "replacement": f" {rank:0{width}}"}


def _java(text: str) -> str:
    """A text as a pattern of java.util.regex that matches itself only."""
    return re.sub(r"([^\w\s])", r"\\\1", text)
