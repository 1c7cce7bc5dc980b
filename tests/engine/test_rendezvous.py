"""Ranks meet: each says something, rank 0 makes one thing of it, and all of them get that."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import cedar
from cedar.engine.rendezvous import FolderKeyValues, KeyValueStore, Rendezvous, TorchKeyValues, key_value_store_at, talk


def meet(words: KeyValueStore, said: list[Any]) -> list[Any]:
    """What each rank gets of a meeting to which it says this."""

    def one(rank: int) -> Any:
        meeting = Rendezvous(words, "toy", rank, len(said), 30.0, None)
        return meeting.outcome(said[rank], lambda all_said, keep_alive: [keep_alive(), all_said])

    with ThreadPoolExecutor(len(said)) as pool:
        return list(pool.map(one, range(len(said))))


def test_all_get_what_was_made_of_what_all_said(tmp_path: Path) -> None:
    words = FolderKeyValues(str(tmp_path))
    first = meet(words, ["a", {"b": 1}, None])
    assert [made for _, made in first] == [[None, ["a", {"b": 1}, None]]] * 3
    second = meet(words, [1, 2])  # of the words of another meeting, none answers
    assert [made for _, made in second] == [[None, [1, 2]]] * 2
    assert len({name for name, _ in first}) == len({name for name, _ in second}) == 1
    assert first[0][0] != second[0][0]


def test_a_rank_that_is_slow_to_look_is_not_taken_into_the_next_meeting(tmp_path: Path) -> None:
    """Rank 0 is at its next meeting, and asks for who said hello to the first, before rank 1 has looked again."""
    next_begun = threading.Event()

    class SlowWords(FolderKeyValues):
        here = False

        def set(self, name: str, word: str) -> None:
            super().set(name, word)
            self.here = self.here or "/here/" in name

        def get(self, name: str) -> str | None:
            if self.here and not next_begun.is_set():
                word = super().get(name)  # of the first meeting: it has no outcome yet
                assert next_begun.wait(30)
                return word
            return super().get(name)

    class FirstWords(FolderKeyValues):
        asked = 0

        def set(self, name: str, word: str) -> None:
            super().set(name, word)
            self.asked += "/asked/" in name
            if self.asked == 2:
                next_begun.set()

    def both(rank: int) -> list[Any]:
        words = (FirstWords, SlowWords)[rank](str(tmp_path))
        return [
            Rendezvous(words, "toy", rank, 2, 30.0, None).outcome([rank, i], lambda said, _: said) for i in range(2)
        ]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(both, range(2))
    assert first == second
    assert [said for _, said in first] == [[[0, i], [1, i]] for i in range(2)]


@pytest.mark.parametrize(("rank", "missing"), [(0, 1), (1, 0)])
def test_who_does_not_come_is_named(tmp_path: Path, rank: int, missing: int) -> None:
    meeting = Rendezvous(FolderKeyValues(str(tmp_path)), "toy", rank, 2, 0.005, None)
    with pytest.raises(cedar.WorkerError, match=rf"rank\(s\) {missing} of 2 did not call .* within 0.005 s"):
        meeting.outcome(None, lambda said, _: said)


def test_a_place_that_is_out_of_reach_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(cedar.WorkerError, match="cannot communicate with the others"), talk(None):
        FolderKeyValues(str(tmp_path / "file")).set("a", "b")


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
