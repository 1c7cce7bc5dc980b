"""Tables in memory: Arrow's, and polars frames."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import cedar
from cedar.core.errors import PipelineError, RowError
from cedar.datasets.table import from_arrow, from_huggingface, from_numpy, from_pandas, from_polars
from tests.datasets.arrow_tables import table
from tests.datasets.reading import column, read_rows, traveled


@pytest.mark.heavy
def test_from_arrow():
    data = table(70_000)
    source = from_arrow(data)
    assert [s.start for s in source.splits()] == list(range(0, 70_000, 8192))
    assert source.splits().known_rows == 70_000
    assert column(source, "id") == list(range(70_000))
    assert source.row_bytes is not None
    assert read_rows(traveled(from_arrow(data.slice(3, 5)))) == data.slice(3, 5).to_pylist()
    assert read_rows(from_arrow(data.to_batches()[0].slice(0, 2))) == data.slice(0, 2).to_pylist()
    assert read_rows(source.select(["id"]))[1] == {"id": 1}


@pytest.mark.parametrize(
    ("rows", "width", "split"), [(10, 8, 8192), (20_000_000, 1, 16_384), (1000, 3072, 128), (100, 1_000_000, 4)]
)
def test_splits_are_small_so_that_windows_mix_rows_from_everywhere(rows: int, width: int, split: int) -> None:
    x = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * width, np.uint8)), width)
    source = from_arrow(pa.table({"x": x}))
    assert source.rows_per_split == split
    assert source.select(["x"]).rows_per_split == split


def test_a_table_that_is_sorted_by_class_is_mixed_by_a_shuffle() -> None:
    columns = {"x": np.zeros((200_000, 12)), "y": np.repeat([0, 1], 100_000)}
    p = cedar.from_numpy(columns).shuffle(seed=1).batch(256)
    shares = [float(np.mean(batch["y"])) for batch in islice(p.loader(executor="inline"), 100)]
    assert 0.1 < min(shares) < max(shares) < 0.9


def test_from_arrow_with_many_chunks_and_none():
    chunks = pa.chunked_array([[1], [], [2, 3]], pa.int64())
    assert column(from_arrow(pa.table({"x": chunks})), "x") == [1, 2, 3]
    assert from_arrow(pa.table({"x": pa.array([], pa.int64())})).splits() == []


def test_from_polars():
    frame = pl.DataFrame({"x": [1, 2], "c": pl.Series(["a", "b"], dtype=pl.Categorical), "l": [[1], []]})
    source = from_polars(frame)
    assert source.schema() == {"x": pa.int64(), "c": pa.large_string(), "l": pa.large_list(pa.int64())}
    assert read_rows(source) == frame.to_dicts()
    assert source.describe() == "from_polars(2 rows)"


def test_what_is_no_table():
    with pytest.raises(PipelineError, match=r"from_arrow takes a pyarrow\.Table") as error:
        from_arrow(pl.DataFrame({"x": [1]}))
    assert "from_polars" in (error.value.fix or "")
    with pytest.raises(PipelineError, match=r"takes a polars\.DataFrame, not LazyFrame") as error:
        from_polars(pl.LazyFrame({"x": [1]}))
    assert "collect" in (error.value.fix or "")
    with pytest.raises(PipelineError, match=r"takes a polars\.DataFrame, not Table"):
        from_polars(pa.table({"x": [1]}))
    with pytest.raises(PipelineError, match="not RecordBatchReader") as error:
        from_arrow(pa.RecordBatchReader.from_batches(pa.schema([("x", pa.int64())]), []))
    assert "reader.read_all()" in (error.value.fix or "")
    with pytest.raises(PipelineError, match="two columns 'a'"):
        from_arrow(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]))


def test_from_pandas():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"x": [1.5, None], "s": ["a", None], "c": pd.Categorical(["u", "v"])})
    source = from_pandas(frame)
    assert read_rows(source) == [{"x": 1.5, "s": "a", "c": "u"}, {"x": None, "s": None, "c": "v"}]
    assert source.describe() == "from_pandas(2 rows)"
    assert [row["x"] for row in read_rows(from_pandas(frame[frame.s.isna()]))] == [None]
    indexed = pd.DataFrame({"x": [1, 2]}, index=pd.Index([7, 8], name="id"))
    assert read_rows(from_pandas(indexed)) == [{"id": 7, "x": 1}, {"id": 8, "x": 2}]
    for wrong, what in (
        (frame["x"], "not Series"),
        (pd.DataFrame({0: [1]}), "must be strings"),
        (pd.DataFrame({"x": [1, "a"]}), "x"),
    ):
        with pytest.raises(PipelineError, match=what) as caught:
            from_pandas(wrong)
        assert caught.value.fix
    for other in (from_arrow, from_polars):
        with pytest.raises(PipelineError) as caught:
            other(frame)
        assert "from_pandas" in caught.value.fix


def test_from_numpy(tmp_path):
    arrays = {
        "image": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
        "v": np.eye(2, dtype=np.float32),
        "y": np.array([1, 2]),
        "s": np.array(["a", "b"]),
        "t": np.array(["2024-01-01", "2024-01-02"], "M8[D]"),
        "b": np.array([True, False]),
    }
    np.savez(tmp_path / "a.npz", **arrays)
    for given in (arrays, np.load(tmp_path / "a.npz"), {"y": [1, 2]}):
        batch = next(iter(cedar.from_numpy(given).batch(2)))
        assert list(batch) == list(given)
        for name in batch:
            assert batch[name].tolist() == np.asarray(given[name]).tolist()
            assert name in ("s", "t", "y") or batch[name].dtype == given[name].dtype
    rows = read_rows(traveled(from_numpy(arrays)))
    assert rows[1]["image"].tolist() == arrays["image"][1].tolist()
    batch = next(iter(cedar.from_numpy({"x": arrays["v"]}).batch(2)))
    batch["x"][:] = 7
    assert arrays["v"].tolist() == np.eye(2).tolist()
    for wrong, what in (
        (arrays["y"], "a dict of arrays"),
        ({"x": [1], "y": [1, 2]}, "one entry per row"),
        ({"x": np.float32(3)}, "one entry per row"),
        ({"x": np.array([1j])}, "column 'x'"),
    ):
        with pytest.raises(PipelineError, match=what):
            from_numpy(wrong)


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
    assert [s.rows for s in from_huggingface(dataset(data)).splits()] == [4] * 10


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


def test_arrays_that_from_numpy_refuses_can_be_given_as_numbers():
    times, numbers = np.zeros((2, 3), "M8[s]"), np.ones(2, complex)
    for array, given in [
        (times, times.astype("int64")),
        (numbers, np.stack([numbers.real, numbers.imag], -1)),
    ]:
        with pytest.raises(PipelineError, match="column 'a' of .*, shape") as caught:
            cedar.from_numpy({"a": array})
        assert "give numbers: array.astype('int64') for times, numpy.stack(" in caught.value.fix
        assert cedar.from_numpy({"a": given}).count() == 2
