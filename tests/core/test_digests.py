"""Digests: the same for the same work, another for other work, in every process."""

from __future__ import annotations

import enum
import functools
import itertools
import re
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from cedar.core.digests import digest_of, examine

FACTOR: Any = [2]


class Color(enum.Enum):
    RED = 1


class Scaler:
    offset = 1

    def __init__(self, factor: Any) -> None:
        self.factor = factor
        self.lock = threading.Lock()

    def __call__(self, x: Any) -> Any:
        return helper(x) * self.factor + self.offset


def helper(x: Any) -> Any:
    return x * FACTOR[0]


def uses_helper(x: Any) -> Any:
    return helper(x)


def closing(value: Any) -> Any:
    return lambda x: (x, value)


PAIRS = [
    ([1, 2], [2, 1]),
    ({"a": 1}, {"a": 2}),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({1, 2}, {1, 3}),
    (1, True),
    (1, 1.0),
    ("1", 1),
    ([1, [2]], [1, [3]]),
    (np.arange(3), np.arange(3, dtype=np.int32)),
    (np.arange(4).reshape(2, 2), np.arange(4)),
    (np.array([{}, 1], dtype=object), np.array([{}, 2], dtype=object)),
    (np.zeros((0, 3)), np.zeros((0, 4))),
    (pa.array([1, None]), pa.array([1, 2])),
    (pl.Series([1]), pl.Series([2])),
    (pl.DataFrame({"a": [1]}), pl.DataFrame({"b": [1]})),
    (pl.col("a") + 1, pl.col("a") + 2),
    (re.compile("a"), re.compile("b")),
    (functools.partial(helper, 1), functools.partial(helper, 2)),
    (functools.partial(dict, x=1), functools.partial(dict, y=1)),
    (Scaler([1]), Scaler([2])),
    (Scaler(1).__call__, Scaler(2).__call__),
    (closing([1]), closing([2])),
    (closing(closing({1})), closing(closing({2}))),
    (lambda x: x + 1, lambda x: x + 2),
    (lambda x: x.real, lambda x: x.imag),
    (lambda x, y=1: x, lambda x, y=2: x),
    (lambda x, *, y=[1]: x, lambda x, *, y=[2]: x),
    (lambda x: [i + 1 for i in x], lambda x: [i + 2 for i in x]),
    (lambda x: x in {"a", "b"}, lambda x: x in {"a", "c"}),
    (lambda x: np.sqrt(x), lambda x: np.exp(x)),
    (len, max),
    ([1].count, [2].count),
]


@pytest.mark.parametrize("pair", PAIRS, ids=range(len(PAIRS)))
def test_other_values_have_other_digests(pair: Any) -> None:
    a, b = pair
    assert digest_of(a) == digest_of(a)
    assert digest_of(a) != digest_of(b)


@pytest.mark.parametrize("make", [
    lambda: Scaler([1, {"a": {2}}]), lambda: closing(np.arange(3)), lambda: Color.RED, lambda: threading.Lock(),
    lambda: {"x": [1, {2, 3}]}, lambda: re.compile("a+"), lambda: itertools.count(3), lambda: object(),
    lambda: functools.lru_cache(closing([1])), lambda: (i for i in range(3)),
])  # fmt: skip
def test_equal_values_have_one_digest(make: Any) -> None:
    assert digest_of(make()) == digest_of(make())


def test_names_of_variables_and_lines_do_not_count() -> None:
    one = eval(compile("\n\nlambda x: [y + 1 for y in x]", "a.py", "eval"))
    two = eval(compile("lambda x: [z + 1 for z in x]", "b.py", "eval"))
    assert digest_of(one) == digest_of(two)


def test_cycles_end() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    fn = closing(ring)
    ring.append(fn)
    assert digest_of(fn) == digest_of(fn)
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    assert digest_of(deep)


def test_a_changed_global_changes_those_that_read_it(monkeypatch: Any) -> None:
    before = [digest_of(f) for f in (helper, uses_helper, Scaler, Scaler(1))]
    own = digest_of(closing)
    monkeypatch.setitem(globals(), "FACTOR", [3])
    assert all(digest_of(f) != old for f, old in zip((helper, uses_helper, Scaler, Scaler(1)), before, strict=True))
    assert digest_of(closing) == own
    now = digest_of(uses_helper)
    monkeypatch.setitem(globals(), "helper", lambda x: x)
    assert digest_of(uses_helper) != now


def test_parts_say_what_changed(monkeypatch: Any) -> None:
    scale = {"a": 1}
    before = examine(lambda x: helper(x) * scale["a"]).parts
    scale["a"] = 2
    after = examine(lambda x: helper(x) * scale["a"]).parts
    assert {name for name in before if before[name] != after[name]} == {"closure scale"}
    assert set(before) == {"code", "closure scale", "global helper"}
    assert set(examine(Scaler(1)).parts) == {"code", "state"}
    assert examine(Scaler(1)).parts["code"] == examine(Scaler(2)).parts["code"]


def test_without_data_only_code_counts() -> None:
    assert digest_of(closing([1]), data=False) == digest_of(closing([1, 2]), data=False)
    assert digest_of(Scaler(1), data=False) == digest_of(Scaler(2), data=False)
    assert digest_of(closing(1), data=False) != digest_of(closing(2), data=False)
    assert digest_of(lambda x: x + 1, data=False) != digest_of(lambda x: x + 2, data=False)


def test_state_that_an_object_leaves_out_of_its_copies_counts() -> None:
    class Leaving(Scaler):
        table = 0

        def __reduce__(self) -> Any:
            return Leaving, (1,)

    a, b = Leaving(1), Leaving(1)
    b.table = 7
    assert digest_of(a) != digest_of(b)
    assert not examine(a).unknown


def test_digests_are_the_same_in_every_process() -> None:
    code = (
        "from cedar.core.digests import digest_of\n"
        "def g(x): return x in {'a', 'b', 'c'} and {'k': {'x', 'y'}}\n"
        "s = {'one', 'two', 'three'}\n"
        "print(digest_of(lambda x: (g(x), s)))"
    )
    seen = {
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
                       capture_output=True, text=True, check=True).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(seen) == 1
