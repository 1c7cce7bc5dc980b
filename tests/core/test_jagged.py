import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.boundary import as_column
from cedar.core.errors import CedarError, PipelineError, RowError
from cedar.core.jagged import JaggedTensor, torchrec_tensors

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
