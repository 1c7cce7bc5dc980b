"""Packages: what is installed is told from the user's own code, and by its version."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from cedar.core.packages import is_library, loaded, version_of


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


BEGUN, GO_ON = threading.Event(), threading.Event()
