"""How much the tests do: ``make test`` a little of what is random or repeats itself, ``make test-long`` all of it."""

from __future__ import annotations

import os

LONG = bool(os.environ.get("CEDAR_LONG"))  # set by `make test-long`
SEED = int(os.environ.get("CEDAR_SEED", "0"))  # the first of random cases


def cases(few: int) -> int:
    """How many random cases: CEDAR_CASES of them, or ``few``."""
    return int(os.environ.get("CEDAR_CASES", few))
