"""Accounts: the time of the loader's thread, and the budgets of rows that are skipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cedar
from cedar import RowError, Skip
from tests.engine.delivery import skipped
from tests.engine.delivery.few_rows import xs
from tests.engine.delivery.skipped import BAD, failing, flat
from tests.engine.failing import fails_on
from tests.toy_runs import run, saved


def test_a_retry_counts_its_skipped_rows_anew():
    rule = cedar.Skip(max_count=1)
    loader = cedar.from_items([{"x": i} for i in range(5)]).map(fails_on(0, 1), "x", on_error=rule).loader()
    for _ in range(3):
        with pytest.raises(cedar.RowError, match=r"skipped 2 row"):
            list(loader)


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


def test_the_loaders_policy_is_for_every_operator_without_its_own() -> None:
    p = failing(Skip(max_count=99)).map(lambda x: 1 // (x % 7), "x", into="y", dtype=int)
    loader = p.batch(5, last="keep").loader(on_error=Skip())
    rest = [x for x in range(50) if x not in BAD and x % 7]
    assert flat(xs(loader)) == rest
    assert loader.report().skipped == {"map(picky)": 5, "map(<lambda>)": 8}


def test_half_a_line_in_the_quarantine_is_passed_over(tmp_path):
    file = tmp_path / "rank-0.jsonl"
    file.write_text('7\n{"source": "a", "ro')
    pipeline = cedar.from_items([{"x": i} for i in range(4)]).map(fails_on(2), "x")
    assert len(list(pipeline.loader(on_error=cedar.Skip(quarantine=str(tmp_path))))) == 3
    assert json.loads(file.read_text().splitlines()[2])["row"] == 2


def test_a_quarantine_that_vanishes_is_written_again_as_a_whole(tmp_path):
    file = tmp_path / "rank-0.jsonl"

    def bad(x):
        if x == 3:
            file.unlink()
        raise ValueError(x)

    pipeline = cedar.from_items([{"x": i} for i in range(5)]).map(bad, "x", dtype=int).batch(1)
    list(pipeline.loader(executor="inline", on_error=cedar.Skip(quarantine=str(tmp_path))))
    assert sorted(json.loads(line)["row"] for line in file.read_text().splitlines()) == list(range(5))


def test_a_quarantine_that_cannot_be_made_is_our_error(tmp_path):
    (tmp_path / "taken").write_text("")
    pipeline = cedar.from_items([{"x": 1}]).map(fails_on(1), "x", dtype=int)
    with pytest.raises(cedar.PipelineError, match="cannot be written"):
        list(pipeline.loader(on_error=cedar.Skip(quarantine=str(tmp_path / "taken"))))


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
    assert caught.value.site.file == skipped.__file__
    assert len(xs(failing(Skip(max_count=5)).batch(4, last="keep").loader())) == 13


def test_the_rate_is_judged_on_the_epoch_where_its_rows_are_known() -> None:
    assert len(xs(failing(Skip(max_rate=0.1)).batch(4, last="keep").loader())) == 13
    with pytest.raises(RowError, match=r"5 row\(s\), more than max_rate=0\.09 of at most 52 rows; the last:") as caught:
        xs(failing(Skip(max_rate=0.09)).batch(4, last="keep").loader())
    assert caught.value.row is not None
    assert caught.value.row.row == 43
    unknown = failing(Skip(max_rate=0.09)).filter(lambda x: x >= 0, "x").batch(4, last="keep")
    said = r"5 row\(s\), more than max_rate=0\.09 of 50 rows; the last: ValueError: no 43\n"
    with pytest.raises(RowError, match=said) as caught:  # judged at the end, when all rows are counted
        xs(unknown.loader())
    assert caught.value.row is not None
    assert caught.value.row.row == 43
    assert caught.value.done == "all batches of the epoch were delivered"


def test_the_rate_of_rows_one_by_one() -> None:
    with pytest.raises(RowError, match=r"max_rate=0\.09 of 50 rows; the last: ValueError: no 43\n"):
        list(failing(Skip(max_rate=0.09)).loader())


def test_the_last_row_is_not_known_behind_a_state() -> None:
    p = failing(Skip(max_rate=0.09)).filter(lambda x: x >= 0, "x").batch(4, last="keep")
    loader = p.loader()
    for number, _ in enumerate(loader):
        if number == 11:
            break
    again = p.loader()
    again.load_state_dict(saved(loader))
    with pytest.raises(RowError, match=r"max_rate=0\.09 of 50 rows\n") as caught:
        list(again)
    assert caught.value.row is None


def test_rows_that_no_batch_delivers_do_not_count() -> None:
    p = failing(Skip(max_rate=0.1))
    with pytest.raises(RowError, match=r"5 row\(s\), more than max_rate=0\.1 of at most 45 rows"):
        list(p.batch(45, last="drop").loader())
    assert len(list(p.batch(45, last="keep").loader())) == 2
