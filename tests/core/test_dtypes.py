import datetime as dt
import functools
from collections.abc import Iterator
from typing import Annotated, Any, Optional

import numpy as np
import pyarrow as pa
import pytest
import torch

from cedar.core.columns import OBJECT, TensorType
from cedar.core.dtypes import item_annotation, return_annotation, type_from_annotation, type_from_dtype
from cedar.core.errors import PipelineError


@pytest.mark.parametrize(
    ("annotation", "kind"),
    [
        (int, pa.int64()),
        (float, pa.float64()),
        (bool, pa.bool_()),
        (str, pa.large_string()),
        (bytes, pa.large_binary()),
        (dt.datetime, pa.timestamp("us")),
        (np.float32, pa.float32()),
        (list[int], pa.large_list(pa.int64())),
        (tuple[float, ...], pa.large_list(pa.float64())),
        (list[list[str]], pa.large_list(pa.large_list(pa.large_string()))),
        (Optional[int], pa.int64()),  # noqa: UP045
        (str | None, pa.large_string()),
        (int | float, pa.float64()),
        (Annotated[int, "ignored"], pa.int64()),
        (int | str, None),
        (np.ndarray, None),
        (list, None),
        (dict, None),
        (tuple[int, str], None),
        (Any, None),
        (None, None),
    ],
)
def test_annotations(annotation, kind):
    assert type_from_annotation(annotation) == kind


def test_return_annotations_are_found_and_resolved():
    def plain(x) -> "list[int]":
        return [x]

    def unknown(x) -> "NotThere":  # type: ignore[name-defined]  # noqa: F821
        return x

    class Model:
        def __call__(self, x: float) -> float:
            return x

    assert return_annotation(plain) == list[int]
    assert return_annotation(functools.partial(plain, 1)) == list[int]
    assert return_annotation(Model) is return_annotation(Model()) is float
    assert return_annotation(unknown) is return_annotation(abs) is return_annotation(int) is None


def test_item_annotations():
    assert item_annotation(list[int]) is item_annotation(Iterator[int]) is item_annotation(tuple[int, ...]) is int
    assert item_annotation(dict[str, int]) is item_annotation(tuple[int, str]) is item_annotation(list) is None


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("float32", pa.float32()),
        (np.float32, pa.float32()),
        (np.dtype("i8"), pa.int64()),
        ("string", pa.large_string()),
        (str, pa.large_string()),
        (bytes, pa.large_binary()),
        (object, OBJECT),
        (torch.float32, pa.float32()),
        (pa.string(), pa.large_string()),
        (pa.list_(pa.int32()), pa.large_list(pa.int32())),
        (list[int], pa.large_list(pa.int64())),
        (np.dtype(("f4", (3,))), TensorType((3,), "float32")),
        (TensorType((3,), "float32"), TensorType((3,), "float32")),
        ("datetime64[ns]", pa.timestamp("ns")),
        (OBJECT, OBJECT),
    ],
)
def test_dtypes(dtype, kind):
    assert type_from_dtype(dtype) == kind


@pytest.mark.parametrize("dtype", ["foo", 5, None, [1]])
def test_what_is_no_dtype(dtype):
    with pytest.raises(PipelineError, match="is not a type of column") as caught:
        type_from_dtype(dtype)
    assert caught.value.site.file == __file__
