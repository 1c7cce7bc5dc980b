"""Functions that fail on some rows."""

from __future__ import annotations


def fails_on(*bad):
    def picky(x):
        if x in bad:
            raise ValueError(f"no {x}")
        return x

    return picky
