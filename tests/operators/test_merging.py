"""Merging: operators that compute the same have equal keys."""

from __future__ import annotations

from typing import Any

import pytest

from cedar import col
from cedar.operators.columns_ops import Drop
from cedar.operators.expressions import with_columns
from cedar.operators.map import Map
from cedar.operators.merging import by_content


def f(x: int) -> int:
    return x


@pytest.mark.parametrize(
    "make",
    [lambda: Drop(("a", "b")), lambda: with_columns(x=col("a") + 1), lambda: Map(f, ("a",), "b")],
)
def test_equal_content_is_an_equal_key(make: Any) -> None:
    assert by_content(make()) == by_content(make())
    assert hash(by_content(make())) == hash(by_content(make()))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Drop(("a", "b")), Drop(("b", "a"))),
        (with_columns(x=1), with_columns(x=True)),  # equal in Python, and other columns
        (with_columns(x=col("a") + 1), with_columns(x=col("a") + 2)),
        (Map(lambda x: x, ("a",)), Map(lambda x: x, ("a",))),  # functions are themselves alone
    ],
)
def test_other_content_is_another_key(one: Any, other: Any) -> None:
    assert by_content(one) != by_content(other)


def test_fields_that_do_not_count() -> None:
    one, other = Map(f, ("a",), "b"), Map(f, ("a",), "c")
    assert by_content(one) != by_content(other)
    assert by_content(one, but=("into",)) == by_content(other, but=("into",))
