"""A change of what a function's result depends on changes its digest, or the digest says what it cannot read."""

from __future__ import annotations

import collections
import functools
import importlib
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from cedar.core.digests import digest_of, examine

MAIN = """
import enum, functools, typing
import near
from near import through
LIMIT = 10
UNUSED = 1
class Kind(enum.Enum):
    A = 1
class Held(typing.NamedTuple):
    x: int = 1
    def go(self): return 100
def close(value): return lambda x: (x, value)
closed = close(1000)
def helper(x): return x + 1
def fn(x, y=5):  # a comment
    return helper(x), through(x), near.direct(x), closed(x), Held().go(), Kind.A, x * LIMIT
def late(x):
    import later
    return later.work(x)
"""
NEAR = """
import far
def through(x): return far.work(x)
def direct(x): return x + 2
def unused(x): return 1
"""
FAR = "SIZE = [3]\ndef work(x): return x + SIZE[0]\n"
CHANGES = {  # (file, old, new): a difference that counts
    "code": ("main", "x * LIMIT", "x - LIMIT"), "global": ("main", "LIMIT = 10", "LIMIT = 11"),
    "helper": ("main", "x + 1", "x + 7"), "closure": ("main", "1000", "1001"), "default": ("main", "y=5", "y=6"),
    "method": ("main", "100", "101"), "enum": ("main", "A = 1", "A = 2"), "imported": ("near", "x + 2", "x + 8"),
    "indirectly": ("far", "x + SIZE", "x - SIZE"), "indirect constant": ("far", "[3]", "[4]"),
}  # fmt: skip
SAME = {
    "comment": ("main", "  # a comment", ""), "lines": ("main", "LIMIT =", "\n\n\nLIMIT ="),
    "unused global": ("main", "UNUSED = 1", "UNUSED = 2"), "unused helper": ("near", "return 1", "return 2"),
}  # fmt: skip


@pytest.fixture
def parts_of(tmp_path: Path, monkeypatch: Any) -> Callable[..., Any]:
    """Digests of ``fn`` in files that are changed first."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(name: str = "fn", change: Any = ("main", "", ""), path: str = "own.py") -> Any:
        for file, text in {"main": MAIN, "near": NEAR, "far": FAR, "later": "import far\nfrom far import work"}.items():
            changed = text.replace(change[1], change[2]) if file == change[0] and change[1] else text
            (tmp_path / f"{file}.py").write_text(changed)
            monkeypatch.delitem(sys.modules, file, raising=False)
        importlib.invalidate_caches()
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(compile((tmp_path / "main.py").read_text(), path, "exec", dont_inherit=True), space)
        made = examine(space[name])
        for file in ("near", "far", "later"):
            monkeypatch.delitem(sys.modules, file, raising=False)
        assert not made.unknown
        return made

    return load


@pytest.mark.parametrize("name", CHANGES)
def test_what_counts(name: str, parts_of: Any) -> None:
    assert parts_of(change=CHANGES[name]) != parts_of()


@pytest.mark.parametrize("name", SAME)
def test_what_does_not_count(name: str, parts_of: Any) -> None:
    assert parts_of(change=SAME[name], path="renamed.py") == parts_of()


def test_the_source_of_modules_that_are_not_imported_yet(parts_of: Any) -> None:
    assert parts_of("late") == parts_of("late")
    assert parts_of("late", ("far", "x + SIZE", "x - SIZE")) != parts_of("late")
    assert "later" not in sys.modules, "no code of the user's ran"


def test_the_same_in_another_process(parts_of: Any, tmp_path: Path) -> None:
    made = parts_of()
    code = (
        "import main; from cedar.core.digests import examine; main.fn.__module__ = '__main__'; print(examine(main.fn))"
    )
    environment = {"PYTHONPATH": ":".join([str(tmp_path), *sys.path]), "PYTHONHASHSEED": "7"}
    given = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert given.stdout.strip() == str(made)


class Plain:
    def __init__(self, value: Any = None) -> None:
        self.value = value

    def __call__(self, x: Any) -> Any:
        return x, self.value


class Leaving(Plain):
    def __reduce__(self) -> Any:
        return Leaving, ()


class Slots:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Dict(dict[str, Any]):
    pass


class Point(NamedTuple):
    x: Any


class Lying(Plain):
    __class__ = property(lambda self: dict)  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        return 1 if name == "value" else object.__getattribute__(self, name)


def with_value(made: Any, value: Any) -> Any:
    made.value = value
    return made


def deep(value: Any) -> Any:
    return functools.reduce(lambda inner, _: [inner], range(100), value)


def tensor(n: int) -> Any:
    import torch

    return torch.tensor([n])


KNOWN: dict[str, Callable[[int], Any]] = {
    "array": lambda n: np.array([n]), "array of objects": lambda n: np.array([{"a": n}, None], dtype=object),
    "scalar": lambda n: np.float32(n), "dtype": lambda n: np.dtype("i4", metadata={"a": n}),
    "ufunc": lambda n: (np.add, np.multiply)[n - 1], "arrow": lambda n: pa.array([n]), "type": lambda n: pa.list_(
        pa.int8(), n), "arrow scalar": lambda n: pa.scalar(n), "table": lambda n: pa.table({str(n): [1]}),
    "tensor": tensor, "expression": lambda n: pl.col("a") + n, "series": lambda n: pl.Series(str(n), [1]),
    "object": Plain, "method": lambda n: Plain(n).__call__, "leaving out of copies": Leaving, "slots": Slots,
    "dict with an attribute": lambda n: with_value(Dict(), n), "named tuple": Point, "lying": Lying,
    "proxy": lambda n: types.MappingProxyType({"a": n}),
    "factory": lambda n: collections.defaultdict(Plain(n).__call__),
    "partial": lambda n: functools.partial(max, n), "cached": lambda n: functools.lru_cache(functools.partial(max, n)),
    "path": lambda n: Path(f"/a/{n}"), "random": np.random.default_rng, "set": lambda n: {("a", n)},
    "singledispatch": lambda n: functools.singledispatch(functools.partial(max, n)), "big": lambda n: [10**5000 + n],
    "made class": lambda n: type("Held", (Plain,), {"__module__": __name__, "scale": n}),
    "class named like a library's": lambda n: type("Held", (), {"__module__": "types", "scale": n}),
    "function named like a library's": lambda n: with_value(functools.wraps(len)(lambda x: x), n),
}  # fmt: skip
UNKNOWN: dict[str, Callable[[int], Any]] = {
    "generator": lambda n: (i for i in (n,)), "iterator of a dict": lambda n: {n: 1}.keys(), "deep": deep,
    "file": lambda n: (sys.__stdin__, sys.__stderr__)[n - 1],
    "thread local": lambda n: with_value(threading.local(), n),
    "function in an expression": lambda n: pl.col("a").map_elements(lambda x: n, return_dtype=pl.Int64),
    "eval": lambda n: lambda: eval("n"), "globals": lambda n: lambda: globals()["n"],
    "environment": lambda n: lambda: sys.argv, "module without a file": lambda n: with_value(types.ModuleType("m"), n),
}  # fmt: skip


@pytest.mark.parametrize("name", [*KNOWN, *UNKNOWN])
def test_values_that_a_function_closes_over(name: str) -> None:
    one, again, two = ((KNOWN | UNKNOWN)[name](n) for n in (1, 1, 2))
    made = [examine(lambda value=value: value) for value in (one, again, two)]
    assert bool(made[0].unknown) == (name in UNKNOWN), made[0].unknown
    assert name in UNKNOWN or (made[0] == made[1] and made[0] != made[2]), "old results would be used"


def test_packages_count_by_version(monkeypatch: Any) -> None:
    before = digest_of(lambda x: np.sqrt(x))
    color = Enum("color", "RED")
    unmarked = digest_of(color)
    monkeypatch.setattr(Enum.__new__, "marked", 1, raising=False)  # as torch does when it is imported
    assert digest_of(color) == unmarked
    monkeypatch.setattr("cedar.core.digests.version_of", lambda name: "0")
    assert digest_of(lambda x: np.sqrt(x)) != before
