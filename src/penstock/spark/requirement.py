"""Whether the Spark part of Penstock can run here: PySpark is installed, and of a version that Penstock knows.

Guarantees: the answer is an error with the install line, never an ImportError from deep inside. Deliberately not:
looking for Java (`java`), which a Spark Connect client does without.
"""

from __future__ import annotations

import re

from penstock.errors import ConfigError, MissingExtraError

# 4.1 has no read limits and no Trigger.AvailableNow for Python sources; 4.4 is not out, and so not tried.
SUPPORTED = ((4, 2), (4, 3))
INSTALL = 'Run: pip install "penstock[spark]"'


def require_pyspark() -> str:
    """PySpark's version; an error where there is none, or one that Penstock was not tried on."""
    try:
        from pyspark.version import __version__
    except ImportError as error:
        raise MissingExtraError("PySpark is not installed", hint=INSTALL) from error
    return check_version(__version__)


def check_version(version: str) -> str:
    """The version itself, if it is one of 4.2 to 4.3."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) not in SUPPORTED:
        raise ConfigError(f"PySpark {version} is installed; Penstock runs on 4.2 and 4.3", hint=INSTALL)
    return version
