"""Rows of two columns of numbers."""

from __future__ import annotations

import cedar


def rows(n=100):
    return cedar.from_items([{"x": i, "y": i} for i in range(n)])
