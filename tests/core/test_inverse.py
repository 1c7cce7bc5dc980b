import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar import InverseKeyedJaggedTensor, JaggedTensor
from cedar.core.errors import CedarError, PipelineError
from cedar.core.jagged import torchrec_tensors

FRAMEWORKS = pytest.mark.parametrize("framework", ["numpy", "torch"])


def jagged(rows, framework="numpy", dtype=np.int64):
    values = np.array([v for row in rows for v in row], dtype=dtype)
    made = JaggedTensor(values, np.cumsum([0, *map(len, rows)]).astype(np.int64))
    return made.to_torch() if framework == "torch" else made


@st.composite
def features(draw, keys=3):
    rows = draw(st.integers(0, 10))
    found = {}
    for key in "abc"[: draw(st.integers(1, keys))]:
        pool = draw(st.lists(st.lists(st.integers(-3, 3), max_size=3), min_size=1, max_size=4))
        found[key] = [pool[i % len(pool)] for i in draw(st.lists(st.integers(0, 9), min_size=rows, max_size=rows))]
    return found


def check_invariants(group):
    inverse = group.inverse_lookup.tolist()
    seen = list(dict.fromkeys(inverse))
    assert seen == list(range(group.unique))  # each is used, in the order of first occurrence
    assert group.unique <= len(group)
    unique = list(zip(*(map(tuple, group[key].to_list()) for key in group.keys), strict=True))
    assert len(set(unique)) == len(unique)


@FRAMEWORKS
@given(rows=features())
def test_a_group_is_exact_to_and_from_plain_tensors(framework, rows):
    plain = {key: jagged(lists, framework) for key, lists in rows.items()}
    group = InverseKeyedJaggedTensor.from_jagged(plain)
    check_invariants(group)
    assert group.expand() == plain
    assert len(group) == len(next(iter(rows.values())))
    assert InverseKeyedJaggedTensor.from_jagged(group.expand()) == group
    assert pickle.loads(pickle.dumps(group)) == group


@given(rows=features(), data=st.data())
def test_slices_are_those_of_the_rows(rows, data):
    group = InverseKeyedJaggedTensor.from_jagged({key: jagged(lists) for key, lists in rows.items()})
    cuts = sorted(data.draw(st.lists(st.integers(0, len(group)), max_size=3)))
    bounds = list(zip([0, *cuts], [*cuts, len(group)], strict=True))
    parts = [group[start:stop] for start, stop in bounds]
    for part, (start, stop) in zip(parts, bounds, strict=True):
        check_invariants(part)
        assert {key: lists.to_list() for key, lists in part.expand().items()} == {
            key: lists[start:stop] for key, lists in rows.items()
        }


def test_rows_are_taken_in_any_order_and_more_than_once():
    group = InverseKeyedJaggedTensor.from_jagged({"a": jagged([[1], [2], [1], []], "torch")})
    taken = group.take([3, 2, 0])
    assert taken["a"].to_list() == [[], [1]]
    assert taken.inverse_lookup.tolist() == [0, 1, 1]
    assert group[::-1].expand()["a"].to_list() == [[], [1], [2], [1]]


def test_floats_count_by_their_bits():
    group = InverseKeyedJaggedTensor.from_jagged({"a": jagged([[np.nan], [0.0], [-0.0], [np.nan]], dtype=np.float32)})
    assert group.inverse_lookup.tolist() == [0, 1, 2, 0]


@FRAMEWORKS
def test_weights_are_part_of_what_a_row_is(framework):
    ids = jagged([[1, 2], [1, 2], [1, 2], []], framework)
    weights = jagged([[0.5, 1.0], [0.5, 1.0], [0.5, 2.0], []], framework, np.float32)
    group = InverseKeyedJaggedTensor.from_jagged({"ids": ids}, {"ids": weights.values})
    assert group.inverse_lookup.tolist() == [0, 0, 1, 2]
    for part, expected in ((group, [[0.5, 1.0], [0.5, 2.0], []]), (group[2:], [[0.5, 2.0], []])):
        assert JaggedTensor((part.weights or {})["ids"], part.offsets["ids"]).to_list() == expected
    other = InverseKeyedJaggedTensor.from_jagged({"ids": ids, "scores": weights}).weighted({"ids": "scores"})
    assert other == group


def test_strings_structs_and_nested_lists_are_values_too():
    nested = JaggedTensor(jagged([[1], [2, 3], [1]]), np.array([0, 1, 2, 3]))
    words = JaggedTensor(["x", "y", "x"], np.array([0, 1, 2, 3]))
    pairs = JaggedTensor({"k": np.array([1, 2, 1]), "v": np.array([0.5, 0.5, 0.5])}, np.array([0, 1, 2, 3]))
    plain = {"nested": nested, "words": words, "pairs": pairs}
    group = InverseKeyedJaggedTensor.from_jagged(plain)
    assert group.inverse_lookup.tolist() == [0, 1, 0]
    assert {key: lists.to_list() for key, lists in group.expand().items()} == {k: v.to_list() for k, v in plain.items()}


def test_tensors_move_keep_their_integers_and_change_their_dtype():
    ids, scores = jagged([[1], [1]], "torch"), jagged([[0.5], [0.5]], "torch", np.float64)
    group = InverseKeyedJaggedTensor.from_jagged({"scores": scores}, {"scores": scores.values})
    half = group.to(torch.float16)
    assert half.values["scores"].dtype == (half.weights or {})["scores"].dtype == torch.float16
    assert half.offsets["scores"].dtype == torch.int64
    assert half.inverse_lookup.dtype == torch.int32
    assert InverseKeyedJaggedTensor.from_jagged({"ids": ids}).to("cpu", non_blocking=True).expand() == {"ids": ids}
    meta = group.to("meta")
    assert meta.inverse_lookup.device.type == meta.values["scores"].device.type == "meta"
    assert group.factor == 2.0


def test_pinned_memory():
    group = InverseKeyedJaggedTensor.from_jagged({"a": jagged([[1], [1]], "torch")})
    if not torch.cuda.is_available():
        pytest.skip("no accelerator to pin memory for")
    assert group.pin_memory().inverse_lookup.is_pinned()


def test_numpy_parts_become_tensors_over_the_same_memory():
    numbers = np.array([1, 2])
    numbers.flags.writeable = False  # as the arrays of batches are
    made = InverseKeyedJaggedTensor(("a",), [numbers], [np.array([0, 2])], np.array([0], dtype=np.int32))
    group = made.to_torch()
    assert isinstance(group.inverse_lookup, torch.Tensor)
    assert group["a"].values.tolist() == [1, 2]


def test_torchrec_holds_the_same_rows():
    try:
        torchrec_tensors()
    except CedarError as error:
        pytest.skip(str(error).splitlines()[0])
    plain = {"a": jagged([[1, 2], [1, 2], [3]], "torch"), "b": jagged([[9], [9], [9]], "torch")}
    theirs = InverseKeyedJaggedTensor.from_jagged(plain).to_torchrec()
    assert theirs.keys() == ["a", "b"]
    assert theirs.stride_per_key() == [2, 2]
    keys, inverse = theirs.inverse_indices()
    assert (keys, inverse.tolist()) == (["a", "b"], [[0, 0, 1], [0, 0, 1]])
    for key, lists in plain.items():
        unique = theirs[key]
        rows = JaggedTensor(unique.values(), unique.offsets() - unique.offsets()[0]).to_list()
        assert [rows[i] for i in inverse[0].tolist()] == lists.to_list()


def test_without_torchrec_the_error_says_what_to_do():
    group = InverseKeyedJaggedTensor.from_jagged({"a": jagged([[1]], "torch")})
    try:
        torchrec_tensors()
    except CedarError:
        with pytest.raises(CedarError, match="to_torchrec: torchrec (is not installed|cannot be imported)"):
            group.to_torchrec()
    else:
        mixed = InverseKeyedJaggedTensor.from_jagged({"a": jagged([[1]]), "b": jagged([[1.0]], dtype=np.float32)})
        with pytest.raises(PipelineError, match="differ in dtype"):
            mixed.to_torchrec()


def test_parts_may_be_given_in_the_order_of_the_keys():
    values, offsets = [np.array([1, 2, 3]), np.array([9, 9])], [np.array([0, 2, 3]), np.array([0, 1, 2])]
    group = cedar.InverseKeyedJaggedTensor(["a", "b"], values, offsets, np.array([0, 0, 1]))
    assert {key: lists.to_list() for key, lists in group.expand().items()} == {
        "a": [[1, 2], [1, 2], [3]], "b": [[9], [9], [9]],
    }  # fmt: skip
    assert repr(group) == "InverseKeyedJaggedTensor(a, b; rows=3, unique=2)"


_VALUES, _OFFSETS, _INVERSE = {"a": np.array([1])}, {"a": np.array([0, 1])}, np.array([0])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (((), {}, {}, _INVERSE), "the keys are none"),
        ((("a", "a"), _VALUES, _OFFSETS, _INVERSE), "name each feature once"),
        ((("a",), {"b": np.array([1])}, _OFFSETS, _INVERSE), "values of 'b'"),
        ((("a",), _VALUES, [], _INVERSE), "offsets are not one per key"),
        ((("a",), _VALUES, _OFFSETS, np.array([[0]])), "one dimension"),
        ((("a",), _VALUES, _OFFSETS, np.array([1])), "from 1 to 1, with 1 unique rows"),
        ((("a",), _VALUES, _OFFSETS, np.array([-1])), "from -1 to -1"),
        ((("a", "b"), [*_VALUES.values()] * 2, [np.array([0, 1]), np.array([0, 0, 1])], _INVERSE), "same number"),
        ((("a",), _VALUES, _OFFSETS, _INVERSE, {"a": np.array([1.0, 2.0])}), "2 weights for 1 values"),
        (
            (("a",), _VALUES, _OFFSETS, _INVERSE, {"b": np.array([1.0])}),
            "there are weights for a name that is not a key",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts, message):
    with pytest.raises(PipelineError, match="InverseKeyedJaggedTensor") as raised:
        InverseKeyedJaggedTensor(*parts)
    assert message in str(raised.value)


def test_features_of_different_lengths_make_no_group():
    with pytest.raises(PipelineError, match="equal numbers of rows"):
        InverseKeyedJaggedTensor.from_jagged({"a": jagged([[1]]), "b": jagged([])})
    group = InverseKeyedJaggedTensor.from_jagged({"a": jagged([[1]]), "b": jagged([[1, 2]])})
    with pytest.raises(PipelineError, match="differ in length"):
        group.weighted({"a": "b"})
    with pytest.raises(PipelineError, match="the keys are a, b"):
        group.weighted({"a": "c"})
    with pytest.raises(PipelineError, match="not keys"):
        InverseKeyedJaggedTensor.from_jagged({"a": jagged([[1]])}, {"b": np.array([1])})
