"""Errors: what they say and in which order, whose line they name, and how they travel."""

from __future__ import annotations

import contextlib
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cedar.core.errors import (
    CedarError,
    PipelineError,
    RowError,
    RowRef,
    Site,
    Skip,
    missing_column,
    portable,
    raised,
    user_site,
)


def test_an_error_says_what_broke_whose_line_the_row_and_what_to_do() -> None:
    row = RowRef(0, 2, 7, sub=1, url="a.csv", epoch=3, unit="line")
    error = RowError("it broke at https://me:pw@host/a", site=Site("user.py", 12, "main"), row=row, done="d", fix="f")
    assert str(error).splitlines() == [
        "it broke at https://***@host/a",
        "  your code  user.py:12 in main",
        "  row        a.csv, line 7, item 1, epoch 3",
        "  done       d",
        "  next       f",
    ]
    assert str(RowRef(1, 2, 3)) == "source 1, file 2, row 3"
    assert str(CedarError("alone")) == "alone"


class Two(Exception):
    """Takes other arguments than it passes on."""

    def __init__(self, a: Any, b: Any) -> None:
        super().__init__(f"{a} and {b}")
        self.b = b


class Closed(Exception):
    """Holds what cannot be pickled."""

    def __init__(self) -> None:
        super().__init__(letter for letter in "")


def test_an_error_travels_with_its_cause_and_the_cause_with_its_traceback() -> None:
    try:
        try:
            raise Two(1, 2)
        except Two as cause:
            raise PipelineError("no", site=Site("user.py", 1), fix="f") from cause
    except PipelineError as error:
        make, arguments = (
            error.__reduce__()
        )  # as a worker sends it: tblib, with dask, changes how exceptions are pickled
        there = make(*pickle.loads(pickle.dumps(arguments)))
    assert (type(there), str(there)) == (PipelineError, "no\n  your code  user.py:1\n  next       f")
    sent = there.__cause__
    assert (type(sent), str(sent), sent.b) == (Two, "1 and 2", 2)
    assert "raise Two(1, 2)" in sent.__notes__[0]
    there.__cause__ = OSError("an executor's own")
    there.restore_cause()
    assert there.__cause__ is sent


def test_a_cause_that_cannot_be_pickled_travels_as_its_text() -> None:
    assert type(portable(Two(1, 2))).__name__ != "RuntimeError"
    sent = portable(Closed())
    assert type(sent) is RuntimeError
    assert str(sent).startswith("Closed: <generator")


def test_the_line_is_the_nearest_outside_the_package() -> None:
    site = user_site()
    assert site is not None
    assert (site.file, site.function) == (__file__, "test_the_line_is_the_nearest_outside_the_package")


def test_the_line_is_none_of_pythons_own_library_or_of_the_command() -> None:
    def site_of(file: str) -> Any:
        names: dict[str, Any] = {"user_site": user_site}
        exec(compile("site = user_site()", file, "exec"), names)
        return names["site"]

    installed = f"{os.path.dirname(contextlib.__file__)}/site-packages/user.py"
    assert site_of(installed).file == installed
    for file in (contextlib.__file__, "/a/bin/cedar"):
        assert site_of(file).file == __file__
    with ThreadPoolExecutor(1) as executor:
        assert executor.submit(user_site).result() is None


def test_a_missing_column_says_which_there_are_nearest_first() -> None:
    error = missing_column("agee", ["name", "age", "x"], "map(f)")
    assert "map(f): there is no column 'agee'; the columns are 'age', " in str(error)
    assert error.fix == "did you mean 'age'?"
    many = missing_column("a", [f"c{i}" for i in range(20)], "select")
    assert many.what.count("'c") == 12
    assert many.what.endswith(", ...")
    assert "the columns are none" in str(missing_column("a", [], "select"))


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_code_of_users_raises_itself_is_an_error_of_its_row(kind: type[BaseException]) -> None:
    def user() -> None:
        raise kind

    try:
        user()
    except raised() as error:
        caught = error
    assert type(caught) is kind


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_rate": 1.5},
        {"max_rate": -0.1},
        {"max_rate": float("nan")},
        {"max_count": -1},
        {"max_rate": "1%"},
        {"max_count": 1.5},
    ],
)
def test_a_budget_that_cannot_be_is_refused_at_the_line(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(PipelineError, match=rf"Skip\({name}={value!r}\)") as caught:
        Skip(**wrong)
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


def test_the_ends_of_a_budget_are_allowed_and_policies_compare_by_value() -> None:
    assert [Skip(max_rate=rate).max_rate for rate in (0, 1, None)] == [0, 1, None]
    assert Skip(max_count=0) == Skip(max_count=0) != Skip(max_count=1)
    assert (Skip().refill, Skip().quarantine) == (False, None)
