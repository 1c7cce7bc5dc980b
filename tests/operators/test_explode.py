"""explode against plain Python, with skipped rows and groups."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core.errors import PipelineError, RowError
from cedar.operators.explode import Explode

ROWS = st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=4), min_size=1, max_size=12)


def table_of(rows, missing=()):
    lists = [None if i in missing else [a for a, _ in row] for i, row in enumerate(rows)]
    others = [None if i in missing else [b for _, b in row] for i, row in enumerate(rows)]
    kind = pa.list_(pa.int64())
    return pa.table({"n": range(len(rows)), "a": pa.array(lists, kind), "b": pa.array(others, kind)})


@given(ROWS, st.sets(st.integers(0, 11)), st.sampled_from([None, 1, 3]))
def test_every_item_is_a_row(rows, missing, window):
    p = cedar.from_arrow(table_of(rows, missing))
    p = p if window is None else p.shuffle(seed=1, window=window)
    found = [(row["n"], row["a"], row["b"]) for row in p.apply(Explode("a", "b"))]
    wanted = [(n, a, b) for n, row in enumerate(rows) if n not in missing for a, b in row]
    assert sorted(found) == sorted(wanted)
    assert window is not None or found == wanted


def test_a_list_of_structs_becomes_its_fields():
    p = cedar.from_items([{"s": 1, "events": [{"x": 1, "y": "a"}, {"x": 2, "y": None}]}, {"s": 2, "events": []}])
    p = p.apply(Explode("events", fields=True))
    assert list(p.schema) == ["s", "x", "y"]
    assert list(p) == [{"s": 1, "x": 1, "y": "a"}, {"s": 1, "x": 2, "y": None}]


def test_a_group_below_it_stays_one():
    rows = [{"h": [1, 2], "c": [1, 2, 3]}, {"h": [1, 2], "c": [4]}, {"h": [], "c": [5, 6]}]
    p = cedar.from_items(rows).dedup([["h"]]).apply(Explode("c")).batch(6)
    (batch,) = p.loader(format="numpy", executor="inline")
    assert batch["c"].tolist() == [1, 2, 3, 4, 5, 6]
    assert batch["h"].inverse_lookup.tolist() == [0, 0, 0, 0, 1, 1]
    assert batch["h"]["h"].to_list() == [[1, 2], []]


def test_skipped_rows_keep_their_place():
    def odd(x):
        if x % 2 == 0:
            raise ValueError("even")
        return x

    p = cedar.from_items([{"x": i, "c": [i, i]} for i in range(6)])
    p = p.map(odd, "x", on_error=cedar.Skip(max_rate=1.0)).apply(Explode("c"))
    assert [row["c"] for row in p] == [1, 1, 3, 3, 5, 5]


def test_lists_of_different_lengths_in_a_row_are_an_error():
    p = cedar.from_items([{"a": [1], "b": [1]}, {"a": [1], "b": [1, 2]}]).apply(Explode("a", "b"))
    with pytest.raises(RowError, match="different lengths") as failure:
        list(p)
    assert failure.value.row.row == 1


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda p: p.apply(Explode()), "at least one"),
        (lambda p: p.apply(Explode("m")).schema, "no column 'm'"),
        (lambda p: p.apply(Explode("n")).schema, "holds no lists"),
        (lambda p: list(p.batch(2).apply(Explode("a"))), "its input gives batches"),
    ],
)
def test_what_cannot_be_exploded_is_refused(call, said):
    with pytest.raises(PipelineError, match=said):
        call(cedar.from_arrow(table_of([[(1, 2)], [(3, 4)]])))


def test_fields_with_names_that_are_taken_are_refused():
    p = cedar.from_items([{"s": 1, "events": [{"s": 1}]}])
    with pytest.raises(PipelineError, match="two columns 's'"):
        p.apply(Explode("events", fields=True)).schema  # noqa: B018


@pytest.mark.parametrize("x", [1, {2}])
def test_columns_without_lists_are_refused_at_the_line_of_explode(x):
    for rows in (cedar.from_items([{"x": x}]), cedar.from_items([{"y": 1}]).map(lambda y: x, "y", into="x")):
        p = rows.explode("x")
        with pytest.raises(cedar.PipelineError, match="holds no lists") as caught:
            p.to_arrow()
        assert caught.value.fix
        assert caught.value.site == p.node.site
