"""Train and evaluation apart: all rows, no session in both."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.core.errors import PipelineError, RowError
from cedar.recommendation import split_by_session, split_by_time

ROWS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 20)), min_size=1, max_size=30)


def read(pipeline):
    return [(row["s"], row["t"]) for row in pipeline.loader(executor="inline")]


@pytest.mark.heavy
@given(ROWS, st.integers(0, 20), st.booleans())
def test_by_time_no_session_is_in_both(rows, at, text):
    keys = [f"s{s}" if text else s for s, _ in rows]
    rows = list(zip(keys, [t for _, t in rows], strict=True))
    p = cedar.from_arrow(pa.table({"s": keys, "t": [t for _, t in rows]}))
    train, evaluation = map(read, split_by_time(p, time="t", at=at, session="s", executor="inline"))
    late = {s for s, t in rows if t >= at}
    assert train == [row for row in rows if row[0] not in late]
    assert evaluation == [row for row in rows if row[0] in late]


def test_by_time_a_rank_sees_the_sessions_of_all_ranks(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    rows = cedar.from_items([{"s": 1, "t": 0}, {"s": 1, "t": 9}])
    train, _ = split_by_time(rows, time="t", at=5, session="s", executor="inline")
    assert train.count() == 0


def test_by_time_without_sessions():
    times = [dt.datetime(2024, 1, day) for day in (1, 2, 3)]
    p = cedar.from_arrow(pa.table({"s": [1, 1, 1], "t": times}))
    train, evaluation = split_by_time(p, time="t", at=times[1])
    assert (train.count(), evaluation.count()) == (1, 2)


@pytest.mark.parametrize("text", [False, True])
def test_by_session_whole_sessions_go_by_their_key(text):
    keys = [f"user {i // 5}" if text else i // 5 for i in range(5000)]
    p = cedar.from_arrow(pa.table({"s": keys, "t": range(5000)}))
    train, evaluation = map(read, split_by_session(p, session="s", evaluation=0.3, seed=1))
    assert sorted(train + evaluation, key=lambda row: row[1]) == list(zip(keys, range(5000), strict=True))
    held = {s for s, _ in evaluation}
    assert not held & {s for s, _ in train}
    assert 240 < len(held) < 360
    order = np.random.default_rng(0).permutation(5000)
    mixed = cedar.from_arrow(pa.table({"s": [keys[i] for i in order], "t": order}))
    assert {s for s, _ in read(split_by_session(mixed, session="s", evaluation=0.3, seed=1)[1])} == held
    assert {s for s, _ in read(split_by_session(mixed, session="s", evaluation=0.3, seed=2)[1])} != held


@pytest.mark.parametrize("key", [[1, None], ["a", None]])
def test_a_null_session_is_an_error(key):
    p = cedar.from_arrow(pa.table({"s": key, "t": [1, 2]}))
    with pytest.raises(RowError, match="session is null"):
        list(split_by_session(p, session="s")[0])
    with pytest.raises(PipelineError, match="column 's' is null in 1 row"):
        split_by_time(p, time="t", at=2, session="s", executor="inline")


def test_what_cannot_be_split_is_refused():
    p = cedar.from_arrow(pa.table({"s": [1.5], "t": [1]}))
    for call, said in (
        (lambda: split_by_session(p, session="s"), "is double"),
        (lambda: split_by_session(p, session="x"), "no column 'x'"),
        (lambda: split_by_session(p, session="t", evaluation=2), "evaluation=2"),
        (lambda: split_by_time(p, time="x", at=1), "no column 'x'"),
    ):
        with pytest.raises(PipelineError, match=said):
            call()
