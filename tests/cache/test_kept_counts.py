"""Counts in a file: those of the last filters come back, what is damaged or of others is said and left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedar.cache.kept_counts import CountKey, file_mark, load_counts, save_counts
from cedar.datasets.listing import File


def test_counts_come_back_under_their_filters(tmp_path: Path) -> None:
    where = str(tmp_path / "a.counts")
    save_counts(CountKey(where, "f"), {"one": (3, 0), "two": ()})
    save_counts(CountKey(where, "g"), {"one": (1, 1)})
    assert load_counts(CountKey(where, "f")) == {"one": (3, 0), "two": ()}
    assert load_counts(CountKey(where, "g")) == {"one": (1, 1)}
    assert load_counts(CountKey(where, "h")) == load_counts(CountKey(f"{where}.2", "f")) == {}


def test_the_filters_that_were_saved_first_make_room(tmp_path: Path) -> None:
    where = str(tmp_path / "a.counts")
    for number in range(20):
        save_counts(CountKey(where, str(number)), {"one": (number,)})
    assert [n for n in range(20) if load_counts(CountKey(where, str(n)))] == list(range(12, 20))


def test_a_damaged_file_is_said_and_one_of_others_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    where = tmp_path / "a.counts"
    key = CountKey(str(where), "f")
    save_counts(key, {"one": (3,)})
    where.write_bytes(where.read_bytes()[:-1])
    assert load_counts(key) == {}
    assert "rows are counted anew" in caplog.text
    where.write_text("mine")
    save_counts(key, {"one": (3,)})
    assert where.read_text() == "mine"
    assert "cedar did not write what is there" in caplog.text


def test_a_file_is_known_by_its_name_size_and_stamp() -> None:
    file = File("/a", "a", 5, stamp=(1, 2, 3))
    others = [
        File("/b", "a", 5, stamp=(1, 2, 3)),
        File("/a", "a", 6, stamp=(1, 2, 3)),
        File("/a", "a", 5, stamp=(9, 2, 3)),
    ]
    assert file_mark(file) == file_mark(File("/a", "other", 5, stamp=(1, 2, 3)))
    assert len({file_mark(file), *map(file_mark, others)}) == 4
    assert file_mark(File("/a", "a", 5)) is None
