"""layout_place: plans before and after."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar.optimizer.facts import CacheCosts
from cedar.optimizer.rules.layout_place import layout_place
from tests.optimizer.plan_lines import after, decided, table


def f(x):
    return x


def drawn(x, rng):
    return x


@pytest.fixture
def path(tmp_path):
    pq.write_table(pa.table({"a": range(4), "b": range(4)}), tmp_path / "t.parquet")
    return str(tmp_path / "t.parquet")


def keeping(layout="new", streams=False):
    return {"keeping": CacheCosts(lambda place: 0.0, 0, layout=layout), "streams": lambda node: streams}


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda p: p.batch(2), "read -> cache -> batch"),
        (lambda p: p.map(f, "a").batch(2), "read -> map(f) -> cache -> batch"),
        (
            lambda p: p.map(f, "a").map(drawn, "a", random=True).map(f, "b"),
            "read -> map(f) -> cache -> map(drawn) -> map(f)",
        ),
        (lambda p: p.map(f, "a").cache("memory"), "read -> map(f) -> cache"),  # where the user said
    ],
)
def test_rows_are_laid_out_above_what_is_the_same_in_every_epoch(make, expected, path):
    p = make(cedar.read_parquet(path))
    assert after(p, layout_place, **keeping()) == expected
    assert after(p, layout_place, **keeping(layout=None)) == after(p)


def test_what_is_laid_out_is_told(path):
    (told,) = decided(cedar.read_parquet(path).map(f, "a").batch(2), layout_place, **keeping())
    assert told == "applied  layout_place: layout('new'): above map(f)"


def test_only_files_that_can_be_split_are_laid_out(path):
    assert after(table("a").batch(2), layout_place, **keeping()) == "read -> batch"
    (told,) = decided(cedar.read_parquet(path).batch(2), layout_place, **keeping(streams=True))
    assert told.startswith("refused  layout_place: layout('new')")
    assert "it cannot be split" in told
