"""The wire protocol is what its module declares, and what its page tells; nothing writes their own key."""

import re
from pathlib import Path

import pytest

from cedar.trainers.resilient.control import protocol
from cedar.trainers.resilient.control.board import Board
from cedar.trainers.resilient.control.store import Values

ROOT = Path(__file__).parents[4]


def test_the_page_tells_every_name() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.+?)` \| (.+) \|$", page, re.MULTILINE)
    assert rows == [(name.pattern, name.about) for name in protocol.names().values()]


def test_no_two_names_can_be_one_key() -> None:
    shapes = [re.sub(r"{.*?}", "{}", name.pattern) for name in protocol.names().values()]
    assert len(set(shapes)) == len(shapes)


def test_nobody_writes_a_key_of_their_own() -> None:
    bare = re.compile(r"""board\.(?:put|get|get_all|put_if_absent|increment|delete)\(\[?f?["']""")
    for path in (ROOT / "cedar" / "trainers" / "resilient").rglob("*.py"):
        assert not bare.findall(path.read_text(encoding="utf-8")), path


def test_names_have_the_places_that_they_say() -> None:
    board = Board(Values())
    board.put(protocol.LOSS(1, 2, 0), [[0, 0, 1.5]])
    assert board.get(protocol.LOSS(1, 2, 0)) == [[0, 0, 1.5]]
    assert board.get(protocol.LOSS(1, 2, 1)) is None
    for places in ((1,), (1, 2, 3)):
        with pytest.raises(AssertionError, match="has other places"):
            protocol.DONE(*places)
