"""Files that appear whole: of several writers one has the name, with no hard links, and any code that is killed
when.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from cedar.store.whole_files import settle_claims, write_first, write_whole


@pytest.fixture(autouse=True)
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "link")


def test_the_first_of_several_has_the_name(tmp_path: Path) -> None:
    path = str(tmp_path / "a.json")
    contents = [f"{n}".encode() * 1000 for n in range(8)]
    barrier = threading.Barrier(len(contents))

    def write(content: bytes) -> None:
        barrier.wait(60)
        write_first(path, content)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    first = Path(path).read_bytes()
    assert first in contents
    write_first(path, b"late")
    assert Path(path).read_bytes() == first
    write_whole(path, b"replaced")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("a.json", b"replaced")]


def _killed(path: str, name: str, count: int) -> bool:
    """Whether a process that writes to a path was killed at this call of a function of ``os``."""
    if (child := os.fork()) == 0:
        real, calls = getattr(os, name), 0

        def kills(*args: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > count:
                os._exit(9)
            return real(*args, **named)

        setattr(os, name, kills)
        write_first(path, b"of the killed")
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "count", "done"),
    [
        ("fsync", 0, None), ("mkdir", 0, None), ("rename", 0, None), ("listdir", 0, True), ("rename", 1, True),
        ("unlink", 0, False), ("rmdir", 0, False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("settled", [False, True])
def test_one_that_is_killed_holds_nobody_up(name: str, count: int, done: bool | None, settled: bool, tmp_path: Path):
    """``done``: None if it had not got the name yet, True if others give it that, False if it has it."""
    path = tmp_path / "a.json"
    assert _killed(str(path), name, count)
    assert path.exists() == (done is False)
    if settled:
        settle_claims(str(tmp_path))
        assert path.exists() == (done is not None)
    write_first(str(path), b"of the next")
    assert path.read_bytes() == (b"of the next" if done is None else b"of the killed")
    assert settled <= (not list(tmp_path.glob(".*.claim")))


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(PermissionError):
        write_first(str(tmp_path / "a.json"), b"")
    assert not list(tmp_path.iterdir())
