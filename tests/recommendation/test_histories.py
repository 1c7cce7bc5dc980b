"""Sessions and histories against what plain Python makes of the events."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import PipelineError
from cedar.recommendation import add_sessions, history
from cedar.recommendation.rows import starts_run
from cedar.recommendation.slices import Slices, sliding_factor

EVENTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 99), st.booleans()), min_size=1, max_size=40
)


def model(events, gap, n, at, clicked_only):
    """Rows (user, minute, item, session, history), by looking at each row alone."""
    ordered = sorted(events, key=lambda e: (_place(events, e[0]), e[1]))
    rows, session, start = [], -1, 0
    for i, (user, minute, item, _) in enumerate(ordered):
        if i == 0 or ordered[i - 1][0] != user or minute - ordered[i - 1][1] > gap:
            session, start = session + 1, i
        until = start if at == "session" else i
        past = [e[2] for e in ordered[:until] if e[0] == user and (e[3] or not clicked_only)]
        rows.append((user, minute, item, session, past[-n:]))
    return rows


def _place(events, user):
    """Users stand in the order in which they first occur."""
    return next(i for i, e in enumerate(events) if e[0] == user)


@given(EVENTS, st.integers(1, 12), st.integers(1, 5), st.sampled_from(["session", "event"]), st.booleans())
def test_sessions_and_histories_are_those_of_the_model(events, gap, n, at, clicked_only):
    names = ("user", "ts", "item", "click")
    table = pa.table({name: [e[i] for e in events] for i, name in enumerate(names)})
    table = table.set_column(1, "ts", pa.array([e[1] * 60 for e in events]))
    made = history("item", n, at, where="click" if clicked_only else None)
    found = add_sessions(table, "user", "ts", gap=gap, histories=[made])
    rows = zip(
        found["user"].to_pylist(), [t // 60 for t in found["ts"].to_pylist()], found["item"].to_pylist(),
        found["session_id"].to_pylist(), found["hist_item"].to_pylist(), strict=True,
    )  # fmt: skip
    assert list(rows) == model(events, gap, n, at, clicked_only)


def test_without_a_gap_a_user_is_one_session():
    table = pa.table({"u": [2, 1, 2], "ts": [0, 0, 10**9]})
    found = add_sessions(table, "u", "ts")
    assert found["u"].to_pylist() == [2, 2, 1]
    assert found["session_id"].to_pylist() == [0, 0, 1]


def test_a_history_at_each_event_is_slices_of_the_events():
    """S rows of a session, windows of L values, m = 1 new one from row to row."""
    samples, length, sessions = 16, 50, 40
    users = np.repeat(np.arange(sessions), samples + length)
    table = pa.table({"item": np.arange(len(users))})
    held = history("item", length, "event").slices(table, starts_run(users), starts_run(users))
    assert isinstance(held, Slices)
    assert held.plain().to_pylist()[length] == list(range(length))
    full = held.lengths == length  # rows with a whole window
    used = sum(length + int(full[users == u].sum()) - 1 for u in range(sessions))
    factor = int(held.lengths[full].sum()) / used
    assert factor == pytest.approx(sliding_factor(samples, length, 1), rel=0.15)


def test_a_frozen_history_has_the_factor_of_its_session():
    users, ts = np.repeat(np.arange(50), 8), np.tile(np.arange(8) * 60, 50)
    table = pa.table({"u": users, "ts": ts, "item": np.arange(400)})
    later = pa.table({"u": users, "ts": ts + 10**6, "item": np.arange(400)})
    found = add_sessions(pa.concat_tables([table, later]), "u", "ts", gap=30, histories=[history("item", 5)])
    lists = [tuple(x) for x in found["hist_item"].to_pylist()]
    assert len(set(lists)) == 51  # one for each second session, and the empty one
    assert len(set(found["session_id"].to_pylist())) == 100


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda t: history("item", 0), "n=0"),
        (lambda t: history("item", 5, "row"), "at='row'"),
        (lambda t: add_sessions(t, "u", "tss"), "ts"),
        (lambda t: add_sessions(t, "u", "item", gap=-1), "gap=-1"),
        (lambda t: add_sessions(t, "gaps", "item"), "'gaps' is null"),
        (lambda t: add_sessions(t, "u", "name", gap=1), "does not hold times"),
        (lambda t: add_sessions(t, "u", "item", gap=1, unit="h"), "unit='h'"),
        (lambda t: add_sessions(t, "u", "item", histories=[history("name", 5)]), "need numbers"),
        (lambda t: add_sessions(t, "u", "item", histories=[history("gaps", 5)]), "1 null"),
        (lambda t: add_sessions(t, "u", "item", into="u"), "column 'u' already"),
    ],
)
def test_what_cannot_be_made_is_refused(call, said):
    table = pa.table({"u": [1, 1], "item": [5, 6], "name": ["a", "b"], "gaps": [1, None]})
    with pytest.raises(PipelineError, match=said) as caught:
        call(table)
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


def test_frames_are_accepted():
    table = pa.table({"u": [2, 1, 2], "ts": [0, 60, 9000]})
    want = add_sessions(table, "u", "ts", gap=30).to_pylist()
    frame = pl.DataFrame(table)
    for events in (frame, frame.to_pandas()):
        assert add_sessions(events, "u", "ts", gap=30).to_pylist() == want
    with pytest.raises(PipelineError, match="not LazyFrame"):
        add_sessions(frame.lazy(), "u", "ts")
