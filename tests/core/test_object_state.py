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
        (collections.OrderedDict, collections.OrderedDict), (type("Own", (int,), {}), int),
        (type("Own", (np.ndarray,), {}), np.ndarray), (random.Random, None), (type(iter([])), None),
        (types.GeneratorType, None),
    ],
)  # fmt: skip
def test_what_an_instance_holds_is_known_where_sizes_add_up(kind: type, base: type | None) -> None:
    assert state.base_of(kind) is base


def test_attributes_are_found_whatever_a_class_makes_of_them() -> None:
    lying = object.__new__(Both)
    object.__setattr__(lying, "a", 1)
    object.__setattr__(lying, "c", 3)
    assert state.attributes(lying) == {"a": 1, "c": 3}, "a slot that is not set is left out"
    assert state.own_dict(lying) == {"c": 3}
    named = Named(x=1)
    vars(Named)["note"].__set__(named, 5)
    assert state.attributes(named) == {"note": 5}
    assert state.contents(named, dict) == ["x", 1]
    assert state.contents(collections.deque([1], maxlen=3), collections.deque) == [3, 1]


def test_names_stand_for_exactly_what_a_package_has_under_them() -> None:
    assert str(state.named(collections.OrderedDict)).startswith("collections.OrderedDict 3.")
    imitation = type("OrderedDict", (), {"__module__": "collections"})
    assert state.named(imitation) is state.named(Slotted) is None
    assert state.looked_up(np, "linalg.norm") is np.linalg.norm
    assert state.looked_up(np, "linalg.none") is None


def test_cells_proxies_and_classes_say_what_they_hold() -> None:
    held = {"a": 1}
    assert state.behind(types.MappingProxyType(held)) is held
    full, empty, ring = types.CellType(1), types.CellType(), types.CellType()
    ring.cell_contents = ring
    assert [state.filled(cell) for cell in (full, empty, ring)] == [True, False, False]
    assert [state.by_identity(kind) for kind in (object, Slotted, Point)] == [True, True, False]
    assert [state.reduces(kind) for kind in (Slotted, collections.deque)] == [False, True]
    assert state.hashed("ab", "c") != state.hashed("a", "bc"), "each part with its length"
    assert state.hashed("ab") == state.hashed(b"ab")
