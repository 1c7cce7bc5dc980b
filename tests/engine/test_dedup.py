"""What a run does about dedup(): which columns come out of it as groups, and how a sample tells what they hold."""

from __future__ import annotations

import pickle

import pytest

import cedar
from cedar.engine.binding import Binding
from cedar.engine.dedup import Marked, factors_where_read, found_groups, marked_groups
from cedar.operators.base import Env
from tests.toy_sessions import sessions


def rows() -> cedar.Pipeline:
    return cedar.from_arrow(sessions(256, 8, 1.0))


def binding_of(pipeline: cedar.Pipeline) -> Binding:
    return Binding(pipeline.node, None, Env())


def test_groups_have_the_names_of_their_columns_at_the_end() -> None:
    binding = binding_of(rows().dedup([["a", "b"]]).rename({"a": "first"}).batch(8))
    assert binding.marks
    assert marked_groups(binding) == (("first", "b"),)
    assert pickle.loads(pickle.dumps(Marked(binding))).groups == (("first", "b"),)
    assert not binding_of(rows().batch(8)).marks


def test_what_nobody_named_is_left_for_groups_that_are_found() -> None:
    binding = binding_of(rows().dedup([["a"]]).dedup("auto", session="session").batch(64))
    assert marked_groups(binding) == (("a",), ("b",))


def test_a_sample_tells_how_often_rows_repeat() -> None:
    binding = binding_of(rows().dedup([["a", "b"]], session="session").batch(64))
    (node,) = (node for node, _ in found_groups(binding))
    assert factors_where_read(binding, node) == {"a": pytest.approx(8, rel=0.1), "b": pytest.approx(8, rel=0.1)}
