"""Formats: the same values as arrays, tensors and tables, for the caller alone."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import cedar
from cedar.engine.delivery import formats
from tests.engine.delivery.few_rows import rows, xs
from tests.toy_runs import plain


def test_numpy_torch_and_arrow_hold_the_same_values() -> None:
    import torch

    p = rows().shuffle().batch(6, last="keep")
    numpy = list(p.loader(format="numpy"))
    tensors = list(p.loader(format="torch"))
    tables = list(p.loader(format="arrow"))
    assert isinstance(numpy[0]["x"], np.ndarray)
    assert isinstance(tensors[0]["x"], torch.Tensor)
    assert isinstance(tensors[0]["l"], cedar.JaggedTensor)
    assert isinstance(tables[0], pa.Table)
    assert [plain(b) for b in tensors] == [plain(b) for b in numpy]
    assert [t.column("x").to_pylist() for t in tables] == xs(numpy)
    assert [t.column("l").to_pylist() for t in tables] == [b["l"].to_list() for b in numpy]


def test_rows_are_dicts_and_batches_dicts_of_arrays() -> None:
    first = next(iter(rows()))
    assert first == {"x": 0, "l": []}
    assert type(first["x"]) is int
    assert next(iter(rows().batch(3)))["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("format", ["torch", "numpy"])
@pytest.mark.parametrize("make", [cedar.from_arrow, lambda table: cedar.from_polars(pl.from_arrow(table))])
def test_who_writes_into_a_batch_writes_into_no_table(make: Any, format: str) -> None:
    pytest.importorskip("torch")
    table = pa.table({"x": np.arange(6.0), "ids": [[1, 2], [], [3], [4], [5], [6]], "name": list("abcdef")})
    wanted = table.to_pydict()
    loader = make(table).batch(3).loader(format=format, executor="inline")
    for _ in range(2):
        for at, batch in enumerate(loader):
            assert batch["x"].tolist() == wanted["x"][3 * at : 3 * at + 3]
            for part in (batch["x"], batch["ids"].values):
                if format == "torch" or part.flags.writeable:
                    part -= 100
    assert table.to_pydict() == wanted


def test_a_tuple_has_the_columns_in_the_order_of_select() -> None:
    import torch

    for y, x in rows().with_columns(y=cedar.col("x") * 2).select("y", "x").batch(3).loader(format="tuple"):
        assert isinstance(x, torch.Tensor)
        assert torch.equal(y, x * 2)
    assert next(iter(rows().loader(format="tuple"))) == (0, [])
    loader = rows().batch(3).loader(format="tuple", executor="inline")
    assert [x.tolist() for x, _ in loader][1] == loader.read(1)[0].tolist()


def test_a_tuple_has_arrays_where_torch_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cedar.engine.delivery.formats.find_spec", lambda name: None)
    x, _ = next(iter(rows().batch(3).loader(format="tuple", executor="inline")))
    assert isinstance(x, np.ndarray)
    for name in ("torch", "jax"):
        with pytest.raises(cedar.PipelineError, match=f'format="{name}" needs {name}') as caught:
            rows().batch(3).loader(format=name)
        assert "pip install" in (caught.value.fix or "")


def test_jax_gets_numbers_wherever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    class Made:
        def __init__(self, array: Any) -> None:
            self.array = array

    jax, numpy = ModuleType("jax"), ModuleType("jax.numpy")
    numpy.asarray, jax.numpy = Made, numpy  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "jax.numpy", numpy)
    monkeypatch.setattr("cedar.engine.delivery.formats.find_spec", lambda name: name)
    p = rows().with_columns(s=pl.lit("a"), t=pl.lit(1.5)).batch(3)
    batch = next(iter(p.loader(format="jax", executor="inline")))
    assert batch["x"].array.tolist() == [0, 1, 2]
    assert isinstance(batch["l"].values, Made)
    assert batch["s"].tolist() == ["a"] * 3
    x, s = next(iter(p.map(lambda b: (b["t"], "s")).loader(format="jax", executor="inline")))
    assert (x.array.tolist(), s) == ([1.5] * 3, "s")
    with pytest.raises(cedar.PipelineError, match="device=") as caught:
        p.loader(format="jax", device="cpu")
    assert "jax.device_put" in (caught.value.fix or "")


def test_a_device_needs_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    with pytest.raises(cedar.PipelineError, match="device='cpu' needs torch"):
        cedar.from_items([{"x": 1}]).batch(1).loader(format="tuple", device="cpu")
