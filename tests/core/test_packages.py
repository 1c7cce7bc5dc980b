"""Packages: what is installed is told from the user's own code, and by its version."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import cedar
from cedar.core import numeric, packages
from cedar.core.errors import PipelineError, RowError
from cedar.core.packages import (
    col,
    extension,
    is_library,
    library,
    loaded,
    plain_errors,
    register,
    spec_of,
    version_of,
)
from cedar.executors import processes


def test_what_is_installed_is_told_from_the_users_own() -> None:
    assert is_library("numpy.linalg")
    assert is_library("json")
    assert is_library("cedar.core.block")
    assert not is_library(__name__)
    assert not is_library("__main__")


def test_a_module_has_the_version_of_its_package() -> None:
    assert version_of("numpy.linalg") == np.__version__


def test_a_module_that_another_thread_imports_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_module.py").write_text(
        "import tests.core.test_packages as test\ntest.BEGUN.set()\ntest.GO_ON.wait(60)\nready = True\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "tests.core.test_packages", sys.modules[__name__])
    assert loaded("slow_module") is None
    thread = threading.Thread(target=importlib.import_module, args=("slow_module",))
    thread.start()
    assert BEGUN.wait(60)
    assert "slow_module" in sys.modules
    assert loaded("slow_module") is None
    GO_ON.set()
    thread.join()
    assert loaded("slow_module").ready
    del sys.modules["slow_module"]


def test_modules_that_are_loaded_lazily_stay_unloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lazy_module.py").write_text("raise ImportError('this module was loaded')")
    spec = importlib.util.spec_from_file_location("lazy_module", tmp_path / "lazy_module.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "lazy_module", module)
    assert spec_of(module) is spec
    assert processes._specs()["lazy_module"] is spec
    numeric.arrived()


def test_entries_of_sys_modules_may_be_any_objects() -> None:
    class Raises:
        @property
        def __spec__(self) -> None:
            raise ImportError("a lazy module of another library")

    assert spec_of(sys) is sys.__spec__
    assert spec_of(importlib) is importlib.__spec__
    assert [spec_of(odd) for odd in (None, object(), 1, dict, Raises())] == [None] * 5


BEGUN, GO_ON = threading.Event(), threading.Event()


def test_an_extension_is_a_module_that_is_imported_when_asked_for(monkeypatch):
    monkeypatch.setattr(packages, "_extensions", {})
    register("lake", "cedar.no_such_module")
    with pytest.raises(cedar.PipelineError, match="this needs cedar.no_such_module, which is not installed"):
        extension("lake.writing")
    register("lake", "json")
    assert extension("lake").loads("1") == 1
    assert extension("lake.decoder").JSONDecoder().decode("1") == 1


def test_an_import_that_fails_inside_an_extension_says_so_itself(monkeypatch, tmp_path):
    (tmp_path / "broken_extension.py").write_text("import a_library_that_is_missing")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(packages, "_extensions", {"lake": "broken_extension"})
    with pytest.raises(ModuleNotFoundError, match="a_library_that_is_missing"):
        extension("lake")


def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nowhere_to_be_found", None)
    with pytest.raises(PipelineError, match="read_lance needs nowhere_to_be_found, which cannot be imported") as caught:
        library("nowhere_to_be_found.inner", "lance", "read_lance")
    assert caught.value.fix == "pip install 'cedar-data[lance]'"
    assert caught.value.site is not None
    assert caught.value.site.file == __file__
    assert isinstance(caught.value.__cause__, ImportError)
    assert library("json.decoder", "all", "read_json") is sys.modules["json.decoder"]


class PanicException(BaseException):
    """As Rust's bindings call theirs."""


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (
            PanicException("index out of bounds\nBacktrace:\n 0: a"),
            ValueError,
            "its decoder failed: index out of bounds",
        ),
        (OSError("bad file\n\nBacktrace:\n 0: a\n 1: b"), ValueError, "bad file"),
        (OSError("bad file"), OSError, "bad file"),
        (RowError("row 3 Backtrace: none"), RowError, "row 3 Backtrace: none"),
        (KeyboardInterrupt(), KeyboardInterrupt, ""),
    ],
)
def test_panics_are_errors_and_backtraces_are_left_out(error: Any, kind: Any, text: str) -> None:
    with pytest.raises(BaseException) as caught, plain_errors():
        raise error
    assert type(caught.value) is kind
    assert str(caught.value) == text


FRAME = pl.DataFrame({"x": [1, 2], "int_a": [3, 4], "int_b": [5, 6]})


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda: col("x") + 1, lambda: pl.col("x") + 1),
        (lambda: col.x * 2, lambda: pl.col.x * 2),
        (lambda: col("x", "int_a"), lambda: pl.col("x", "int_a")),
        (lambda: col("^int_.*$").sum(), lambda: pl.col("^int_.*$").sum()),
    ],
)
def test_expressions_are_those_of_polars(ours: Any, theirs: Any) -> None:
    assert FRAME.select(ours()).equals(FRAME.select(theirs()))
    assert ours().meta.eq(theirs())


def test_it_is_no_column_where_python_asks_for_protocols() -> None:
    assert repr(col) == "cedar.col"
    with pytest.raises(AttributeError, match="__array__"):
        getattr(col, "__array__")  # noqa: B009 - as NumPy does
    assert copy.copy(col)("x").meta.eq(pl.col("x"))
