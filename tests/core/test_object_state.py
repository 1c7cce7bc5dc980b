"""The state of objects, whatever their classes say of it."""

from __future__ import annotations

import collections
import random
import types
from typing import Any, NamedTuple

import numpy as np
import pytest

from cedar.core import object_state as state


class Slotted:
    __slots__ = ("a", "b")


class Both(Slotted):
    """Has slots and a dict, and lies about both."""

    def __getattribute__(self, name: str) -> Any:
        raise AttributeError(name)


class Named(dict[str, int]):
    __slots__ = ("note",)


class Point(NamedTuple):
    x: int


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (Slotted, object), (Both, object), (Named, dict), (Point, tuple), (collections.Counter, dict),
        (collections.OrderedDict, None), (type("Own", (int,), {}), int),
        (type("Own", (np.ndarray,), {}), np.ndarray), (random.Random, None), (type(iter([])), None),
        (types.GeneratorType, None),
    ],
)  # fmt: skip
def test_what_an_instance_holds_is_known_where_sizes_add_up(kind: type, base: type | None) -> None:
    assert state.c_base(kind) is base


def test_attributes_are_found_whatever_a_class_makes_of_them() -> None:
    lying = object.__new__(Both)
    object.__setattr__(lying, "a", 1)
    object.__setattr__(lying, "c", 3)
    assert state.attributes_of(lying) == {"a": 1, "c": 3}, "a slot that is not set is left out"
    named = Named(x=1)
    vars(Named)["note"].__set__(named, 5)
    assert state.attributes_of(named) == {"note": 5}
