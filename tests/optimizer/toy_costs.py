"""A filter below two maps, and what they cost."""

from __future__ import annotations

import cedar
from cedar import col
from tests.optimizer.toy_profiles import figures

ROWS = [{"a": 1, "b": 2.0, "c": "x"}]


def first(x):
    return x


def second(x):
    return x


def two_maps():
    return cedar.from_items(ROWS).filter(col("b") > 1).map(first, "a").map(second, "b").node


def measured(**more):
    found = {
        0: figures(1e-6, columns={"a": 8.0, "b": 8.0, "c": 100.0}),
        1: figures(2e-6, keep=0.25),
        2: figures(40e-6, gil=0.5, columns={"a": 8.0}),
        3: figures(10e-6, gil=1.0, columns={"b": 8.0}),
    }
    return found | {int(key[1:]): value for key, value in more.items()}
