"""A survey is made once for each policy, by the process that runs the pipeline."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from cedar.core.errors import Skip, SourceError, WorkerError
from cedar.operators.surveys import StoredTable, Survey, _opened, kept_table
from cedar.store import folder


def test_each_policy_has_a_pass_of_its_own():
    made = []
    survey = Survey(lambda on_error: made.append(on_error) or len(made))
    tolerant, strict = survey.under(Skip()), survey.under(None)
    assert [tolerant.value, strict.value, tolerant.value, survey.under(Skip()).value] == [1, 2, 1, 1]
    assert made == [Skip(), None]


def test_workers_get_what_was_found():
    survey = Survey(lambda on_error: [on_error]).under(Skip())
    assert pickle.loads(pickle.dumps(survey)).value == [Skip()]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return []


def table(made: list[int], key: str | None = "k", x: int = 1) -> StoredTable:
    def make() -> pa.Table:
        made.append(x)
        return pa.table({"x": [x, 2]})

    return kept_table(key, make)


def test_a_table_is_made_once_for_a_key(made: list[int]) -> None:
    stored = [table(made), table(made, x=9), table(made, "other", 3)]
    assert made == [1, 3]
    assert [each.numbers("x").tolist() for each in stored] == [[1, 2], [1, 2], [3, 2]]


def test_those_who_come_at_once_make_it_once(made: list[int]) -> None:
    threads = [threading.Thread(target=table, args=(made,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


def test_a_damaged_table_is_made_again(made: list[int]) -> None:
    path = Path(table(made).path)
    path.write_bytes(b"x" + path.read_bytes()[1:])
    assert table(made).numbers("x").tolist() == [1, 2]
    assert made == [1, 1]


def test_without_a_key_it_is_this_process_alone_that_has_it(made: list[int], tmp_path: Path) -> None:
    stored = [table(made, None), table(made, None, 5)]
    assert [each.numbers("x").tolist() for each in stored] == [[1, 2], [5, 2]]
    assert not list(tmp_path.rglob("*.arrow"))


def test_a_table_that_can_be_written_nowhere_is_an_error(made: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(folder, "tail", full)
    with pytest.raises(WorkerError, match="cannot be written"):
        table(made)
    assert made == [1], "it is made once even so"


def test_one_that_is_gone_is_named(made: list[int]) -> None:
    stored = table(made)
    Path(stored.path).unlink()
    _opened.cache_clear()
    with pytest.raises(SourceError, match="cannot be read"):
        stored.numbers("x")
