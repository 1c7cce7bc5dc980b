from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

import cedar
from cedar.core.errors import PipelineError, RowError
from cedar.datasets.huggingface import from_huggingface
from tests.datasets.reading import column, read_rows


def dataset(data: pa.Table, indices: list[int] | None = None) -> SimpleNamespace:
    """What datasets.Dataset keeps: wrapped tables."""
    order = None if indices is None else SimpleNamespace(table=pa.table({"indices": pa.array(indices, pa.uint64())}))
    return SimpleNamespace(data=SimpleNamespace(table=data), _indices=order)


def test_rows_in_the_order_of_the_table():
    data = pa.table({"x": [1, 2, 3], "image": [{"bytes": b"a", "path": None}] * 3})
    assert read_rows(from_huggingface(dataset(data))) == data.to_pylist()


def test_rows_in_the_order_of_the_indices():
    data = pa.table({"x": pa.chunked_array([list(range(50)), list(range(50, 100))])})
    source = from_huggingface(dataset(data, [99, 3, 3, 50]))
    assert column(source, "x") == [99, 3, 3, 50]
    assert source.describe() == "from_huggingface(4 rows)"


def test_splits_are_small_where_rows_are_large():
    data = pa.table({"image": [b"x" * 2_000_000] * 40})
    assert [s.rows for s in from_huggingface(dataset(data)).splits()] == [32, 8]


@pytest.mark.parametrize("kind", ["DatasetDict", "IterableDataset", "list"])
def test_what_is_no_dataset(kind: str):
    with pytest.raises(PipelineError, match=rf"takes a datasets\.Dataset, not {kind}") as error:
        from_huggingface(type(kind, (), {})())
    assert (error.value.fix is None) == (kind == "list")


@pytest.fixture
def datasets(monkeypatch):
    library = pytest.importorskip("datasets")
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # or its thread outlives the test
    return library


VARIANTS = {
    "transform": lambda d: d.with_transform(lambda batch: {"x": [value * 10 for value in batch["x"]]}),
    "transform of columns": lambda d: d.with_transform(lambda batch: {"y": batch["x"]}, columns=["x"]),
    "transform next to columns": lambda d: d.with_transform(lambda b: b, columns=["x"], output_all_columns=True),
    "set_transform": lambda d: d.set_transform(lambda batch: {"n": [len(batch["x"])] * len(batch["x"])}) or d,
    "columns": lambda d: d.with_format("arrow", columns=["name"]).with_format(None, columns=["name", "x"]),
    "numpy": lambda d: d.with_format("numpy"),
    "numpy columns": lambda d: d.with_format("numpy", columns=["n", "name"]),
    "numpy next to": lambda d: d.with_format("numpy", columns=["n"], output_all_columns=True),
    "numpy dtype": lambda d: d.with_format("numpy", columns=["n"], dtype="int8"),
    "torch": lambda d: d.with_format("torch"),
    "selected": lambda d: d.with_format("torch", columns=["n"]).select([2, 0]),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_are_those_that_the_dataset_gives(datasets, variant):
    plain = datasets.Dataset.from_dict({"x": [0.1, 2.0, 3.0], "n": [1, 2, 3], "name": ["a", "b", None]})
    given = VARIANTS[variant](plain)
    rows = [{name: getattr(v, "tolist", lambda v=v: v)() for name, v in row.items()} for row in given]
    assert read_rows(from_huggingface(given)) == rows


def test_formats_that_change_no_value_read_the_table(datasets):
    plain = datasets.Dataset.from_dict({"ids": [[1, 2], [3]], "x": [0.5, 1.5]})
    for given in (plain, plain.with_format("arrow"), plain.with_format("torch", columns=["ids"])):
        assert from_huggingface(given).describe() == "from_huggingface(2 rows)"


def test_features_that_are_decoded_on_access(datasets):
    features = datasets.Features({"any": datasets.Json()})
    given = datasets.Dataset.from_dict({"any": [{"a": 1}, {"a": 2}]}, features=features)
    assert read_rows(from_huggingface(given)) == list(given) == [{"any": {"a": 1}}, {"any": {"a": 2}}]


@pytest.mark.parametrize("nested", [False, True])
def test_files_of_which_the_path_is_stored_are_read(datasets, tmp_path, nested):
    (tmp_path / "a.png").write_bytes(b"png")
    path = str(tmp_path / "a.png")
    values = [path, {"bytes": b"held", "path": None}, None]
    feature = datasets.List(datasets.Image()) if nested else datasets.Image()
    given = datasets.Dataset.from_dict(
        {"image": [[v] for v in values] if nested else values}, features=datasets.Features({"image": feature})
    )
    files = [{"bytes": b"png", "path": path}, {"bytes": b"held", "path": None}, None]
    pipeline = cedar.from_huggingface(given)
    assert [row["image"] for row in pipeline] == ([[f] for f in files] if nested else files)
    off = datasets.Image(decode=False)
    off = given.cast_column("image", datasets.List(off) if nested else off)
    assert [row["image"] for row in cedar.from_huggingface(off)] == off[:]["image"]
    (tmp_path / "a.png").unlink()
    with pytest.raises(RowError, match="No such file.*a.png"):
        list(pipeline)
