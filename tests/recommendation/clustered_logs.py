"""What the tests of clustering share: a log, and what of one that was clustered must hold."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.toy_sessions import interleaved, sessions


def rows_of(table):
    names = sorted(table.column_names)
    return sorted(repr([row[name] for name in names]) for row in table.to_pylist())


def check(folder, session, sort):
    """Sessions whole in their row groups, and in order of time."""
    seen = set()
    for name in sorted(os.listdir(folder)):
        file = pq.ParquetFile(folder / name)
        for i in range(file.num_row_groups):
            group = file.read_row_group(i)
            keys, times = group[session].to_pylist(), group[sort].to_pylist()
            runs = [key for j, key in enumerate(keys) if j == 0 or keys[j - 1] != key]
            assert len(runs) == len(set(runs)), "a session's rows are next to each other"
            assert not seen & set(runs), "a session is in one row group"
            seen |= set(runs)
            assert all(times[j - 1] <= times[j] for j in range(1, len(keys)) if keys[j] == keys[j - 1])
    return seen


def mixed_log(folder):
    """3,000 rows of 300 sessions, mixed; in two files of several row groups."""
    table = interleaved(sessions(3000, 10, 0.9, vary=True), 40)
    table = table.append_column("ts", pa.array(np.arange(3000)))
    folder.mkdir()
    pq.write_table(table.slice(0, 1800), folder / "a.parquet", row_group_size=250)
    pq.write_table(table.slice(1800), folder / "b.parquet", row_group_size=250)
    return folder
