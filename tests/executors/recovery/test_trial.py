"""Trials: a row is to blame if it ends fresh processes alone; else its block is, if that does."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cedar
from cedar.datasets.base import Split
from cedar.engine.streams import stage

pytestmark = [pytest.mark.heavy, pytest.mark.waits]

ROWS = 100  # of a split


class Numbers:
    """Rows x = 0 .. 100 splits - 1; a split is a block."""

    def __init__(self, splits: int) -> None:
        self.count = splits

    def splits(self) -> list[Split]:
        return [Split(file=i, rows=ROWS, bytes=8 * ROWS) for i in range(self.count)]

    def read(self, split: Split) -> list[pa.Table]:
        return [pa.table({"x": range(split.file * ROWS, (split.file + 1) * ROWS)})]

    def url(self, file: int) -> str:
        return f"file-{file}.bin"


def after(rows: dict[int, int]) -> Any:
    """A function that damages its process at some rows, which then dies so many calls later."""

    def damages(x: int) -> int:
        armed = sys.__dict__.setdefault("_armed", [])  # of the process
        if x in rows:
            armed.append(rows[x] + 1)
        armed[:] = [left - 1 for left in armed]
        if 0 in armed:
            os.abort()
        return x

    return damages


def vectorised(table: pa.Table) -> pa.Table:
    damages = after({170: 5})
    for x in table["x"].to_pylist():
        damages(x)
    return table


async def in_flight(x: int) -> int:
    return after({170: 5})(x)  # type: ignore[no-any-return]


def steps_on(x: int) -> int:
    """Dies at rows behind one that another operator damaged the process at."""
    if getattr(sys, "_damaged", x + 1) <= x:
        os.abort()
    return x


def damages_for_another(x: int) -> int:
    if x == 170:
        sys._damaged = 175  # type: ignore[attr-defined]
    return x


class Items:
    def __len__(self) -> int:
        return 3 * ROWS

    def __getitem__(self, i: int) -> dict[str, int]:
        return {"x": after({170: 5})(i)}


@pytest.fixture(autouse=True)
def whole_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task has a block: it is not cut by the time that rows take."""
    monkeypatch.setattr(stage, "_FIRST_ROWS", ROWS)
    monkeypatch.setattr(stage.StageFlow, "_adapt", lambda *_: None)


def run(pipeline: cedar.Pipeline, **options: Any) -> tuple[list[int], cedar.Loader]:
    with pipeline.batch(10, last="keep").loader(executor="processes", workers=1, plan="off", **options) as loader:
        return [x for batch in loader for x in batch["x"].tolist()], loader


def numbers(splits: int = 3) -> cedar.Pipeline:
    return cedar.from_source(Numbers(splits))


def but(*left_out: int, splits: int = 3) -> list[int]:
    return [x for x in range(splits * ROWS) if x not in left_out]


DAMAGES = after({170: 5})
SECOND = range(ROWS, 2 * ROWS)
KINDS: dict[str, cedar.Pipeline] = {
    "map(damages)": numbers().map(after({170: 5}), "x", dtype=int),
    "flat_map(<lambda>)": numbers().flat_map(lambda x: [DAMAGES(x)], "x", dtype=int),
    "filter(<lambda>)": numbers().filter(lambda x: DAMAGES(x) >= 0, "x"),
    "map(steps_on)": numbers().map(damages_for_another, "x", dtype=int).map(steps_on, "x", dtype=int),
    "map_batches(vectorised)": numbers().map_batches(vectorised, "x"),
    "map(in_flight)": numbers().map(in_flight, "x", dtype=int),
    "map(<lambda>)": numbers().map(lambda row: {"x": DAMAGES(row["x"])}, dtype={"x": int}),
}


@pytest.mark.parametrize("label", KINDS)
def test_a_block_that_crashes_together_is_named_and_dropped_where_the_policy_says_so(
    label: str, tmp_path: Path
) -> None:
    with pytest.raises(cedar.RowError, match="on rows 0 to 99 together and on none of them alone") as caught:
        run(KINDS[label], on_error=cedar.Skip())
    assert caught.value.row is not None
    assert str(caught.value.row) == "file-1.bin, rows starting at 0, epoch 0"
    assert "cedar.Skip(blocks=True)" in str(caught.value.fix)
    assert "killed by SIGABRT" in str(caught.value)
    rows, loader = run(KINDS[label], on_error=cedar.Skip(blocks=True, quarantine=str(tmp_path), max_count=ROWS))
    assert rows == but(*SECOND)
    report = loader.report()
    assert report.skipped == {label: ROWS}
    assert report.restarts <= 4
    assert "its block is a bad block" in report.deaths[-1]
    lines = [json.loads(line) for line in (tmp_path / "rank-0.jsonl").read_text().splitlines()]
    assert [(line["source"], line["row"], line["operator"]) for line in lines] == [
        ("file-1.bin", row, label) for row in range(ROWS)
    ]


def test_items_that_crash_together_are_named_and_dropped_where_the_policy_says_so() -> None:
    items = cedar.from_items(Items(), dtypes={"x": int})
    for policy in (None, cedar.Skip()):
        with pytest.raises(cedar.RowError, match=r"BlockKilled: .*, on rows \d+ to \d+ together") as caught:
            run(items, on_error=policy)
        assert "cedar.Skip(blocks=True)" in str(caught.value.fix)
    rows, loader = run(items, on_error=cedar.Skip(blocks=True))
    assert 170 not in rows
    assert sum(loader.report().skipped.values()) == 3 * ROWS - len(rows)


def test_without_a_policy_the_error_names_the_block() -> None:
    with pytest.raises(cedar.RowError, match=r"map\(damages\) failed: BlockKilled: .*on rows 0 to 99 together"):
        run(KINDS["map(damages)"])


def test_rows_of_a_dropped_block_count_against_the_budget() -> None:
    with pytest.raises(cedar.RowError, match="more than max_count=99"):
        run(KINDS["map(damages)"], on_error=cedar.Skip(blocks=True, max_count=ROWS - 1))


def test_a_row_that_crashes_alone_is_found_in_a_block_that_does_so_without_it() -> None:
    both = numbers().map(after({20: 0, 120: 0, 170: 5}), "x", dtype=int)
    rows, loader = run(both, on_error=cedar.Skip(blocks=True))
    assert rows == but(20, *SECOND)
    assert loader.report().skipped == {"map(damages)": 1 + ROWS}


def test_damage_that_shows_in_a_later_block_drops_nothing() -> None:
    guilty = {95: 10, 190: 15}
    rows, loader = run(numbers(4).map(after(guilty), "x", dtype=int, on_error=cedar.Skip()))
    assert rows == but(splits=4)
    assert 1 <= loader.report().restarts <= 2 * len(guilty)


def test_a_row_that_was_only_at_hand_is_delivered(tmp_path: Path) -> None:
    def unlucky(x: int) -> int:
        if x == 70 and len(os.listdir(tmp_path)) < 2:  # as where something else kills the process, twice
            (tmp_path / str(os.getpid())).touch()
            os.abort()
        return x

    rows, loader = run(numbers().map(unlucky, "x", dtype=int, on_error=cedar.Skip()))
    assert rows == but()
    assert loader.report().restarts == 2


def test_what_neither_a_row_nor_a_block_is_to_blame_for_ends_the_run(tmp_path: Path) -> None:
    def unlucky(x: int) -> int:
        sys.__dict__.setdefault("_rows", set()).add(x)  # of the process
        if x == 70 and 69 in sys._rows:  # type: ignore[attr-defined]
            count = len(os.listdir(tmp_path)) + 1
            (tmp_path / str(count)).touch()
            if count == 1 or count % 2 == 0:  # never in the trial of the block
                os.abort()
        return x

    with pytest.raises(cedar.WorkerError, match=r"workers died \d+ times while running map\(unlucky\), and no"):
        run(numbers().map(unlucky, "x", dtype=int, on_error=cedar.Skip(blocks=True)))


def test_a_row_to_blame_costs_one_death_in_the_next_epoch() -> None:
    bad = numbers(1).map(after({70: 0}), "x", dtype=int, on_error=cedar.Skip()).batch(10)
    with bad.loader(executor="processes", workers=1, plan="off") as loader:
        one = [x for batch in loader for x in batch["x"].tolist()]
        spent = loader.report().restarts
        two = [x for batch in loader for x in batch["x"].tolist()]
        assert one == two == but(70, splits=1)
        assert (spent, loader.report().restarts) == (3, 4)
