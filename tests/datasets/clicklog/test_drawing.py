"""The synthetic log has the repetition, the order and the click model that it was asked for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cedar.core.errors import PipelineError
from cedar.datasets.clicklog import ClickLog, write_sessions


def by_session(table):
    """Rows of a session together, in order of time; and which rows follow one of the same session."""
    session, ts = table["session_id"].to_numpy(), table["ts"].to_numpy()
    table = table.take(pa.array(np.lexsort((np.arange(len(ts)), ts, session))))
    session = table["session_id"].to_numpy()
    return table, session[1:] == session[:-1]


def repeats(table, name):
    table, inside = by_session(table)
    lists = table[name].to_pylist()
    return np.mean([a == b for a, b, i in zip(lists[1:], lists[:-1], inside, strict=True) if i])


def test_columns_and_files(written):
    log, made, folder = written
    table = pq.read_table(folder)
    assert table.column_names == log.columns()
    assert [pq.read_metadata(url).num_rows for url in made.urls] == [12_000, 8_000]
    assert pq.read_metadata(made.urls[0]).num_row_groups == 3


def test_sessions_have_as_many_rows_and_interleave(written):
    _, _, folder = written
    table = pq.read_table(folder)
    session = table["session_id"].to_numpy()
    _, counts = np.unique(session, return_counts=True)
    assert counts.min() >= 1
    assert counts.max() == 8
    assert np.mean(session[1:] == session[:-1]) < 0.05
    assert (np.diff(table["ts"].to_numpy()) >= 0).all()


def test_lists_repeat_as_often_as_asked(written):
    _, _, folder = written
    table = pq.read_table(folder)
    for name, wanted in (("hist_items", 0.9), ("slides", 0.5), ("a", 0.7), ("u0", 0.95)):
        assert repeats(table, name) == pytest.approx(wanted, abs=0.02), name
    assert repeats(table, "i0") < 0.01


def test_lists_of_a_group_change_together(written):
    _, _, folder = written
    table, inside = by_session(pq.read_table(folder))
    a, b = table["a"].to_pylist(), table["b"].to_pylist()
    changed = [(x != y, z != w) for x, y, z, w in zip(a[1:], a[:-1], b[1:], b[:-1], strict=True)]
    differ = [one != other for (one, other), i in zip(changed, inside, strict=True) if i]
    assert np.mean(differ) < 0.03  # empty lists, or the same ids by chance


def test_a_history_slides(written):
    _, _, folder = written
    table, inside = by_session(pq.read_table(folder))
    lists = table["slides"].to_pylist()
    for before, now, i in zip(lists[:2000], lists[1:2001], inside, strict=False):
        if i and before != now:
            assert len(now) == len(before)
            assert now[:-2] == before[2:]


def test_the_same_seed_gives_the_same_rows(tmp_path):
    log = ClickLog(samples=3, vary=True)
    tables = []
    for i, seed in enumerate((1, 1, 2)):
        write_sessions(tmp_path / str(i), 500, seed, log=log)
        tables.append(pq.read_table(tmp_path / str(i)))
    assert tables[0].equals(tables[1])
    assert not tables[0].equals(tables[2])


def test_no_rows_are_refused(tmp_path):
    with pytest.raises(PipelineError, match="rows=0"):
        write_sessions(tmp_path, 0)
