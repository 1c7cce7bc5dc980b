"""Storage that fails and waits: faults that a seed decides, and the files of the storage behind them."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from cedar.testing import FlakyFileSystem, StorageFault, flaky


@pytest.fixture
def memory() -> Iterator[Any]:
    fs = fsspec.filesystem("memory")
    FlakyFileSystem.clear_instance_cache()
    yield fs
    fs.rm("/flakytest", recursive=True)


def describe(fs: FlakyFileSystem, paths: list[str], times: int) -> dict[str, list[str]]:
    """What so many reads of each path give: bytes, or the name of an error."""
    found: dict[str, list[str]] = {path: [] for path in paths}
    for path in paths * times:
        try:
            found[path].append(fs.cat_file(path).decode())
        except (StorageFault, ConnectionResetError) as error:
            found[path].append(str(error))
    return found


def test_the_same_request_gets_the_same_answer_whatever_else_is_asked(memory: Any) -> None:
    paths = [f"/flakytest/{i}" for i in range(5)]
    for path in paths:
        memory.pipe_file(path, b"0123456789")
    shares = {"status": 0.2, "busy": 0.1, "reset": 0.2, "short": 0.2}

    def fresh(seed: int) -> FlakyFileSystem:
        return FlakyFileSystem("memory", **shares, seed=seed, skip_instance_cache=True)

    fs = fresh(1)
    whole = describe(fs, paths, 20)
    assert describe(fresh(1), paths[::-1], 20) == whole
    assert describe(fresh(1), paths[2:3], 20) == {paths[2]: whole[paths[2]]}
    assert describe(fresh(2), paths, 20) != whole
    answers = [answer for path in paths for answer in whole[path]]
    assert fs.requests == {"read": 100}
    for kind, answer in (("status", "answers 503"), ("busy", "answers 429"), ("reset", "reset"), ("short", "01234")):
        count = sum(answer in each if kind != "short" else answer == each for each in answers)
        assert fs.faults[kind] == count
        assert abs(count - 100 * shares[kind]) < 15


def test_a_url_holds_the_faults_and_names_the_files_behind(memory: Any, tmp_path: Path) -> None:
    memory.pipe_file("/flakytest/a", b"here")
    url = flaky("memory://flakytest/a", status=0.25, seed=3, log=tmp_path / "a log")
    fs, path = fsspec.url_to_fs(url)
    assert path == "/flakytest/a"
    assert fs.unstrip_protocol(path) == "flaky://memory/flakytest/a", "faults are no part of the data"
    answers = describe(fs, [path], 8)[path]
    assert set(answers) == {"here", "the storage answers 503"}
    lines = [line.split() for line in (tmp_path / "a log").read_text().splitlines()]
    assert [(int(pid), what, name) for pid, what, name, _ in lines] == [(os.getpid(), "read", path)] * 8
    assert [fault for *_, fault in lines] == ["none" if answer == "here" else "status" for answer in answers]
    (tmp_path / "b").write_bytes(b"local")
    fs, path = fsspec.url_to_fs(flaky(tmp_path / "b"))
    assert (path, fs.cat_file(path)) == (str(tmp_path / "b"), b"local")


def test_what_no_request_would_outlive_is_refused() -> None:
    with pytest.raises(ValueError, match="no request would ever succeed"):
        flaky("memory://a", status=0.5, reset=0.5)
    with pytest.raises(ValueError, match="unknown option 'stats'"):
        fsspec.url_to_fs("flaky://memory;stats=0.5/a")


def test_a_fault_says_how_long_to_wait_in_other_processes_too() -> None:
    for fault, headers in ((StorageFault(429, wait=1.5), {"Retry-After": "1.5"}), (StorageFault(503), {})):
        again = pickle.loads(pickle.dumps(fault))
        assert (again.status, again.headers, str(again)) == (fault.status, headers, str(fault))
