"""A small log of clicks for tests, clustered by session, whose labels follow from its features; and options for it."""

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cedar.trainers.common import config
from cedar.trainers.dlrm.options import Options

ITEMS, TAGS = 60, 30


def write_log(path, rows=1024, samples=16, repeats=0.95, seed=0):
    """Columns: session, d0, d1 (with gaps), item, hist and acts (which repeat together), tags (of each row), label."""
    rng = np.random.default_rng(seed)
    session = np.arange(rows) // samples
    new = np.ones(rows, dtype=bool)
    new[1:] = (np.diff(session) != 0) | (rng.random(rows - 1) >= repeats)
    version = np.cumsum(new) - 1
    lengths = rng.poisson(4, version[-1] + 1)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    hist, acts = rng.integers(0, ITEMS, offsets[-1]), rng.integers(0, 5, offsets[-1])
    lists = lambda values: pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values)).take(pa.array(version))
    item, dense = rng.integers(0, ITEMS, rows), rng.normal(size=(2, rows))
    taste = rng.normal(size=ITEMS)
    sums = np.add.reduceat(np.append(taste[hist], 0.0), np.minimum(offsets[:-1], offsets[-1])) * (lengths > 0)
    logit = dense[0] + taste[item] + 0.5 * sums[version]
    tags = np.concatenate([[0], np.cumsum(rng.integers(0, 4, rows))])
    table = pa.table(
        {
            "session": session,
            "d0": pa.array(dense[0].astype(np.float32)),
            "d1": pa.array(np.abs(dense[1]).astype(np.float32), mask=rng.random(rows) < 0.1),
            "item": item,
            "hist": lists(hist),
            "acts": lists(acts),
            "tags": pa.LargeListArray.from_arrays(pa.array(tags), pa.array(rng.integers(0, TAGS, tags[-1]))),
            "label": (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int8),
        }
    )
    pq.write_table(table, path, row_group_size=256)
    return str(path)


def options(path, **tables):
    """A small model; ``tables`` are settings by table: ``run={"steps": 3}``."""
    values = {
        "data": {
            "paths": path, "dense": ["d0", "d1"], "log": ["d1"], "batch": 64, "session": "session", "interleave": 2,
            "dedup": [["hist", "acts"]], "executor": "inline", "plan": "off", "held_out": 128,
        },
        "features": [
            {"column": "item", "rows": ITEMS},
            {"column": "hist", "rows": ITEMS, "table": "item", "pooling": "transformer"},
            {"column": "acts", "rows": 5, "pooling": "mean"},
            {"column": "tags", "rows": TAGS},
        ],
        "model": {"width": 8, "bottom": [8], "top": [16], "heads": 2},
        "tables": {"backend": "torch", "rate": 0.05},
        "run": {"steps": 4, "threads": 1, "device": "cpu"},
    }  # fmt: skip
    for name, changes in tables.items():
        values[name] = changes if isinstance(changes, list) else values.get(name, {}) | changes
    return config.parse(values, Options, "toy")


def changed(options, table, **values):
    """The same options but for some of one table."""
    return dataclasses.replace(options, **{table: dataclasses.replace(getattr(options, table), **values)})
