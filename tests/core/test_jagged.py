"""Pytrees: torch and JAX reach the arrays in cedar's containers."""

from __future__ import annotations

import itertools
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core import jagged as jagged_module
from cedar.core.boundary import as_column
from cedar.core.errors import CedarError, PipelineError, RowError
from cedar.core.jagged import JaggedTensor, each, gather, torchrec_tensors

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
    monkeypatch.setattr(jagged_module, "_registered", set(jagged_module._registered))
    jagged_module.register(cedar.JaggedTensor)
    assert not told, "it is still being imported"
    jax.register_pytree_node = lambda kind, flatten, unflatten: told.append((kind, flatten, unflatten))  # type: ignore[attr-defined]
    next(iter(cedar.from_items([{"x": 1}]).loader(executor="inline")))
    jagged_module.register(cedar.JaggedTensor)
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
    assert each((5, array), lambda v: v + 1)[1].tolist() == each(["name", array], lambda v: v + 1)[1].tolist()
    assert each((np.float64(5), array), lambda v: v + 1)[1].tolist() == [1, 2, 3]
    gaps = ["a", None]
    assert each(gaps, len) is gaps


lists = st.lists(st.lists(st.integers(-(2**40), 2**40), max_size=5), max_size=8)


def jagged(rows: list[list[int]], framework: str = "numpy") -> JaggedTensor:
    values = np.array([v for row in rows for v in row], dtype=np.int64)
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    made = JaggedTensor(values, offsets)
    return made.to_torch() if framework == "torch" else made


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@given(rows=lists)
def test_rows_lengths_and_padding(framework: str, rows: list[list[int]]) -> None:
    made = jagged(rows, framework)
    assert len(made) == len(rows)
    assert made.to_list() == rows
    assert [row.tolist() for row in made] == rows
    assert [made[i].tolist() for i in range(len(rows))] == rows
    assert made.lengths().tolist() == [len(row) for row in rows]
    longest = max(map(len, rows), default=0)
    padded = made.to_padded(value=-1)
    assert tuple(padded.shape) == (len(rows), longest)
    assert padded.tolist() == [row + [-1] * (longest - len(row)) for row in rows]
    assert made.to_padded(longest + 2).tolist() == [row + [0] * (longest + 2 - len(row)) for row in rows]
    assert made.to_arrow().to_pylist() == rows
    assert as_column(made).type == pa.large_list(pa.int64())


def test_indexing_from_the_end_and_outside() -> None:
    made = jagged([[1], [2, 3]])
    assert made[-1].tolist() == [2, 3]
    with pytest.raises(IndexError):
        made[2]
    with pytest.raises(IndexError):
        made[-3]


def test_nested_rows_and_structs() -> None:
    inner = jagged([[1], [2, 3], []])
    outer = JaggedTensor(inner, np.array([0, 2, 3]))
    assert outer.to_list() == [[[1], [2, 3]], [[]]]
    assert outer[0].to_list() == [[1], [2, 3]]
    assert outer[1].to_list() == [[]]
    assert outer.to_arrow().to_pylist() == outer.to_list()
    structs = JaggedTensor({"a": np.array([1, 2]), "b": np.array([0.5, 1.5])}, np.array([0, 2]))
    assert structs.to_list() == [[{"a": 1, "b": 0.5}, {"a": 2, "b": 1.5}]]
    assert structs.to_arrow().to_pylist() == structs.to_list()
    assert "{...}" in repr(structs)
    words = JaggedTensor(["x", "y"], torch.tensor([0, 1, 2]))
    assert words.to_list() == [["x"], ["y"]]
    with pytest.raises(PipelineError, match="not an array"):
        words.to_padded()


def test_equality_needs_framework_dtype_and_values() -> None:
    made = jagged([[1], [2, 3]])
    assert made == jagged([[1], [2, 3]])
    assert made != jagged([[1, 2], [3]])
    assert made != made.to_torch()
    assert made.to_torch() == made.to_torch()
    assert made != JaggedTensor(made.values.astype(np.int32), made.offsets)
    assert made != 3
    nan = JaggedTensor(np.array([np.nan]), np.array([0, 1]))
    assert nan == JaggedTensor(np.array([np.nan]), np.array([0, 1]))
    nested = JaggedTensor(jagged([[1], [2]]), np.array([0, 2]))
    assert nested == JaggedTensor(jagged([[1], [2]]), np.array([0, 2]))
    assert JaggedTensor({"a": np.array([1])}, np.array([0, 1])) != JaggedTensor({"b": np.array([1])}, np.array([0, 1]))
    with pytest.raises(TypeError):
        hash(made)


def test_tensors_that_numpy_lacks_or_that_need_gradients_are_compared() -> None:
    offsets = torch.tensor([0, 3])
    for dtype in (torch.bfloat16, torch.float32):
        values = torch.tensor([1.0, -0.0, torch.nan], dtype=dtype, requires_grad=True)
        assert JaggedTensor(values, offsets) == JaggedTensor(values.detach().abs(), offsets)
        assert JaggedTensor(values, offsets) != JaggedTensor(values.detach() + 1, offsets)
        assert JaggedTensor(values, offsets) != JaggedTensor(values.double(), offsets)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tensors_on_a_device_are_compared() -> None:
    made = jagged([[1], [2, 3]], "torch").to("cuda")
    assert made == jagged([[1], [2, 3]], "torch").to("cuda")
    assert made != jagged([[1], [2, 4]], "torch").to("cuda")


def test_longer_rows_than_the_padding_are_refused() -> None:
    with pytest.raises(RowError, match="row 1 has 2 values"):
        jagged([[1], [2, 3]]).to_padded(1)


@pytest.mark.parametrize("offsets", [np.array([], dtype=np.int64), np.zeros((1, 1), dtype=np.int64)])
def test_offsets_are_checked(offsets: np.ndarray) -> None:
    with pytest.raises(PipelineError, match="offsets"):
        JaggedTensor(np.array([1]), offsets)


def test_torch_moves() -> None:
    made = jagged([[1], [2, 3]], "torch")
    as_float = made.to(torch.float32)
    assert as_float.values.dtype == torch.float32
    assert as_float.offsets.dtype == torch.int64
    assert made.to("cpu") == made
    assert JaggedTensor(made, torch.tensor([0, 2])).to(device="cpu", non_blocking=True).values == made


def test_torchrec_is_named_where_it_is_missing() -> None:
    try:
        torchrec_tensors()
    except CedarError:
        with pytest.raises(CedarError, match="torchrec (is not installed|cannot be imported)"):
            jagged([[1]]).to_torchrec()
    else:
        theirs = jagged([[1], [2, 3]]).to_torchrec()
        assert theirs.lengths().tolist() == [1, 2]


def test_repr_is_short() -> None:
    assert repr(jagged([[1], [2, 3]])) == "JaggedTensor([[1], [2, 3]], rows=2, values=int64)"
    assert repr(jagged([list(range(100))] * 9)).count("100 values") == 4


rows_of_numbers = st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=5)


def rows_in(values: Any, offsets: Any) -> list[list[int]]:
    bounds = offsets.tolist()
    listed = values if isinstance(values, list) else values.tolist()
    return [listed[a:b] for a, b in itertools.pairwise(bounds)]


@pytest.mark.parametrize("make", [np.array, torch.from_numpy])
@given(rows_of_numbers, st.data())
def test_rows_are_gathered_in_any_order_and_more_than_once(make: Any, rows: list[list[int]], data: Any) -> None:
    index = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6))
    whole = jagged(rows, "numpy" if make is np.array else "torch")
    asked = make(np.array(index, dtype=np.int64))
    expected = [rows[i] for i in index]
    assert rows_in(*gather(whole.values, whole.offsets, asked)) == expected
    if make is np.array:
        assert rows_in(*gather(whole.values.tolist(), whole.offsets, asked)) == expected
    structs, offsets = gather({"a": whole.values, "b": whole.values + 1}, whole.offsets, asked)
    assert rows_in(structs["a"], offsets) == expected
    assert rows_in(structs["b"], offsets) == [[v + 1 for v in row] for row in expected]


def test_lists_of_lists_are_gathered_whole() -> None:
    inner = jagged([[1, 2], [], [3], [4, 5]])
    values, offsets = gather(inner, np.array([0, 2, 4]), np.array([1, 0, 1]))
    assert offsets.tolist() == [0, 2, 4, 6]
    assert rows_in(values.values, values.offsets) == [[3], [4, 5], [1, 2], [], [3], [4, 5]]
