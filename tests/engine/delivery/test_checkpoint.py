"""A state is of the position after the last batch received, and is loaded with the files as they are now."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import pytest

import cedar
from tests.engine.delivery.few_rows import in_batches, rows, xs
from tests.engine.delivery.test_changed_files import write_parquet
from tests.toy_runs import saved


def test_a_state_before_the_first_batch_stands_where_the_run_does():
    loader = in_batches(10).loader(steps=2, epoch=1)
    state, again = loader.state_dict(), loader.read(0)["x"].tolist()
    ran = xs(loader)
    assert ran[0] == again
    resumed = in_batches(10).loader(steps=2, epoch=1)
    resumed.load_state_dict(state)
    assert xs(resumed) == ran


def test_a_state_can_be_asked_for_in_the_loop_and_later() -> None:
    p = rows().batch(5)
    loader = p.loader()
    states = [saved(loader)]
    for _ in loader:
        states.append(saved(loader))
        assert saved(loader) == states[-1]
    states.append(saved(loader))
    assert [(s["epoch"], s["step"]) for s in states] == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0)]
    for number, state in enumerate(states[:-1]):
        again = p.loader()
        again.load_state_dict(state)
        assert len(list(again)) == (4 - number or 4), "after the last batch, the next epoch"


@pytest.fixture
def make(tmp_path: Path) -> Any:
    """Creates a loader of six batches, or eight once another file is there."""
    for number in range(3):
        write_parquet(tmp_path / f"{number}.parquet", list(range(10 * number, 10 * number + 10)))
    return lambda **options: cedar.read_parquet(f"{tmp_path}/*.parquet").batch(5).loader(executor="inline", **options)


def ids(loader: Any) -> list[int]:
    return [i for batch in loader for i in batch["id"].tolist()]


@pytest.mark.parametrize("steps", [0, 6], ids=["before the first batch", "after the last batch"])
def test_a_state_between_epochs_continues_with_the_files_as_they_are(make: Any, tmp_path: Path, steps: int) -> None:
    first = make()
    for _ in zip(range(steps), first, strict=False):
        pass
    state = saved(first)
    write_parquet(tmp_path / "3.parquet", list(range(30, 40)))
    loader = make()
    loader.load_state_dict(state)
    assert ids(loader) == list(range(40))
    assert ids(loader) == list(range(40))


def test_a_break_after_loading_begins_the_epoch_again_with_the_files_as_they_are(make: Any, tmp_path: Path) -> None:
    first = make()
    next(iter(first))
    state = saved(first)
    write_parquet(tmp_path / "3.parquet", list(range(30, 40)))
    loader = make()
    loader.load_state_dict(state)
    for batch in loader:
        assert batch["id"].tolist() == [5, 6, 7, 8, 9]
        break
    assert ids(loader) == list(range(40))
    assert loader.epoch == 1


def test_the_status_page_stays_when_a_state_of_other_files_is_loaded(make: Any, tmp_path: Path) -> None:
    first = make()
    next(iter(first))
    state = saved(first)
    write_parquet(tmp_path / "3.parquet", list(range(30, 40)))
    with make(serve="127.0.0.1:0") as loader:
        loader.load_state_dict(state)
        next(iter(loader))
        with urllib.request.urlopen(loader.url, timeout=60) as answer:
            assert answer.status == 200
