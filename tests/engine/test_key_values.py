"""Words that ranks leave for each other: in a folder, and in a store."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cedar.engine.key_values import FolderKeyValues, KeyValueStore, TorchKeyValues, key_value_store_at


def store() -> Any:
    """Of torch.distributed, as that of a job is; who waits for what is not there does so for a second."""
    distributed = pytest.importorskip("torch.distributed")
    made = distributed.PrefixStore("job", distributed.TCPStore("127.0.0.1", 0, 1, is_master=True))
    made.set_timeout(timedelta(seconds=1))
    return made


@pytest.fixture(params=["folder", "store"])
def words(request: pytest.FixtureRequest, tmp_path: Path) -> KeyValueStore:
    return key_value_store_at(str(tmp_path / "new") if request.param == "folder" else store())


def test_the_last_word_of_a_name_counts_until_it_is_dropped(words: KeyValueStore) -> None:
    assert words.get("job/hello/1") is None
    words.set("job/hello/1", "one")
    words.set("job/hello/1", "another, ü")
    words.set("job/hello/2", "")
    assert [words.get(f"job/hello/{rank}") for rank in range(3)] == [None, "another, ü", ""]
    words.drop("job/hello/1")
    words.drop("job/hello/1")  # it may be gone already
    assert words.get("job/hello/1") is None


def test_a_word_that_is_dropped_at_the_same_time_is_waited_for_by_nobody(words: KeyValueStore) -> None:
    over = threading.Event()

    def drop() -> None:
        while not over.is_set():
            words.set("name", "word")
            words.drop("name")

    other = threading.Thread(target=drop)
    other.start()
    try:
        assert {words.get("name") for _ in range(5_000)} <= {"word", None}
    finally:
        over.set()
        other.join()


def test_a_word_in_a_folder_is_there_for_whoever_looks_and_nothing_else_is(tmp_path: Path) -> None:
    FolderKeyValues(str(tmp_path)).set("a/b", "word")
    assert FolderKeyValues(str(tmp_path)).get("a/b") == "word"
    assert [path.read_text() for path in tmp_path.iterdir()] == ["word"]


def test_the_place_says_which_words_there_are(tmp_path: Path) -> None:
    places: list[Any] = [str(tmp_path), store()]
    assert [type(key_value_store_at(place)) for place in places] == [FolderKeyValues, TorchKeyValues]
