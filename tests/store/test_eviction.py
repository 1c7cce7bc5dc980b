"""Who makes room for whom: the least recently used of others, never what a loop needs next."""

from __future__ import annotations

import math

from cedar.store.eviction import EntryInfo, PassTimes, leaving, surplus


def test_the_least_recently_used_of_others_go_first() -> None:
    held = [
        EntryInfo("a", "old", 10, 3.0),
        EntryInfo("b", "old", 10, 1.0),
        EntryInfo("c", "mine", 10, 0.0),
        EntryInfo("d", "old", 10, 9.0),
    ]
    assert [e.name for e in leaving(held, 5, 45, "mine", since=5.0) or ()] == []
    assert [e.name for e in leaving(held, 10, 40, "mine", since=5.0) or ()] == ["b"]
    assert [e.name for e in leaving(held, 20, 40, "mine", since=5.0) or ()] == ["b", "a"]
    assert leaving(held, 30, 40, "mine", since=5.0) is None, "neither its own group nor what is in use"
    assert [e.name for e in surplus(held, 20)] == ["c", "b"]


def test_a_pass_ends_where_a_split_comes_again() -> None:
    passes = PassTimes()
    for now, name in enumerate("abcabcab"):
        passes.visit("g", name, float(now))
    assert passes.since("g") == 3.0, "the pass before the present one, which began at 6"
    assert passes.since("other") == math.inf, "it makes no passes"
