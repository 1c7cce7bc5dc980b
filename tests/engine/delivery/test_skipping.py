"""Rows that fail under ``Skip``: batches, budgets, the quarantine, and what a resume makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cedar
from cedar import RowError, Skip
from tests.toy_runs import run, saved


def picky(x: int) -> int:
    if x % 10 == 3:
        raise ValueError(f"no {x}")
    return x


def failing(policy: Skip, n: int = 50) -> cedar.Pipeline:
    return cedar.from_arrow(pa.table({"x": pa.array(range(n), pa.int64())})).map(picky, "x", dtype=int, on_error=policy)


def xs(loader: cedar.Loader) -> list[list[int]]:
    return [batch["x"].tolist() for batch in loader]


def flat(batches: list[list[int]]) -> list[int]:
    return [x for batch in batches for x in batch]


BAD = [3, 13, 23, 33, 43]


def test_a_bad_row_shortens_its_batch_and_shifts_no_other() -> None:
    got = xs(failing(Skip()).batch(4, last="keep").loader())
    assert got == [[x for x in range(i, min(i + 4, 50)) if x not in BAD] for i in range(0, 50, 4)]


def test_a_batch_of_bad_rows_is_empty() -> None:
    assert xs(failing(Skip()).batch(1).loader())[3] == []


def test_refill_keeps_batches_full() -> None:
    good = [x for x in range(50) if x not in BAD]
    for executor in ("inline", "threads"):
        loader = failing(Skip(refill=True)).batch(4, last="keep").loader(executor=executor)
        assert xs(loader) == [good[i : i + 4] for i in range(0, 45, 4)]
        assert loader.report().skipped == {"map(picky)": 5}
    with pytest.raises(TypeError):
        len(failing(Skip(refill=True)).batch(4).loader())


@pytest.mark.parametrize("refill", [False, True])
@pytest.mark.parametrize("shuffled", [False, True])
def test_the_quarantine_has_a_line_for_each_row_once(tmp_path: Path, refill: bool, shuffled: bool) -> None:
    p = failing(Skip(quarantine=str(tmp_path / "bad"), refill=refill))
    p = (p.shuffle() if shuffled else p).batch(4, last="keep")
    loader = p.loader()
    for number, _ in enumerate(loader):
        if number == 8:
            break
    state = saved(loader)
    run(p.loader())  # as after a crash: what was recorded is not recorded twice
    again = p.loader(executor="inline")
    again.load_state_dict(state)
    run(again)
    lines = [json.loads(line) for line in (tmp_path / "bad" / "rank-0.jsonl").read_text().splitlines()]
    assert sorted(line["row"] for line in lines) == BAD
    for line in lines:
        assert line["epoch"] == 0
        assert line["operator"] == "map(picky)"
        assert line["error"] == f"ValueError: no {line['row']}"
        assert "from_arrow" in line["source"]
    run(again)
    lines = [json.loads(line) for line in (tmp_path / "bad" / "rank-0.jsonl").read_text().splitlines()]
    assert sorted(line["epoch"] for line in lines) == [0] * 5 + [1] * 5


def test_every_rank_has_a_file(tmp_path: Path) -> None:
    p = failing(Skip(quarantine=str(tmp_path))).batch(2)
    for rank in range(2):
        run(p.loader(rank=rank, world=2))
    rows = [
        json.loads(line)["row"] for r in range(2) for line in (tmp_path / f"rank-{r}.jsonl").read_text().splitlines()
    ]
    assert sorted(rows) == BAD


def test_the_count_budget_stops_the_run_at_the_row_beyond_it() -> None:
    loader = failing(Skip(max_count=2)).batch(4, last="keep").loader()
    with pytest.raises(RowError, match="max_count=2") as caught:
        list(loader)
    assert caught.value.row is not None
    assert caught.value.row.row == 23
    assert caught.value.site is not None
    assert caught.value.site.file == __file__
    assert len(xs(failing(Skip(max_count=5)).batch(4, last="keep").loader())) == 13


def test_batches_before_the_one_beyond_the_budget_are_delivered() -> None:
    loader = failing(Skip(max_count=2)).batch(4, last="keep").loader()
    got = []
    with pytest.raises(RowError):
        for batch in loader:
            got.append(batch["x"].tolist())
    assert got[-1] == [16, 17, 18, 19]


def test_budgets_live_in_the_state() -> None:
    p = failing(Skip(max_count=3)).batch(4, last="keep")
    loader = p.loader()
    for number, _ in enumerate(loader):
        if number == 6:  # rows 3, 13 and 23 are behind us
            break
    again = p.loader()
    again.load_state_dict(saved(loader))
    with pytest.raises(RowError, match="max_count=3") as caught:
        list(again)
    assert caught.value.row is not None
    assert caught.value.row.row == 33


def test_the_rate_is_judged_on_the_epoch_where_its_rows_are_known() -> None:
    assert len(xs(failing(Skip(max_rate=0.1)).batch(4, last="keep").loader())) == 13
    with pytest.raises(RowError, match=r"max_rate=0\.09") as caught:
        xs(failing(Skip(max_rate=0.09)).batch(4, last="keep").loader())
    assert caught.value.row is not None
    assert caught.value.row.row == 43
    unknown = failing(Skip(max_rate=0.09)).filter(lambda x: x >= 0, "x").batch(4, last="keep")
    with pytest.raises(RowError, match="max_rate"):  # judged at the end, when all rows are counted
        xs(unknown.loader())


def test_the_loaders_policy_is_for_every_operator_without_its_own() -> None:
    p = failing(Skip(max_count=99)).map(lambda x: 1 // (x % 7), "x", into="y", dtype=int)
    loader = p.batch(5, last="keep").loader(on_error=Skip())
    rest = [x for x in range(50) if x not in BAD and x % 7]
    assert flat(xs(loader)) == rest
    assert loader.report().skipped == {"map(picky)": 5, "map(<lambda>)": 8}


def test_rows_one_by_one_are_counted_once() -> None:
    loader = failing(Skip()).loader()
    assert [row["x"] for row in loader] == [x for x in range(50) if x not in BAD]
    assert loader.report().skipped == {"map(picky)": 5}
    with pytest.raises(RowError):
        list(failing(Skip(max_count=4)).loader())
    assert failing(Skip()).count() == 45
    assert failing(Skip()).to_arrow().num_rows == 45


def test_all_rows_failing_is_not_passed_over_in_silence() -> None:
    def never(x: int) -> int:
        raise ValueError

    for refill in (False, True):
        p = cedar.from_items([{"x": 1}] * 9).map(never, "x", dtype=int, on_error=Skip(refill=refill))
        loader = p.batch(4, last="keep").loader()
        assert flat(xs(loader)) == []
        assert loader.report().skipped == {"map(never)": 9}
        stops = Skip(max_count=3, refill=refill)
        with pytest.raises(RowError, match="max_count=3"):
            list(cedar.from_items([{"x": 1}] * 9).map(never, "x", dtype=int, on_error=stops).batch(4, last="keep"))


def test_a_group_that_fails_is_skipped_as_a_whole() -> None:
    def grouped(columns: dict[str, Any]) -> dict[str, Any]:
        if 13 in columns["x"]:
            raise ValueError("13")
        return {"x": columns["x"]}

    p = cedar.from_arrow(pa.table({"x": pa.array(range(30), pa.int64())}))
    p = p.map_batches(grouped, "x", format="numpy", size=5, on_error=Skip()).batch(5, last="keep")
    loader = p.loader()
    assert xs(loader) == [list(range(i, i + 5)) if i != 10 else [] for i in range(0, 30, 5)]
    assert sum(loader.report().skipped.values()) == 5


def test_slices_of_refilled_batches_are_even() -> None:
    p = failing(Skip(refill=True)).batch(4)
    parts = [xs(p.loader(rank=r, world=2, split_batches=True)) for r in range(2)]
    good = [x for x in range(50) if x not in BAD]
    assert [a + b for a, b in zip(*parts, strict=True)] == [good[i : i + 4] for i in range(0, 44, 4)]
    assert {len(b) for part in parts for b in part} == {2}
