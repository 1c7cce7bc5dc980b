"""What a function refers to: modules of the user's own are looked into, libraries stand for themselves."""

from __future__ import annotations

import collections
import random
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from cedar.core.digests import digest_of
from cedar.core.references import attributes_of, c_base


def test_the_user_s_own_modules_are_looked_into(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    digests = set()
    for number in (1, 2):
        (tmp_path / f"own{number}.py").write_text(f"SIZE = [{number}]\ndef work(x):\n    return x + SIZE[0]\n")
        for text in ("m.work", "lambda x: m.work(x)", "Late()"):
            names: dict[str, Any] = {}
            late = f"def Late():\n    def f(x):\n        import own{number}\n    return f\n"
            exec(compile(f"import own{number} as m\n{late}fn = {text}", "own", "exec"), names)
            digests.add(digest_of(names["fn"]))
        monkeypatch.delitem(sys.modules, f"own{number}")
    assert len(digests) == 6


class Slotted:
    __slots__ = ("a", "b")


class Both(Slotted):
    """Has slots and a dict, and lies about both."""

    def __getattribute__(self, name: str) -> Any:
        raise AttributeError(name)


class Named(dict[str, int]):
    __slots__ = ("note",)


class Point(NamedTuple):
    x: int


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (Slotted, object), (Both, object), (Named, dict), (Point, tuple), (collections.Counter, dict),
        (collections.OrderedDict, None), (type("Own", (int,), {}), int),
        (type("Own", (np.ndarray,), {}), np.ndarray), (random.Random, None), (type(iter([])), None),
        (types.GeneratorType, None),
    ],
)  # fmt: skip
def test_what_an_instance_holds_is_known_where_sizes_add_up(kind: type, base: type | None) -> None:
    assert c_base(kind) is base


def test_attributes_are_found_whatever_a_class_makes_of_them() -> None:
    lying = object.__new__(Both)
    object.__setattr__(lying, "a", 1)
    object.__setattr__(lying, "c", 3)
    assert attributes_of(lying) == {"a": 1, "c": 3}, "a slot that is not set is left out"
    named = Named(x=1)
    vars(Named)["note"].__set__(named, 5)
    assert attributes_of(named) == {"note": 5}
