"""Files that appear whole: of several writers one has the name, with no hard links, and any code that is killed
when.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from cedar.store import files
from cedar.store.files import (
    MARK,
    ForeignFile,
    acquire,
    alone,
    holds_foreign,
    is_owned,
    make_owned,
    mark_of,
    private_folder,
    release,
    remove_file,
    remove_tree,
    settle_claims,
    temporary_folder,
    write_first,
    write_whole,
)


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


def test_a_claim_that_cannot_be_removed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".a.json.claim" / "foreign").mkdir(parents=True)
    monkeypatch.setattr(files, "_CLAIM_SECONDS", 0.1)
    with pytest.raises(OSError, match="left by another process") as caught:
        write_first(str(tmp_path / "a.json"), b"")
    assert caught.value.filename.endswith(".a.json.claim")
    assert [path.name for path in tmp_path.iterdir()] == [".a.json.claim"]


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(os, "rename", refused)
    with pytest.raises(PermissionError):
        write_first(str(tmp_path / "a.json"), b"")
    assert not list(tmp_path.iterdir())


HOLD = """
import sys, time
from cedar.store.files import alone
with alone(sys.argv[1]):
    print("inside", flush=True)
    time.sleep(100)
"""


def test_one_is_inside_at_a_time(tmp_path: Path) -> None:
    inside: list[int] = []
    most = []

    def work(number: int) -> None:
        with alone(str(tmp_path / "a")):
            inside.append(number)
            most.append(len(inside))
            threading.Event().wait(0.001)
            inside.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 12
    assert os.listdir(tmp_path) == []


def test_one_path_does_not_wait_for_another(tmp_path: Path) -> None:
    with alone(str(tmp_path / "a")), alone(str(tmp_path / "b")):
        assert len(os.listdir(tmp_path)) == 2


def test_a_killed_process_lets_go(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"inside\n"
        with pytest.raises(BlockingIOError):
            acquire(str(tmp_path / ".a.lock"))
        holder.send_signal(signal.SIGKILL)
        with alone(path):
            pass
    assert os.listdir(tmp_path) == []


def test_where_no_file_can_be_written_nobody_waits(tmp_path: Path) -> None:
    with alone(str(tmp_path / "none" / "a")), alone(str(tmp_path / "none" / "a")):
        pass


def test_a_handle_that_a_forked_process_has_does_not_hold_the_lock(tmp_path: Path) -> None:
    handle = acquire(str(tmp_path / "lock"))
    assert handle is not None
    other = os.dup(handle)  # as a fork has it
    release(handle)
    again = acquire(str(tmp_path / "lock"))
    assert again is not None
    release(again)
    os.close(other)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_it_is_made_for_this_user_alone(base: Path) -> None:
    assert private_folder() == str(base / "cedar")
    assert private_folder("keys") == private_folder("keys") == str(base / "cedar" / "keys")
    assert {path.stat().st_mode & 0o777 for path in (base / "cedar", base / "cedar" / "keys")} == {0o700}


def test_a_relative_base_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for base in ("", "here"):
        monkeypatch.setenv("XDG_CACHE_HOME", base)
        assert private_folder() == str(tmp_path / ".cache" / "cedar")


@pytest.mark.parametrize("at", ["cedar", "cedar/keys"])
@pytest.mark.parametrize("why", ["group", "others", "link", "file", "owner"])
def test_what_others_could_have_written_to_is_not_used(
    why: str, at: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (base / at).parent.mkdir(parents=True, mode=0o700)
    if why == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (base / at).symlink_to(tmp_path / "elsewhere")
    elif why == "file":
        (base / at).write_text("")
    else:
        (base / at).mkdir(mode=0o700)
        (base / at).chmod({"group": 0o770, "others": 0o707}.get(why, 0o700))
    if why == "owner":
        monkeypatch.setattr(os, "geteuid", lambda: (base / at).stat().st_uid + 1)
    assert private_folder("keys") is None


NAMES = re.compile(r"(out/)?part-\d\.bin")


def test_a_folder_that_was_made_is_ours_and_removed(tmp_path: Path) -> None:
    path = str(tmp_path / "a" / "b")
    make_owned(path, "test 1")
    make_owned(path, "test 1")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert is_owned(path, "test 1")
    assert not is_owned(path, "test 2")
    assert not remove_tree(path, "test 2")
    assert remove_tree(path, "test 1")
    assert not remove_tree(path, "test 1")
    assert not remove_tree("", "test 1")
    assert remove_tree(temporary_folder("test"), "test")


def test_a_folder_of_others_stays(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "thesis.txt"):
        with pytest.raises(ForeignFile, match="thesis.txt"):
            make_owned(str(path), "test 1")
        assert not remove_tree(str(path), "test 1")
    ours = tmp_path / "ours"
    make_owned(str(ours), "test 1")
    (tmp_path / "link").symlink_to(ours)
    assert not is_owned(str(tmp_path / "link"), "test 1"), "a link may point anywhere tomorrow"
    (ours / MARK).write_text("something else")
    with pytest.raises(ForeignFile):
        make_owned(str(ours), "test 1")


def test_a_folder_that_was_not_finished_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    make_owned(str(tmp_path / "empty"), "test 1")
    assert is_owned(str(tmp_path / "empty"), "test 1")


def test_only_files_of_the_format_are_removed(tmp_path: Path) -> None:
    ours, out, theirs = tmp_path / "ours", tmp_path / "ours" / "out", tmp_path / "theirs"
    make_owned(str(ours), "test 1")
    out.mkdir()
    theirs.mkdir()
    for folder in (ours, out, theirs):
        for name in ("part-1.bin", "part-2.bin.bak"):
            (folder / name).write_text("x")
    (ours / "part-3.bin").symlink_to(theirs / "part-1.bin")
    (ours / "part-4.bin").mkdir()
    names = ("part-1.bin", "part-2.bin.bak", "part-3.bin", "part-4.bin", "out/part-1.bin", "../theirs/part-1.bin")
    assert [remove_file(str(ours), name, "test 1", NAMES) for name in names] == [True, False, False, False, True, False]
    assert not remove_file(str(theirs), "part-1.bin", "test 1", NAMES)
    out.rename(tmp_path / "moved")
    out.symlink_to(theirs)
    assert not remove_file(str(ours), "out/part-1.bin", "test 1", NAMES)
    assert (theirs / "part-1.bin").exists()


def test_a_folder_that_another_thread_marks_meanwhile_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(path: str) -> list[str]:
        (tmp_path / MARK).write_bytes(mark_of("test 1"))
        return [MARK]

    monkeypatch.setattr(os, "listdir", listed)
    assert holds_foreign(str(tmp_path), "test 1") == ""
