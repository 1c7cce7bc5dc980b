"""Code on its way to other processes: by value, and known by a key."""

from __future__ import annotations

import functools
import importlib.util
import pickle
import re
import socket
import sqlite3
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cedar
from cedar.core.block import Block
from cedar.core.stream import Rows
from cedar.datasets.table import from_arrow
from cedar.operators.base import BlockKernel, Env
from cedar.tasks.chain import KernelStep, Program, Result
from cedar.tasks.code import Code, Gathering, call_shipped, culprit, read_shipped, run_shipped
from cedar.tasks.reading import Reader
from tests.toy_blocks import block, values


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


WORKERS = 2


class Client:
    def __init__(self) -> None:
        self._lock = threading.Lock()


class Tokenizer:
    def __init__(self) -> None:
        self.client = Client()

    def __call__(self, x: int) -> int:
        return x

    def encode(self, x: int) -> int:
        return x


def closes_over(thing: Any) -> Any:
    def decode(x: int) -> int:
        assert thing
        return x

    return decode


def of_a_function_inside() -> Any:
    connection = sqlite3.connect(":memory:")

    def lookup(x: int) -> int:
        assert connection
        return x

    def decode(x: int) -> int:
        return lookup(x)

    return decode


HELD = threading.Lock()


def by_default(x: int, lock: Any = HELD) -> int:
    return x


by_default.__module__ = "__main__"  # by value

CASES = {
    "a lock in a closure": (lambda: closes_over(threading.Lock()), "decode.<closure thing>", "_thread.lock"),
    "a connection of an inner function": (
        of_a_function_inside,
        "decode.<closure lookup>.<closure connection>",
        "sqlite3.Connection",
    ),
    "a generator": (lambda: closes_over(i for i in range(3)), "decode.<closure thing>", "generator"),
    "a lock deep in an object": (lambda: Tokenizer(), "Tokenizer.client._lock", "_thread.lock"),
    "a method": (lambda: Tokenizer().encode, "Tokenizer.encode.__self__.client._lock", "_thread.lock"),
    "a partial": (lambda: functools.partial(max, threading.Lock()), "partial.args[0]", "_thread.lock"),
    "a list in a closure": (
        lambda: closes_over([1, {"a": threading.Lock()}]),
        "decode.<closure thing>[1]['a']",
        "_thread.lock",
    ),
    "a default": (lambda: by_default, "by_default.<default 0>", "_thread.lock"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_innermost_culprit_is_named(case: str):
    make, path, kind = CASES[case]
    found = culprit((make(),))
    assert found is not None
    assert (found.path, found.kind) == (path, kind)


def test_what_can_be_pickled_has_no_culprit():
    assert culprit(closes_over([1, 2])) is None


def test_a_circle_ends():
    loop: list[Any] = [threading.Lock()]
    loop.insert(0, loop)
    assert culprit(loop) is not None


def failed(pipeline: cedar.Pipeline) -> cedar.WorkerError:
    """The error that a run on processes ends with."""
    with pipeline.loader(executor="processes", workers=WORKERS) as loader, pytest.raises(cedar.WorkerError) as caught:
        list(loader)
    return caught.value


@pytest.mark.parametrize("kind", ["socket", "file", "global"])
def test_the_pipeline_says_which_object_of_which_operator(kind: str, tmp_path: Path):
    (tmp_path / "f").write_text("x")
    with socket.socket() as connection, open(tmp_path / "f", "rb") as file:
        thing = {"socket": connection, "file": file, "global": threading.Lock()}[kind]
        fn = closes_over(thing)
        if kind == "global":
            code = compile("def decode(x):\n    return thing and x", "<user>", "exec")
            names = {"thing": thing, "__name__": "__main__"}
            exec(code, names)
            fn = names["decode"]
        pipeline = cedar.from_items([{"x": 1}] * 50).map(fn, "x", dtype=int).batch(10)
        caught = failed(pipeline)
    text = str(caught)
    assert "map(decode): decode.<" in text
    assert " thing> cannot be sent to another process: it is a " in text
    assert caught.site is not None
    assert caught.site.file == __file__
    assert "__init__ of a class" in text or "open the file where it is read" in text


def test_rows_that_hold_what_cannot_travel():
    rows = [{"x": 1}, {"x": 2}]
    rows[1]["x"] = threading.Lock()
    found = culprit(cedar.from_items(rows))
    assert found is not None
    assert found.path == "items[1]['x']"


def test_a_function_with_a_cache_travels_by_value(monkeypatch: pytest.MonkeyPatch):
    @functools.cache
    def nested(x: int) -> int:
        return x + 1

    @functools.lru_cache(maxsize=7)
    def of_script(x: int) -> int:
        return x + 1

    of_script.__module__, of_script.__qualname__ = "__main__", "of_script"
    monkeypatch.setattr(sys.modules["__main__"], "of_script", of_script, raising=False)
    nothing_named = functools.cache(functools.partial(max, 3))
    pipeline = cedar.from_items([{"x": i} for i in range(50)])
    for fn in (nested, of_script, lambda x: of_script(x)):
        pipeline = pipeline.map(fn, "x", dtype=int)
    with pipeline.map(nothing_named, "x", dtype=int).batch(10).loader(executor="processes", workers=WORKERS) as loader:
        assert [x for batch in loader for x in batch["x"].tolist()] == list(range(3, 53))
    assert Code.of(of_script).load().cache_parameters() == {"maxsize": 7, "typed": False}
    assert Code.of(re._compile_repl).load() is re._compile_repl  # type: ignore[attr-defined]


def test_a_class_makes_in_each_worker_what_cannot_travel():
    class Guarded:
        def __init__(self, step: int) -> None:
            self.lock, self.step = threading.Lock(), step

        def __call__(self, x: int) -> int:
            with self.lock:
                return x + self.step

    made = functools.partial(Guarded, 1)
    pipeline = cedar.from_items([{"x": i} for i in range(50)]).map(made, "x", dtype=int).batch(10)
    with pipeline.loader(executor="processes", workers=WORKERS) as loader:
        assert [x for batch in loader for x in batch["x"].tolist()] == list(range(1, 51))


# ---- modules that the worker does not have ---------------------------------------------------------------------------


@pytest.fixture
def only_here(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module that exists in this process alone."""
    module = types.ModuleType("only_here_not_there")
    exec("def double(x):\n    return 2 * x", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_a_module_that_the_worker_does_not_have(only_here: Any):
    pipeline = cedar.from_items([{"x": 1}] * 50).map(only_here.double, "x", dtype=int).batch(10)
    caught = failed(pipeline)
    text = str(caught)
    assert "there is no module 'only_here_not_there'" in text
    assert "install 'only_here_not_there' there" in text
    assert "register_pickle_by_value" in text
    assert isinstance(caught.__cause__, ModuleNotFoundError)


class Plus(BlockKernel):
    """Adds one, and how often this object was called before."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, block: Block, env: Env) -> Block:
        self.calls += 1
        return block.with_columns({"x": block.columns["x"].to_numpy() + self.calls})  # type: ignore[union-attr]


def parts(result: Result) -> list[Any]:
    return [part for part, _, _ in result.timing.parts]


def test_a_program_runs_and_is_loaded_once() -> None:
    code = Code.of((Program((KernelStep(Plus(), (4,)),)),))
    first = run_shipped(code, Env(), block(x=[1, 2]))
    again = run_shipped(code.known(), Env(), block(x=[1, 2]))  # the process has it by now
    assert isinstance(first, Result)
    assert isinstance(again, Result)
    assert [values(result.blocks[0], "x") for result in (first, again)] == [[2, 3], [3, 4]]
    assert {("operator", (4,)), ("ship", ())} <= set(parts(first))


def test_a_split_is_read_by_the_reader_that_came_along() -> None:
    source = from_arrow(pa.table({"x": [1, 2, 3]}))
    (split,) = source.splits()
    code = Code.of((Program((KernelStep(Plus(), (4,)),)), Reader(source, 0)))
    result = read_shipped(code, Env(), split, 0, 1)
    assert isinstance(result, Result)
    assert [values(each, "x") for each in result.blocks] == [[3, 4]]
    assert {("read", (0,)), ("ship", ())} <= set(parts(result))


def test_rows_are_gathered_on_their_way() -> None:
    rows = Rows.of(block(x=list(range(100)))).slice(20, 23)
    there = pickle.loads(pickle.dumps(Gathering(rows)))
    assert isinstance(there, Block)
    assert values(there, "x") == [20, 21, 22]


def test_a_call_comes_with_its_arguments() -> None:
    assert call_shipped(Code.of((sorted, ([3, 1, 2],), {"reverse": True}))) == [3, 2, 1]
