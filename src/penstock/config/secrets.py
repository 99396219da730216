"""Values that nobody but the process that connects may see: URLs, passwords, keys.

A secret stands in a file as a text, or as `{ env = "NAME" }`. `resolve` looks where the file says, in this order: the
variable that the file names (unset is an error), the variable reserved for it (`DATABASE_URL`), the text itself.

Guarantees: `repr`, `str` and formatting show where the value comes from, never the value; a secret that is a text in
the file does not pickle, so that it reaches no Spark plan; two are equal when they would resolve alike. Deliberately
not: keeping what was resolved.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from penstock.document.schema import NOWHERE, Place
from penstock.errors import ConfigError

_SECRET_OPTION = re.compile(r"key|secret|token|password|sas|credential", re.IGNORECASE)


class Secret:
    """Where a secret value comes from. `label` is its key in the file, `reserved` the variable that also gives it.

    No dataclass: `asdict` would spell the value out.
    """

    __slots__ = ("_literal", "env", "label", "place", "reserved")

    def __init__(
        self, label: str, *, literal: str | None = None, env: str = "", reserved: str = "", place: Place = NOWHERE
    ) -> None:
        self.label = label
        self.env = env
        self.reserved = reserved
        self.place = place
        self._literal = literal

    @property
    def is_literal(self) -> bool:
        """The value itself stands in the file."""
        return self._literal is not None

    @property
    def holds_password(self) -> bool:
        """The value stands in the file and is secret: a URL only where there is a password in it."""
        if self._literal is None:
            return False
        group, _, key = self.label.rpartition(".")
        if key in ("url", "connection_url"):
            return has_password(self._literal)
        return key != "username" and (not group.endswith("storage_options") or bool(_SECRET_OPTION.search(key)))

    @property
    def open_text(self) -> str | None:
        """The value where it stands in the file and is fit to be shown and stored."""
        return None if self.holds_password else self._literal

    @property
    def variable(self) -> str:
        """The variable to use in place of a text in the file."""
        return self.env or self.reserved or re.sub(r"\W", "_", self.label).upper()

    def resolve(self, environ: Mapping[str, str] | None = None) -> str | None:
        """The value, or None where nothing gives one. A variable that the file names must be set."""
        variables = os.environ if environ is None else environ
        if self.env:
            if self.env not in variables:
                raise ConfigError(
                    f"{self._where()}{self.label} is to come from the variable {self.env}, which is not set",
                    hint=f"Set {self.env}, or name another variable.",
                )
            return variables[self.env]
        if self.reserved and variables.get(self.reserved):
            return variables[self.reserved]
        return self._literal

    def require(self, environ: Mapping[str, str] | None = None) -> str:
        """The value; an error where nothing gives one."""
        found = self.resolve(environ)
        if not found:
            raise ConfigError(
                f"{self._where()}{self.label} is not given",
                hint=f"Set the variable {self.variable}, or write {self.label.rpartition('.')[2]} = "
                f'{{ env = "NAME" }} into the file.',
            )
        return found

    def _where(self) -> str:
        return f"{self.place}: " if self.place != NOWHERE else ""

    def _source(self) -> str:
        if self.env:
            return f"from the variable {self.env}"
        also = f", unless {self.reserved} is set" if self.reserved else ""
        return ("in the file" if self.is_literal else "not given") + also

    def __repr__(self) -> str:
        return f"Secret({self.label}, {self._source()})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._state() == other._state()

    def __hash__(self) -> int:
        return hash(self._state())

    def _state(self) -> tuple[str, str, str, str | None]:
        return self.label, self.env, self.reserved, self._literal

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self.holds_password:
            raise ConfigError(
                f"{self._where()}{self.label} stands in the file and does not leave this process",
                hint=f'Write {{ env = "{self.variable}" }}, and set that variable where the work is done.',
            )
        return _rebuild, (self.label, self._literal, self.env, self.reserved, self.place)


def _rebuild(label: str, literal: str | None, env: str, reserved: str, place: Place) -> Secret:
    return Secret(label, literal=literal, env=env, reserved=reserved, place=place)


def has_password(url: str) -> bool:
    """Whether a URL, or libpq's keyword string, holds a password."""
    return bool(re.search(r"://[^/?#]*:[^/?#]*@|\b(?:ssl)?password\s*=", url, re.IGNORECASE))
