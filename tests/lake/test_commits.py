"""The manifest of a folder that a job writes: what is committed is there, and nothing else commits next to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cedar.core.errors import PipelineError, SourceError
from cedar.datasets.storage import Storage
from cedar.lake.commits import Commit, Log, begun_job
from cedar.lake.parts import Part

JOB = {"format": "jsonl", "layout": "fast"}


def log_of(folder: Path, rank: int = 0, world: int = 1) -> Log:
    return Log(Storage.at(folder), rank, world)


def written(folder: Path, name: str, content: bytes = b"{}\n") -> Part:
    """A whole file under a temporary name."""
    part = Part(name, 1, len(content), f".{name}.tmp-0123456789ab")
    (folder / part.temporary).write_bytes(content)
    return part


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def test_a_commit_gives_files_their_names_and_the_next_run_finds_it(tmp_path: Path):
    log = log_of(tmp_path)
    assert begun_job(tmp_path) is None
    assert log.begin(JOB) == log.job(".jsonl")
    assert begun_job(tmp_path) == log.job(".jsonl")
    parts = (written(tmp_path, "part-00000.jsonl"), written(tmp_path, "part-00001.jsonl"))
    first = Commit(parts, {"step": 2}, "ab", 2)
    log.add(first)
    assert files(tmp_path) == ["part-00000.jsonl", "part-00001.jsonl"]
    log.add(Commit((), {"step": 2}, "ab", 2, end=True))
    again = log_of(tmp_path)
    again.load()
    assert again.commits == [first, Commit((), {"step": 2}, "ab", 2, end=True)]
    assert again.files() == list(parts)


def test_a_commit_that_was_made_just_before_the_end_is_finished_when_it_is_read(tmp_path: Path):
    log = log_of(tmp_path)
    log.begin(JOB)
    part = written(tmp_path, "part-00000.jsonl")
    log.add(Commit((part,), {}, "", 1))
    (tmp_path / part.name).rename(tmp_path / part.temporary)  # as if it had not been renamed yet
    log_of(tmp_path).load()
    assert files(tmp_path) == ["part-00000.jsonl"]
    (tmp_path / part.name).write_bytes(b"other\n")
    with pytest.raises(SourceError, match=r"part-00000\.jsonl was written, but is now missing or has another size"):
        log_of(tmp_path).load()


def test_of_two_that_commit_at_once_the_second_ends_and_its_files_go(tmp_path: Path):
    one, other = log_of(tmp_path), log_of(tmp_path)
    one.begin(JOB)
    one.add(Commit((written(tmp_path, "part-00000.jsonl"),), {}, "", 1))
    mine = replace(written(tmp_path, "part-00000.jsonl"), temporary=".part-00000.jsonl.tmp-ba9876543210")
    (tmp_path / ".part-00000.jsonl.tmp-0123456789ab").rename(tmp_path / mine.temporary)
    with pytest.raises(PipelineError, match="another job is writing to"):
        other.add(Commit((mine,), {}, "", 1))
    assert files(tmp_path) == ["part-00000.jsonl"]
    with one.locked(), pytest.raises(PipelineError, match="another job is writing to"), other.locked():
        pass


def test_ranks_have_names_of_their_own_and_sweep_only_theirs(tmp_path: Path):
    logs = [log_of(tmp_path, rank, 2) for rank in range(2)]
    names = [log.name(".jsonl", 3) for log in logs]
    assert names == ["part-00000-00003.jsonl", "part-00001-00003.jsonl"]
    logs[1].begin(JOB)
    owner = logs[1].storage.owner
    for mark in (owner, "", "0" * 12):
        for name in names:
            (tmp_path / f".{name}.tmp-{mark}0123456789ab").touch()
    logs[1].end()
    left = {(name[6:11], name.partition(".tmp-")[2][:-12]) for name in files(tmp_path)}
    assert left == {("00000", owner), *((rank, mark) for rank in ("00000", "00001") for mark in ("", "0" * 12))}


@pytest.mark.parametrize("change", ["gone", "cut", "taken"])
def test_what_somebody_changed_is_not_committed(change: str, tmp_path: Path):
    log = log_of(tmp_path)
    log.begin(JOB)
    part = written(tmp_path, "part-00000.jsonl")
    if change == "gone":
        (tmp_path / part.temporary).unlink()
    elif change == "cut":
        (tmp_path / part.temporary).write_bytes(b"{")
    else:
        (tmp_path / part.name).write_bytes(b"of another job")
    error, says = (
        (PipelineError, "another job has written")
        if change == "taken"
        else (SourceError, "is missing or does not have 3")
    )
    with pytest.raises(error, match=says):
        log.add(Commit((part,), {}, "", 1))
    assert not log.commits
    assert files(tmp_path) == ([part.name] if change == "taken" else [])
    again = log_of(tmp_path)
    again.load()
    assert not again.commits


def test_a_fault_is_not_taken_for_a_missing_file(memory: Any, monkeypatch: pytest.MonkeyPatch):
    memory.pipe("/out/part-00000.jsonl", b"{}\n")
    monkeypatch.setattr(memory, "exists", lambda path: False)  # as fsspec answers after any failure
    log = Log(Storage.at("memory://out"), 0, 1)
    log._publish(Part("part-00000.jsonl", 1, 3, ".part-00000.jsonl.tmp-0123456789ab"))
    with pytest.raises(SourceError, match=r"part-00001\.jsonl was written, but is now missing"):
        log._publish(Part("part-00001.jsonl", 1, 3, ".part-00001.jsonl.tmp-0123456789ab"))
