"""Tracebacks: the user's frames and one line for cedar, whichever way an error comes."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest

import cedar
from cedar.core.errors import portable

ROWS: Any = cedar.from_items([{"x": i} for i in range(-2, 3)])


def price(row: dict[str, Any]) -> dict[str, float]:
    return {"p": 1 / row["x"]}


def caught(run: Callable[[], object]) -> cedar.CedarError:
    with pytest.raises(cedar.CedarError) as error:
        run()
    return error.value


def frames(error: BaseException) -> list[str]:
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def ours(error: BaseException) -> list[str]:
    return [file for file in frames(error) if "/cedar/" in file or "concurrent" in file]


RUNS: dict[str, Callable[[cedar.Pipeline], object]] = {
    "a for loop": lambda p: list(p),
    "a loader": lambda p: list(p.batch(2).loader(executor="inline")),
    "threads": lambda p: list(p.batch(2).loader(executor="threads")),
    "to_arrow": lambda p: p.to_arrow(),
    "head": lambda p: p.head(5),
    "a batch": lambda p: list(p.batch(2).map(lambda b: {"y": b["z"]}).loader()),
    "collate": lambda p: list(p.batch(2, collate=lambda rows: rows[0]["z"]).loader()),
    "write": lambda p: p.write_parquet("out"),
}


@pytest.mark.parametrize("run", RUNS)
def test_a_failing_row_shows_the_users_frames_and_one_line_for_cedar(
    run: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = caught(lambda: RUNS[run](ROWS.map(price)))
    assert isinstance(error, cedar.RowError)
    assert len(ours(error)) == 1, frames(error)
    assert frames(error)[0] == __file__
    assert error.__cause__ is not None
    assert set(frames(error.__cause__)) == {__file__}
    assert len(traceback.format_exception(error)) < 20


def test_the_frames_of_libraries_that_a_function_calls_stay() -> None:
    import json

    error = caught(lambda: list(ROWS.map(lambda row: json.loads("{"))))
    assert error.__cause__ is not None
    assert [file.rpartition("/")[2] for file in frames(error.__cause__)][:2] == ["test_tracebacks.py", "__init__.py"]


def test_an_error_of_building_shows_one_line_for_cedar() -> None:
    builds: list[Callable[[], object]] = [
        lambda: ROWS.batch(0),
        lambda: ROWS.with_columns(y="z").schema,
        lambda: ROWS.map(3),
        lambda: cedar.mix(3),
        lambda: ROWS.batch(num=3),
    ]
    for build in builds:
        assert len(ours(caught(build))) == 1


def test_all_frames_are_shown_where_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEDAR_TRACEBACK", "full")
    error = caught(lambda: list(ROWS.map(price)))
    assert len(ours(error)) > 3
    assert error.__cause__ is not None
    assert ours(error.__cause__)


def test_the_note_of_another_process_begins_at_the_users_frame() -> None:
    cause = caught(lambda: list(ROWS.map(price))).__cause__
    assert isinstance(cause, ZeroDivisionError)
    (note,) = portable(cause).__notes__
    assert "test_tracebacks.py" in note
    assert "/cedar/operators/" not in note


def test_an_error_without_a_frame_of_the_users_keeps_its_last() -> None:
    error = caught(lambda: list(ROWS.map(int, "x").map(len, "x")))
    assert error.__cause__ is not None
    assert len(frames(error.__cause__)) == 1
