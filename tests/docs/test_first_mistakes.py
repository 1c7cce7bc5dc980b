"""What something gets wrong on the first day ends in an error of ours that names the line."""

import multiprocessing
import warnings
from concurrent.futures import ProcessPoolExecutor

import pytest

import cedar


def numbers(n=20):
    return cedar.from_items([{"x": i} for i in range(n)])


@pytest.mark.parametrize("window", [None, 2.5, 0, True])
def test_a_window_that_is_no_size(window):
    with pytest.raises(cedar.PipelineError, match="give bytes as a string, or a number of rows") as caught:
        numbers().shuffle(window=window)
    assert caught.value.site.file == __file__


def test_a_shuffle_by_a_column_that_is_not_there():
    with pytest.raises(cedar.PipelineError, match="there is no column 'y'") as caught:
        numbers().shuffle(by="y").count()
    assert caught.value.site.file == __file__


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: numbers().shuffle(seed="a"),
        lambda: numbers().cache(3),
        lambda: numbers().apply(3),
        lambda: numbers().loader(seed=1.5),
        lambda: numbers().loader(epoch=-1),
        lambda: numbers().loader(executor="dusk"),
    ],
)
def test_arguments_that_cannot_be(wrong):
    with pytest.raises(cedar.CedarError) as caught:
        wrong()
    assert caught.value.site.file == __file__


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system has no fork")
def test_processes_made_by_fork_are_refused_rather_than_hang():
    import polars as pl  # noqa: F401 - its threads are what a fork leaves behind

    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
    with pool, pytest.raises(cedar.PlanError, match="fork") as caught:
        numbers().loader(executor=pool)
    assert "forkserver" in caught.value.fix


def test_a_row_that_fails_while_types_are_found_is_named():
    with pytest.raises(cedar.RowError) as caught:
        list(numbers().map(lambda x: 1 / x, "x", into="y"))
    assert str(caught.value.row) == "from_items(list of 20), row 0, epoch 0"


def test_the_warning_of_changed_code_points_at_the_caller():
    state = numbers().map(lambda x: x + 1, "x").batch(4).loader().state_dict()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        numbers().map(lambda x: x + 2, "x").batch(4).loader().load_state_dict(state)
    assert [w.filename for w in caught] == [__file__]
