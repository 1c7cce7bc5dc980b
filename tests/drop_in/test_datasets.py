"""Map-style datasets of PyTorch users as sources."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import cedar
from cedar.datasets.items import from_items
from cedar.datasets.rows import Origin, build_rows, fix_types

torch: Any = pytest.importorskip("torch")
data: Any = pytest.importorskip("torch.utils.data")
Dataset: Any = data.Dataset
IterableDataset: Any = data.IterableDataset


class Numbers(Dataset):  # type: ignore[misc]
    """Items as torch's own pages write them; it counts how it is asked."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.asked.append([index])
        return torch.full((2, 2), float(index)), index


class Blocks(Numbers):
    def __getitems__(self, indices: list[int]) -> list[tuple[Any, int]]:
        self.asked.append(indices)
        return [(torch.full((2, 2), float(i)), i) for i in indices]


def test_names_for_the_parts_of_tuples() -> None:
    p = cedar.from_items(Numbers(20), names=("image", "label")).shuffle(seed=1).batch(4)
    assert set(p.schema) == {"image", "label"}
    for batch in p.loader(format="torch"):
        assert batch["image"].shape == (4, 2, 2)
        assert batch["image"].dtype == torch.float32
        assert batch["image"][:, 0, 0].tolist() == batch["label"].tolist()
    assert list(cedar.from_items([[1, 2]], names=["a", "b"])) == [{"a": 1, "b": 2}]
    assert list(cedar.from_items(range(2), names=["a"])) == [{"a": 0}, {"a": 1}]


@pytest.mark.parametrize("names", ["ab", (), ("a", "a"), (1, 2)])
def test_names_that_are_none(names: Any) -> None:
    with pytest.raises(cedar.PipelineError, match="one name per part") as caught:
        cedar.from_items([(1, 2)], names=names)
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


def test_an_item_with_other_parts_is_named() -> None:
    with pytest.raises(cedar.RowError, match=r"item 2 is 3 value\(s\), not 2") as caught:
        list(cedar.from_items([(1, 2), (3, 4), (5, 6, 7)], names=("a", "b")))
    assert caught.value.row is not None
    assert caught.value.row.row == 2


def test_getitems_is_asked_for_blocks() -> None:
    dataset = Blocks(100)
    assert [row["1"] for row in cedar.from_items(dataset)] == list(range(100))
    blocks = [len(block) for block in dataset.asked if len(block) > 1 and block != list(range(64))]
    assert sorted(blocks) == [4, 32, 32, 32]  # threads ask as they come
    subset = data.Subset(Blocks(100), range(10, 90))
    assert [row["1"] for row in cedar.from_items(subset)] == list(range(10, 90))


def test_a_large_dataset_is_not_listed() -> None:
    dataset = Numbers(1_000_000)
    loader = cedar.from_items(dataset).shuffle(seed=1, window=1000).batch(8).loader(executor="inline")
    batch = next(iter(loader))
    assert len(loader) == 125_000
    assert len(dataset.asked) < 5_000
    assert batch["0"][:, 0, 0].tolist() == batch["1"].tolist()
    loader.close()


def test_splits_grow_where_items_are_small_and_many() -> None:
    def sizes(dataset: Any) -> set[int | None]:
        return {split.rows for split in from_items(dataset).splits()}

    assert sizes(Numbers(2048)) == {32}, "at least 64 splits"
    assert sizes(Numbers(1 << 16)) == {256}
    assert sizes([{"x": 1}] * 2048) == {1024}

    class Images(Numbers):
        def __getitem__(self, index: int) -> Any:
            return np.zeros((128, 128, 3), dtype=np.uint8)

    assert sizes(Images(1 << 16)) == {16}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "uint8", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (0,)])
def test_tensors_in_items_are_columns_as_arrays_are(dtype: str, shape: tuple[int, ...]) -> None:
    tensors = [(torch.arange(int(np.prod(shape))).reshape(shape) + i).to(getattr(torch, dtype)) for i in range(5)]
    arrays = [t.numpy() if shape else t.numpy()[()] for t in tensors]
    found = []
    for values in (tensors, arrays):
        items = [{"x": value} for value in values]
        column = build_rows(items, fix_types(items, Origin("here")), Origin("here"), 0)["x"]
        found.append((type(column), getattr(column, "dtype", None) or getattr(column, "type", None), column.tolist()))
    assert found[0] == found[1]


def test_tensors_of_different_kinds_and_those_numpy_does_not_have() -> None:
    lengths = [{"x": torch.arange(i % 3)} for i in range(6)]
    batch = next(iter(cedar.from_items(lengths).batch(6).loader(format="torch")))
    assert batch["x"].to_list() == [[], [0], [0, 1]] * 2
    grads = [{"x": torch.ones(2, requires_grad=True)}] * 3
    assert next(iter(cedar.from_items(grads).batch(3)))["x"].sum() == 6
    with pytest.raises(cedar.RowError, match="column 'x'.*BFloat16") as caught:
        list(cedar.from_items([{"x": torch.ones(2, dtype=torch.bfloat16)}] * 3))
    assert ".float()" in (caught.value.fix or "")


def test_pil_images_are_mapped_to_arrays() -> None:
    images: Any = pytest.importorskip("PIL.Image")
    items = [(images.new("RGB", (4, 5), (i, 0, 0)), i) for i in range(8)]
    p = cedar.from_items(items, names=("image", "label"))
    assert next(iter(p))["image"].size == (4, 5)
    batch = next(iter(p.map(np.asarray, "image").batch(8).loader(format="torch")))
    assert batch["image"].shape == (8, 5, 4, 3)
    assert batch["image"][:, 0, 0, 0].tolist() == batch["label"].tolist()


class Stream(IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Any:
        yield from range(3)

    def __len__(self) -> int:
        return 3


class NoLength(Dataset):  # type: ignore[misc]
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("dataset", "fix"),
    [
        (Stream(), r"from_iterable\(lambda: iter\(dataset\)\)"),
        (NoLength(), "__len__"),
        (data.DataLoader([1, 2]), r"from_items\(loader.dataset\)"),
    ],
)
def test_what_is_no_map_style_dataset_is_told_the_way(dataset: Any, fix: str) -> None:
    with pytest.raises(cedar.PipelineError) as caught:
        cedar.from_items(dataset)
    assert re.search(fix, caught.value.fix or "")
    assert list(cedar.from_iterable(lambda: iter(Stream()))) == [{"item": i} for i in range(3)]
