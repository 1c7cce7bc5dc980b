"""A position, and the one of the next epoch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cedar.engine.delivery.position import Position, is_unfinished

AT_5: dict[str, Any] = {"history": [], "deal": [[5, None, None], 0], "lanes": None}


def test_the_next_epoch_begins_with_its_own_data() -> None:
    position = Position(3, 3, {"2": AT_5, "3": AT_5}, step=5, earlier_steps=7).next(steps=False)
    assert (position.epoch, position.data, position.step, position.earlier_steps) == (4, 4, 0, 12)
    assert position.open == {"3": AT_5}, "other ranks may still be in that epoch"
    assert position.begun == {"step": 0, "data": 4, "open": {}}
    assert not position.placed


def test_with_steps_the_next_epoch_continues_in_the_data() -> None:
    position = Position(3, 1, {"1": AT_5}, step=5).next(steps=True)
    assert (position.epoch, position.data, position.step) == (4, 1, 0)
    assert position.begun == {"step": 0, "data": 1, "open": {"1": AT_5}}
    assert position.placed


def test_entries_of_long_finished_epochs_are_dropped() -> None:
    position = Position(9, 9, {str(epoch): AT_5 for epoch in range(9)})
    ended: Any = SimpleNamespace(epoch=9, closed=lambda: AT_5)
    position.close(ended)
    assert list(position.open) == [str(epoch) for epoch in range(2, 10)]


def test_batches_left_over_are_seen_in_an_entry() -> None:
    assert not is_unfinished(AT_5)
    assert is_unfinished(AT_5 | {"before": {"epoch": 2, "entry": AT_5}})
    assert not Position(4, 4, {"3": AT_5}).has_leftovers
    assert Position(4, 4, {"4": AT_5 | {"before": {"epoch": 3, "entry": AT_5}}}).has_leftovers
