"""Code on its way to other processes: by value, and known by a key."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import cedar
from cedar.tasks.code import Code


def test_equal_code_is_equal_whatever_the_run() -> None:
    def code() -> Code:
        return Code.of((test_equal_code_is_equal_whatever_the_run, 3))

    assert code().key == code().key
    assert code().known().pickled is None


def test_a_module_of_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    name = "comes_in_versions"
    path = tmp_path / f"{name}.py"
    path.write_text("def new(x): return x\n")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, name, module)
    code = Code.of(module.new)
    del module.new
    with pytest.raises(cedar.WorkerError, match="another version than yours"):
        code.load()
