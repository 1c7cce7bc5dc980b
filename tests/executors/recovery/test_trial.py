"""Trials: a row is dropped or named only where it ends a process by itself, or those that follow it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.datasets.base import Split
from cedar.executors.recovery.trial import shortest

ROWS = 100  # of a split, which is a block


class Numbers:
    """Rows x = 0 .. 100 splits - 1."""

    def __init__(self, splits: int = 2) -> None:
        self.count = splits

    def splits(self) -> list[Split]:
        return [Split(file=i, rows=ROWS, bytes=8 * ROWS) for i in range(self.count)]

    def read(self, split: Split) -> list[pa.Table]:
        return [pa.table({"x": range(split.file * ROWS, (split.file + 1) * ROWS)})]


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


def run(pipeline: cedar.Pipeline, workers: int = 1, **options: Any) -> tuple[list[int], cedar.Loader]:
    with pipeline.batch(10, last="keep").loader(executor="processes", workers=workers, plan="off", **options) as loader:
        return [x for batch in loader for x in batch["x"].tolist()], loader


def but(*left_out: int, splits: int = 2) -> list[int]:
    return [x for x in range(splits * ROWS) if x not in left_out]


# ---- the search ------------------------------------------------------------------------------------------------------


@given(st.integers(1, 5000), st.data())
def test_the_fewest_rows_that_die_are_found_for_few_deaths(rows: int, data: Any) -> None:
    least = data.draw(st.integers(1, rows))
    deaths = []

    def dies(run: int) -> bool:
        assert 1 <= run <= rows
        if run >= least:
            deaths.append(run)
        return bool(run >= least)

    assert shortest(dies, rows) == least
    assert len(deaths) <= (1 if least == 1 else 2 if least <= 64 else 2 + (least // 64).bit_length())


@given(st.integers(1, 5000))
def test_rows_that_all_live_cost_little(rows: int) -> None:
    runs: list[int] = []
    assert shortest(lambda run: bool(runs.append(run)), rows) is None
    assert runs[-1] == rows
    assert sum(runs) <= 600 + 3 * rows


# ---- whole runs ------------------------------------------------------------------------------------------------------


def test_the_row_that_damaged_the_process_is_dropped_and_not_those_at_hand_when_it_died() -> None:
    guilty = {70: 5, 72: 9, 130: 0}  # of the second, the damage shows while the first one's does not
    bad = cedar.from_source(Numbers()).map(after(guilty), "x", dtype=int, on_error=cedar.Skip())
    rows, loader = run(bad)
    assert rows == but(*guilty)
    report = loader.report()
    assert report.restarts <= 4 * len(guilty)
    for row in guilty:
        (named,) = [
            death for death in report.deaths if "the row is a bad row" in death and f"row {row % ROWS}," in death
        ]
        assert "killed by SIGABRT, at map(damages)" in named


def test_a_row_in_whose_way_the_damage_came_is_innocent() -> None:
    def damages(x: int) -> int:
        seen = sys.__dict__.setdefault("_seen", set())  # of the process, as its heap
        seen.add(x)
        if (x == 75 and {69, 70} <= seen) or (x == 82 and 70 in seen):  # what 69 holds lies beside what 70 breaks
            os.abort()
        return x

    rows, _ = run(cedar.from_source(Numbers(1)).map(damages, "x", dtype=int, on_error=cedar.Skip()))
    assert rows == but(70, splits=1)


def test_a_row_that_any_other_could_stand_in_for_is_innocent() -> None:
    """Damage that shows only behind so many rows, as that of a heap does: not the first of these did it."""

    def damages(x: int) -> int:
        done = sys.__dict__.setdefault("_done", [])  # of the process
        done.append(x)
        if 60 in done and len(done) >= done.index(60) + 1 + 5 and done.index(60) >= 12:
            os.abort()
        return x

    got, loader = run(cedar.from_source(Numbers(1)).map(damages, "x", dtype=int, on_error=cedar.Skip()))
    assert got == but(60, splits=1)
    assert loader.report().restarts <= 20


def heap(rows: dict[int, int]) -> Any:
    """A function that takes and frees memory as malloc does, which looks at the neighbour of what is freed.

    Each row's piece is held for some rows. At ``rows`` the head of the piece is overwritten, and its process dies when
    it is freed, as many rows later as is said there, or when the piece below it is.
    """

    def works(x: int) -> int:
        pieces = sys.__dict__.setdefault("_pieces", [])  # [rows left, its head is damaged, freed], in their order
        pieces.append([rows.get(x, x % 21), x in rows, False])
        for i, (left, damaged, freed) in enumerate(pieces):
            if left == 0 and not freed:
                pieces[i][2] = True
                above = pieces[i + 1] if i + 1 < len(pieces) else [0, False, True]
                if damaged or (above[1] and not above[2]):
                    os.abort()
            pieces[i][0] -= 1
        return x

    return works


@pytest.mark.parametrize("guilty", [{52: 17, 86: 19}, {42: 12, 53: 9}, {36: 17, 50: 20, 75: 3}, {93: 6}])
def test_rows_that_damage_a_heap_near_each_other_are_all_found_and_nobody_else(guilty: dict[int, int]) -> None:
    got, loader = run(cedar.from_source(Numbers(1)).map(heap(guilty), "x", dtype=int, on_error=cedar.Skip()))
    assert set(range(ROWS)) - set(got) <= set(guilty)
    assert {row for row, later in guilty.items() if row + later < 96} <= set(range(ROWS)) - set(got)  # its block's end
    assert loader.report().restarts <= 6 * len(guilty)


def test_the_error_names_the_row_that_did_the_damage() -> None:
    bad = cedar.from_source(Numbers()).map(after({70: 5}), "x", dtype=int)
    with pytest.raises(
        cedar.RowError, match=r"map\(damages\) failed: WorkerKilled: killed by SIGABRT, 5 row\(s\) later"
    ) as caught:
        run(bad)
    assert caught.value.row is not None
    assert (caught.value.row.file, caught.value.row.row) == (0, 70)


def test_damage_by_an_earlier_operator_is_found_there() -> None:
    def steps_on(x: int) -> int:  # only here does the process die
        if getattr(sys, "_damaged", None) is not None and x >= sys._damaged:  # type: ignore[attr-defined]
            os.abort()
        return x

    def damages(x: int) -> int:
        if x == 150:
            sys._damaged = 155  # type: ignore[attr-defined]
        return x

    chain = cedar.from_source(Numbers()).map(damages, "x", dtype=int, on_error=cedar.Skip())
    rows, loader = run(chain.map(steps_on, "x", dtype=int, on_error=cedar.Skip()))
    assert rows == but(150)
    assert loader.report().skipped == {"map(damages)": 1}


def test_damage_in_a_vectorised_function_is_found_row_by_row() -> None:
    damages = after({70: 5})

    def batches(table: pa.Table) -> pa.Table:
        for x in table["x"].to_pylist():
            damages(x)
        return table

    rows, loader = run(cedar.from_source(Numbers()).map_batches(batches, "x", on_error=cedar.Skip()))
    assert rows == but(70)
    assert loader.report().restarts <= 5


def test_an_item_of_a_dataset_that_damages_the_process() -> None:
    damages = after({70: 5})

    class Items:
        def __len__(self) -> int:
            return 2 * ROWS

        def __getitem__(self, i: int) -> dict[str, int]:
            return {"x": damages(i)}

    rows, _ = run(cedar.from_items(Items(), dtypes={"x": int}), on_error=cedar.Skip())
    assert rows == but(70)


def test_damage_that_shows_in_a_later_block_drops_nothing() -> None:
    guilty = {95: 10, 190: 15}  # the last five and ten rows of their blocks come between
    rows, loader = run(cedar.from_source(Numbers(4)).map(after(guilty), "x", dtype=int, on_error=cedar.Skip()))
    assert rows == but(splits=4)
    assert 1 <= loader.report().restarts <= 4 * len(guilty)


def test_a_row_that_was_only_at_hand_is_acquitted(tmp_path: Path) -> None:
    def unlucky(x: int) -> int:
        if x == 70 and len(os.listdir(tmp_path)) < 2:  # as where something else kills the process, twice
            (tmp_path / str(os.getpid())).touch()
            os.abort()
        return x

    rows, loader = run(cedar.from_source(Numbers()).map(unlucky, "x", dtype=int, on_error=cedar.Skip()))
    assert rows == but()
    assert (loader.report().restarts, loader._metrics.deaths.acquitted) == (2, 1)


def test_what_no_row_is_guilty_of_ends_the_run(tmp_path: Path) -> None:
    def unlucky(x: int) -> int:
        if x == 70 and os.getpgrp() == os.getpid():  # in a worker, and never in a trial
            os.abort()
        return x

    with pytest.raises(cedar.WorkerError, match=r"workers died \d+ times at work on map\(unlucky\), and no single row"):
        run(cedar.from_source(Numbers()).map(unlucky, "x", dtype=int, on_error=cedar.Skip()))


def test_a_row_found_guilty_once_costs_one_death_in_the_next_epoch() -> None:
    bad = cedar.from_source(Numbers(1)).map(after({70: 5}), "x", dtype=int, on_error=cedar.Skip()).batch(10)
    with bad.loader(executor="processes", workers=1, plan="off") as loader:
        one = [x for batch in loader for x in batch["x"].tolist()]
        spent = loader.report().restarts
        two = [x for batch in loader for x in batch["x"].tolist()]
        assert one == two == but(70, splits=1)
        assert loader.report().restarts - spent == 1
