"""Filters that the names of folders settle: splits they leave nothing of are not read, and counts behind are known."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from cedar.plan import graph
from cedar.plan.splits import Splits

_DAYS, _ROWS, _GROUP = 12, 240, 40


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Twelve folders of six row groups each, one of them without a day."""
    root = tmp_path_factory.mktemp("days")
    for day in range(_DAYS):
        folder = root / f"day={day or '__HIVE_DEFAULT_PARTITION__'}"
        folder.mkdir()
        rows = np.arange(day * _ROWS, (day + 1) * _ROWS)
        pq.write_table(pa.table({"n": rows}), folder / "part.parquet", row_group_size=_GROUP)
    return str(root)


def of_days(folder: str) -> cedar.Pipeline:
    return cedar.read_parquet(folder).filter(col("day") > 3).filter(col("day") != 7)


WANTED = [n for day in range(4, _DAYS) if day != 7 for n in range(day * _ROWS, (day + 1) * _ROWS)]


def rows(loaders: list[cedar.Loader]) -> list[list[int]]:
    return [[n for batch in loader for n in batch["n"].tolist()] for loader in loaders]


def test_the_filters_above_a_source_choose_its_splits(days: str) -> None:
    p = of_days(days).filter(col("n") >= 0)
    source = graph.sources(p.node)[0]
    splits = Splits(p.node)
    assert len(splits(source)) == 7 * _ROWS // _GROUP
    assert splits.filters(source) == (p.node.inputs[0].inputs[0], p.node.inputs[0])
    assert [splits.settled(node) for node in (p.node, p.node.inputs[0])] == [False, True]


@pytest.mark.heavy
@pytest.mark.parametrize("plan", ["off", "auto"])
@pytest.mark.parametrize("world", [1, 2, 7])
def test_counts_are_known_and_batches_are_the_same_at_any_number_of_ranks(days: str, world: int, plan: str) -> None:
    p = of_days(days).shuffle(seed=3, window=100).batch(16, last="keep")
    one = [batch["n"].tolist() for batch in p.loader(rank=0, world=1, plan="off")]
    assert sorted(n for batch in one for n in batch) == WANTED
    loaders = [p.loader(rank=rank, world=world, plan=plan) for rank in range(world)]
    assert sum(map(len, loaders)) == len(one)
    assert sorted(batch["n"].tolist() for loader in loaders for batch in loader) == sorted(one)
    read = [loader.report().rows_read for loader in loaders]
    assert sum(read) <= len(WANTED) * (1 if world == 1 else 2)  # of the 12 days, 7 are read


@pytest.mark.heavy
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_a_map_between_and_a_filter_that_asks_for_more(days: str, executor: str) -> None:
    mapped = cedar.read_parquet(days).map(lambda n: n + 1, "n").filter(col("day") == 5)
    both = cedar.read_parquet(days).filter((col("day") == 5) & (col("n") % 2 == 0))
    for p in (mapped, both):
        assert not Splits(p.node).filters(graph.sources(p.node)[0])
        with pytest.raises(TypeError, match="only after a run"):
            len(p.batch(8, last="keep").loader(rank=0, world=1, executor=executor))
    found = rows([both.batch(8, last="keep").loader(rank=rank, world=2, executor=executor) for rank in range(2)])
    assert sorted(chain.from_iterable(found)) == list(range(5 * _ROWS, 6 * _ROWS, 2))


def test_a_state_goes_on_at_another_number_of_ranks(days: str) -> None:
    p = of_days(days).shuffle(seed=1, window=128).batch(8, last="keep")
    first = [p.loader(rank=rank, world=3) for rank in range(3)]
    seen, states = [], []
    for steps, loader in enumerate(first, 9):
        batches = iter(loader)
        seen += [n for _ in range(steps) for n in next(batches)["n"].tolist()]
        states.append(json.loads(json.dumps(loader.state_dict())))
    again = [p.loader(rank=rank, world=2) for rank in range(2)]
    for loader in again:
        loader.load_state_dict(states)
    assert sorted(chain(seen, *rows(again))) == WANTED


def test_nothing_is_left(days: str) -> None:
    p = cedar.read_parquet(days).filter(col("day") > 99).batch(4, last="keep")
    for world in (1, 2):
        loaders = [p.loader(rank=rank, world=world) for rank in range(world)]
        assert [len(loader) for loader in loaders] == [0] * world
        assert rows(loaders) == [[]] * world


def test_a_predicate_that_fails_for_a_value_fails_in_the_run(tmp_path: Path) -> None:
    for name in ("x", "7"):
        (tmp_path / f"k={name}").mkdir()
        pq.write_table(pa.table({"n": [1, 2]}), tmp_path / f"k={name}" / "part.parquet")
    p = cedar.read_parquet(str(tmp_path)).filter(col("k").cast(int) > 3)
    with pytest.raises(cedar.CedarError, match="filter"):
        list(p.batch(2).loader(rank=0, world=1))


def test_a_state_from_before_filters_chose_splits_is_refused(days: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p = of_days(days).batch(8)
    with monkeypatch.context() as patch:
        patch.setattr(Splits, "filters", lambda self, source: ())
        state = p.loader(rank=0, world=1).state_dict()
    with pytest.raises(cedar.ResumeError, match="another pipeline"):
        p.loader(rank=0, world=1).load_state_dict(state)


# ---- files: their paths are known from the listing, row by row -------------------------------------------------------

NAME = col("path").str.split("/").list.get(-1)
FILTERS = {
    "by hash": lambda p: p.filter(NAME.hash(7) % 10 != 0),
    "two": lambda p: p.filter(NAME.str.ends_with("1.bin") | NAME.str.contains("5")).filter(NAME != "15.bin"),
    "none left": lambda p: p.filter(NAME == "x"),
    "whole splits": lambda p: p.filter(NAME.str.slice(0, 1) < "1"),
    "above a column": lambda p: p.with_columns(k=col("path")).filter(col("path").str.contains("7")),
}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("many")
    for i in range(100):
        (root / f"{i:02}.bin").write_bytes(bytes(i))
    return f"{root}/*.bin"


@pytest.mark.parametrize("plan", ["off", "auto"])
@pytest.mark.parametrize("what", FILTERS)
def test_filters_on_paths_keep_counts_known(many: str, what: str, plan: str) -> None:
    p = FILTERS[what](cedar.read_files(many))
    names = [row["path"][-6:-4] for row in p.loader(plan=plan, counts="exact")]
    assert p.count() == len(p.loader(plan=plan)) == len(names)
    batches = p.shuffle(seed=1).batch(4, last="keep")
    one = [batch["path"].tolist() for batch in batches.loader(rank=0, world=1, plan="off")]
    assert sorted(path[-6:-4] for batch in one for path in batch) == names
    for world in (2, 3):
        loaders = [batches.loader(rank=rank, world=world, plan=plan) for rank in range(world)]
        assert sum(map(len, loaders)) == len(one)
        found = [[batch["path"].tolist() for batch in loader] for loader in loaders]
        assert list(map(len, loaders)) == list(map(len, found))
        assert sorted(chain.from_iterable(found)) == sorted(one)


def test_other_filters_of_files_are_counted_where_that_is_asked_for(many: str) -> None:
    of_paths = cedar.read_files(many).filter(lambda path: path[-5] == "3", "path")
    of_bytes = cedar.read_files(many).filter(NAME < "50.bin").filter(col("bytes").bin.size() % 2 == 0)
    for p, rows in ((of_paths, 10), (of_bytes, 25)):
        with pytest.raises(TypeError, match="only after a run"):
            len(p.loader())
        loader = p.loader(counts="exact")
        assert len(loader) == len(list(loader)) == rows


def test_a_run_goes_on_behind_filters_on_paths(many: str) -> None:
    p = FILTERS["by hash"](cedar.read_files(many)).shuffle(seed=1).batch(4, last="keep")
    loader = p.loader(rank=0, world=1)
    run = iter(loader)
    head = [next(run)["path"].tolist() for _ in range(3)]
    state = loader.state_dict()
    again = p.loader(rank=0, world=1)
    again.load_state_dict(state)
    tail = [batch["path"].tolist() for batch in again]
    assert head + tail == [batch["path"].tolist() for batch in p.loader(rank=0, world=1)]
