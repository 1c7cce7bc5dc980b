"""What the tests of checks run: a pipeline of numbers."""

from __future__ import annotations

import cedar

HERE = ("inline", "threads")


def numbers(n: int = 60) -> cedar.Pipeline:
    return cedar.from_items([{"x": i} for i in range(n)])
