"""Words that ranks leave for each other: in a folder, and in a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cedar.engine.words import FolderWords, StoreWords, Words, words_at


class Store:
    """As those of torch.distributed."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def set(self, name: str, word: str) -> None:
        self.kept[name] = word.encode()

    def get(self, name: str) -> bytes:
        return self.kept[name]  # the real one waits for a word that is not there

    def check(self, names: list[str]) -> bool:
        return all(name in self.kept for name in names)

    def delete_key(self, name: str) -> bool:
        return self.kept.pop(name, None) is not None


@pytest.fixture(params=["folder", "store"])
def words(request: pytest.FixtureRequest, tmp_path: Path) -> Words:
    return words_at(str(tmp_path / "new") if request.param == "folder" else Store())


def test_the_last_word_of_a_name_counts_until_it_is_dropped(words: Words) -> None:
    assert words.get("job/hello/1") is None
    words.set("job/hello/1", "one")
    words.set("job/hello/1", "another, ü")
    words.set("job/hello/2", "")
    assert [words.get(f"job/hello/{rank}") for rank in range(3)] == [None, "another, ü", ""]
    words.drop("job/hello/1")
    words.drop("job/hello/1")  # it may be gone already
    assert words.get("job/hello/1") is None


def test_a_word_in_a_folder_is_there_for_whoever_looks_and_nothing_else_is(tmp_path: Path) -> None:
    FolderWords(str(tmp_path)).set("a/b", "word")
    assert FolderWords(str(tmp_path)).get("a/b") == "word"
    assert [path.read_text() for path in tmp_path.iterdir()] == ["word"]


def test_the_place_says_which_words_there_are(tmp_path: Path) -> None:
    places: list[Any] = [str(tmp_path), Store()]
    assert [type(words_at(place)) for place in places] == [FolderWords, StoreWords]
