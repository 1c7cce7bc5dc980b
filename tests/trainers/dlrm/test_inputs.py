"""Batches as inputs: every kind of column, slices of rows, and clear words about what no table holds."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core.errors import CedarError
from cedar.trainers.dlrm.inputs import read_batch, rows_of
from cedar.trainers.dlrm.options import FeatureOptions


def jagged(lists, dtype=np.int64):
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in lists])]).astype(np.int64)
    flat = np.array([i for ids in lists for i in ids], dtype=dtype)
    return cedar.JaggedTensor(torch.from_numpy(flat), torch.from_numpy(offsets))


def lists_of(feature):
    """What each row holds."""
    offsets = feature.bags.offsets.tolist()
    lists = [feature.bags.ids[a:b].tolist() for a, b in pairwise(offsets)]
    if feature.windows is not None:
        values = feature.bags.ids.tolist()
        assert lists == [[value] for value in values]  # one by one
        ends = zip(feature.windows.starts.tolist(), feature.windows.ends.tolist(), strict=True)
        lists = [values[a:b] for a, b in ends]
    return lists if feature.by is None else [lists[u] for u in feature.by.index.tolist()]


@given(st.lists(st.lists(st.integers(0, 3), max_size=2), min_size=1, max_size=10), st.booleans(), st.data())
def test_any_slice_of_a_batch_holds_the_rows_of_that_slice(lists, ascending, data):
    lists = sorted(lists) if ascending else lists
    group = cedar.InverseKeyedJaggedTensor.from_jagged({"a": jagged(lists)})
    options = (FeatureOptions("a", 4), FeatureOptions("p", 4), FeatureOptions("one", 50))
    options += (FeatureOptions("a", 4, sliding=True), FeatureOptions("p", 4, sliding=True))
    batch = {"a": group, "p": jagged(lists), "one": torch.arange(len(lists)), "x": torch.arange(len(lists))}
    inputs = read_batch(batch, options, ("x",), None)
    start = data.draw(st.integers(0, len(lists)))
    stop = data.draw(st.integers(start, len(lists)))
    part = rows_of(inputs, range(start, stop))
    assert lists_of(part.features[0]) == lists_of(part.features[1]) == lists[start:stop]
    assert lists_of(part.features[2]) == [[i] for i in range(start, stop)]
    assert lists_of(part.features[3]) == lists_of(part.features[4]) == lists[start:stop]
    assert part.dense[:, 0].tolist() == list(range(start, stop))


def test_features_of_a_group_share_its_index():
    group = cedar.InverseKeyedJaggedTensor.from_jagged({"a": jagged([[1], [1], [2]]), "b": jagged([[0], [0], []])})
    options = (FeatureOptions("a", 4), FeatureOptions("b", 4))
    inputs = read_batch({"a": group, "b": group}, options, (), None)
    assert inputs.features[0].by is inputs.features[1].by
    assert inputs.looked_up == 3
    assert len(inputs) == 3


def test_lists_of_one_length_may_be_a_matrix():
    inputs = read_batch({"a": torch.tensor([[1, 2], [3, 0]], dtype=torch.int32)}, (FeatureOptions("a", 4),), (), None)
    assert lists_of(inputs.features[0]) == [[1, 2], [3, 0]]


@pytest.mark.parametrize(
    ("column", "option", "told"),
    [
        (jagged([[1], [7]]), {"rows": 7}, "'a' has the id 7; its table 'a' has the rows 0 to 6"),
        (torch.tensor([3, -1]), {"rows": 7}, "'a' has the id -1"),
        (jagged([[1], [1, 2, 3]]), {"rows": 7, "longest": 2}, "a list of 'a' has 3 ids; features.longest is 2"),
        (jagged([[0.5]], np.float32), {"rows": 7}, "the ids of 'a' are torch.float32"),
        (None, {"rows": 7}, "'a' is not in the batch"),
        (jagged([[1, 2]]), {"rows": 7, "weights": "w"}, "'w' must have one weight per id of 'a'"),
        (
            cedar.InverseKeyedJaggedTensor.from_jagged({"a": jagged([[1, 2]])}), {"rows": 7, "weights": "w"},
            "'a' and its weights 'w' are not in the same dedup group",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_looked_up_is_told(column, option, told):
    batch = {"w": jagged([[0.5]], np.float32)} | ({} if column is None else {"a": column})
    with pytest.raises(CedarError) as failed:
        read_batch(batch, (FeatureOptions("a", **option),), (), None)
    assert told in str(failed.value)


def test_labels_are_shares():
    with pytest.raises(CedarError, match="the label 'y' must be 0 or 1; got 2"):
        read_batch({"a": torch.tensor([1, 2]), "y": torch.tensor([0, 2])}, (FeatureOptions("a", 4),), (), "y")
