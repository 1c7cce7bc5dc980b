"""pack."""

import inspect
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core.columns import UNKNOWN, TensorType
from cedar.core.errors import PipelineError
from cedar.operators import pack
from cedar.operators.pack import Pack
from tests.toy_stream import ListStream, check, context, drain

SEEDS = st.integers(0, 10**6)
LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=14)


def tokens(lengths):
    """Documents whose token is 100 times the document's number (from 1), plus its place."""
    return [[100 * (i + 1) + k for k in range(n)] for i, n in enumerate(lengths)]


def stream_of(lengths, seed=0, dead=(), marks=(), known=True):
    columns = {"t": pa.array(tokens(lengths), pa.list_(pa.int64())), "other": list(range(len(lengths)))}
    return ListStream(columns, seed=seed, dead=dead, marks=marks, known=known)


def check_row(row, length):
    """The added columns follow from the tokens."""
    segment, last = 0, None
    for token, number, place in zip(row["t"], row["segment_ids"], row["positions"], strict=True):
        if token == 0:
            assert (number, place) == (0, 0)
            continue
        if token // 100 != last:
            segment, last = segment + 1, token // 100
        assert (number, place) == (segment, token % 100)
    assert len(row["t"]) == length
    assert list(row) == ["t", "segment_ids", "positions"]


@pytest.mark.heavy
@given(LENGTHS, st.integers(1, 8), st.sets(st.integers(0, 13), max_size=3), SEEDS)
def test_concat_drops_nothing_and_pads_only_the_end(lengths, length, dead, seed):
    dead = sorted(d for d in dead if d < len(lengths))
    units = check(Pack(length, ("t",)), [stream_of(lengths, seed, dead, marks=[3])], seed=seed, opens=10)
    rows = [row for _, row in units if row is not None]
    flat = [t for i, document in enumerate(tokens(lengths)) if i not in dead for t in document]
    packed = [t for row in rows for t in row["t"]]
    assert packed == flat + [0] * (-len(flat) % length)
    for row in rows:
        check_row(row, length)
    assert [key[3] for key, row in units if row is None] == dead
    assert len({key for key, _ in units}) == len(units)
    for key, row in units:  # the key names the first token
        assert row is None or (key[3] + 1) * 100 + key[4] == row["t"][0]


@pytest.mark.heavy
@given(LENGTHS, st.integers(1, 8), st.sets(st.integers(0, 13), max_size=3), st.sets(st.integers(0, 13)), SEEDS)
def test_best_keeps_documents_whole_and_closes_at_windows(lengths, length, dead, marks, seed):
    dead = sorted(d for d in dead if d < len(lengths))
    source = stream_of(lengths, seed, dead, marks)
    units = check(Pack(length, ("t",), fit="best"), [source], seed=seed, opens=10)
    rows = [row for _, row in units if row is not None]
    flat = sorted(t for i, document in enumerate(tokens(lengths)) if i not in dead for t in document)
    assert sorted(t for row in rows for t in row["t"] if t) == flat
    windows = [sum(m < i for m in source.marks) for i in range(len(lengths))]
    for row in rows:
        check_row(row, length)
        documents = {t // 100 - 1 for t in row["t"] if t}
        assert len({windows[d] for d in documents}) == 1
    for document in range(len(lengths)):
        holders = [r for r in rows if any(t // 100 - 1 == document for t in r["t"])]
        assert document in dead or len(holders) == -(-lengths[document] // length)
    assert sorted(key[3] for key, row in units if row is None) == dead
    assert len({key for key, _ in units}) == len(units)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), SEEDS)
def test_a_window_without_end_closes_after_so_many_documents(lengths, seed):
    kept, pack._WINDOW = pack._WINDOW, 4
    try:
        units = check(Pack(6, ("t",), fit="best"), [stream_of(lengths, seed, marks=[5])], seed=seed)
    finally:
        pack._WINDOW = kept
    flat = sorted(t for document in tokens(lengths) for t in document)
    assert sorted(t for _, row in units for t in row["t"] if t) == flat
    # a window is 4 documents, or ends after document 5
    windows = [0] * 4 + [1] * 2 + [2 + i // 4 for i in range(len(lengths))]
    assert all(len({windows[t // 100 - 1] for t in row["t"] if t}) == 1 for _, row in units)


def test_long_documents_run_through_many_rows():
    source = stream_of([0, 95, 0, 3])
    units = check(Pack(4), [source], opens=20)
    assert [row["positions"] for _, row in units][:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert units[23][1] == {"t": [292, 293, 294, 400], "segment_ids": [1, 1, 1, 2], "positions": [92, 93, 94, 0]}
    assert units[24][1] == {"t": [401, 402, 0, 0], "segment_ids": [1, 1, 0, 0], "positions": [1, 2, 0, 0]}


def test_rows_that_were_cut_before_are_told_apart():
    outer = Pack(2).stream((ListStream({"t": tokens([4, 4])}, late=0),), context())
    inner = Pack(1, ("t",)).stream((outer,), context())
    units, _, _ = drain(inner.open([inner.start(), 0]), random.Random(0))
    assert [row["t"] for _, row in units] == [[t] for document in tokens([4, 4]) for t in document]
    assert len({key for key, _ in units}) == len(units)


@pytest.mark.parametrize(("arguments", "text"), [((0,), "integer"), ((4, (), "worst"), "fit='worst'")])
def test_bad_arguments(arguments, text):
    with pytest.raises(PipelineError, match=text):
        Pack(*arguments)


LISTS = {"t": [[1, 2, 3], [4]], "n": [[9, 8, 7], [6]]}


@pytest.mark.parametrize("fit", ["concat", "best"])
@pytest.mark.parametrize("kind", ["bool", "int8", "int32", "uint16", "int64", "uint64", "float16", "float64"])
def test_padding_holds_the_value_of_its_column(fit, kind):
    lists = pa.array([[1, 0, 1], [1]]).cast(pa.list_(pa.from_numpy_dtype(kind)))
    table = pa.table({"t": pa.array(LISTS["t"]), "n": lists})
    rows = list(cedar.from_arrow(table).pack(3, "t", "n", fit=fit, value={"n": 1}))
    assert [row["n"].tolist() for row in rows] == [[1, 0, 1], [1, 1, 1]]
    assert [row["t"].tolist() for row in rows] == [[1, 2, 3], [4, 0, 0]]
    assert (rows[1]["segment_ids"].tolist(), rows[1]["positions"].tolist()) == ([1, 0, 0], [0, 0, 0])
    assert rows[0]["n"].dtype == kind
    assert [row["t"].tolist() for row in cedar.from_arrow(table).pack(3, fit=fit, value=1)][-1] == [4, 1, 1]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"t": 1 << 31}, "column 't' of int32 cannot hold the value 2147483648"),
        (0.5, "cannot hold"), (float("nan"), "cannot hold"), ({"x": 1e5}, "'x' of float16 cannot hold"),
        ({"labels": -100}, "value= names 'labels'"), ("0", "filled with a number"), ({3: 0}, "filled with a number"),
        (None, "filled with a number"),
    ],
)  # fmt: skip
def test_values_that_padding_cannot_hold_are_refused_at_the_users_line(value, text):
    lists, broken = pa.array([[1, 2]], pa.list_(pa.int32())), pa.array([[1, 2]], pa.list_(pa.float16()))
    given = cedar.from_arrow(pa.table({"t": lists, "x": broken}))
    typed_by_the_run = given.map(lambda t, x: (np.int32(t), np.float16(x)), "t", "x", into=("t", "x"))
    for p in (given, typed_by_the_run):
        with pytest.raises(PipelineError, match=text) as caught:
            list(
                p.pack(3, value=value),
            )
        assert caught.value.site.line == inspect.currentframe().f_lineno - 2


def test_schema():
    lists, added = pa.large_list(pa.int32()), TensorType((4,), "int32")
    known = Pack(4).schema({"t": lists, "name": pa.large_string()})
    assert known == {"t": added, "segment_ids": added, "positions": added}
    assert Pack(4).schema({"t": lists, "u": UNKNOWN}) is None
    assert Pack(4).schema(None) is None
    assert Pack(4, ("u",)).schema({"u": UNKNOWN}) == {"u": UNKNOWN, "segment_ids": added, "positions": added}
    assert Pack(4, ("u",)).schema(None) == {"u": UNKNOWN, "segment_ids": added, "positions": added}
    with pytest.raises(PipelineError, match="no column 'v'"):
        Pack(4, ("v",)).schema({"u": lists})
    with pytest.raises(PipelineError, match="'u' is int64"):
        Pack(4, ("u",)).schema({"u": pa.int64()})
    with pytest.raises(PipelineError, match="before batch"):
        Pack(4).batched(True)


def test_nothing_from_nothing():
    assert check(Pack(4), [stream_of([1], dead=[0])])[0][1] is None
    assert check(Pack(4), [stream_of([0, 0])]) == []
    assert check(Pack(4, fit="best"), [stream_of([0, 0])]) == []
    assert Pack(4, fit="best").ordering.windowed
    assert not Pack(4).ordering.windowed
    assert Pack(4, value={"t": -1}).label() == "pack(4, value={'t': -1})"
