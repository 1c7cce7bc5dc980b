"""Pytrees: torch and JAX reach the arrays in cedar's containers."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import cedar
from cedar.core import pytrees
from cedar.core.jagged import each

JAGGED = cedar.JaggedTensor(np.array([7, 8, 9]), np.array([0, 2, 2, 3]))
GROUP = cedar.InverseKeyedJaggedTensor.from_jagged({"a": JAGGED, "b": JAGGED})


def test_torch_maps_over_the_tensors_of_a_batch() -> None:
    import torch
    from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

    rows = [{"t": [1.0] * (i % 3), "i": i, "g": [1], "h": [2]} for i in range(9)]
    for p in (cedar.from_items(rows).batch(3), cedar.from_items(rows).dedup([["g", "h"]]).batch(3)):
        batch = next(iter(p.loader(format="torch", executor="inline")))
        doubled = tree_map(lambda v: v * 2, batch)
        assert doubled["i"].tolist() == [0, 2, 4]
        assert torch.equal(doubled["t"].values, batch["t"].values * 2)
        leaves, shape = tree_flatten(batch)
        assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
        assert tree_unflatten(leaves, shape)["g"] == batch["g"]
        assert type(doubled["g"]) is type(batch["g"])


def test_frameworks_may_put_anything_in_the_place_of_arrays() -> None:
    for value in (JAGGED, GROUP):
        parts, fixed = value.tree_flatten()
        assert type(value).tree_unflatten(fixed, parts) == value
        type(value).tree_unflatten(fixed, [object()] * len(parts))


def test_jax_is_told_once_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    jax = ModuleType("jax.tree_util")
    monkeypatch.setitem(sys.modules, "jax.tree_util", jax)
    monkeypatch.setattr(pytrees, "_registered", set(pytrees._registered))
    pytrees.register(cedar.JaggedTensor)
    assert not told, "it is still being imported"
    jax.register_pytree_node = lambda kind, flatten, unflatten: told.append((kind, flatten, unflatten))  # type: ignore[attr-defined]
    next(iter(cedar.from_items([{"x": 1}]).loader(executor="inline")))
    pytrees.register(cedar.JaggedTensor)
    assert [kind for kind, _, _ in told] == [cedar.JaggedTensor, cedar.InverseKeyedJaggedTensor]
    for (kind, flatten, unflatten), value in zip(told, (JAGGED, GROUP), strict=True):
        parts, fixed = flatten(value)
        assert isinstance(unflatten(fixed, parts), kind)


def test_arrays_are_reached_in_whatever_holds_them() -> None:
    from collections import OrderedDict, UserDict, namedtuple

    pair = namedtuple("pair", "a b")  # noqa: PYI024 - as users write it
    array = np.arange(3)
    found = each({"t": (array, [array, "s"]), "p": pair(array, None), "u": UserDict(x=array)}, lambda v: v + 1)
    assert found["t"][0].tolist() == found["t"][1][0].tolist() == found["p"].a.tolist() == [1, 2, 3]
    assert (found["t"][1][1], found["p"].b, type(found["p"])) == ("s", None, pair)
    assert isinstance(found["u"], UserDict)
    assert found["u"]["x"].tolist() == [1, 2, 3]
    assert type(each(OrderedDict(x=array), lambda v: v)) is OrderedDict
    names, objects = ["a", "b"], np.array(["a", None], dtype=object)
    assert each(names, len) is names
    assert each(objects, len) is objects
    assert each([None, (JAGGED,)], lambda v: v * 0)[1][0].to_list() == [[], [], []]
