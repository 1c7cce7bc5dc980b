"""Files of ours that processes share: whole or not there, made by one at a time, and refused where they are damaged."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import fsspec
import pytest

from cedar.datasets.kept_file import Damaged, alone, read_file, sealed, unsealed, write_file

MARK = b"kept 1\n"


@pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)) * 9])
def test_what_was_sealed_is_unsealed_and_any_other_bytes_are_damaged(body: bytes):
    whole = sealed(MARK, body)
    assert bytes(unsealed(MARK, whole)) == body
    for at in range(0, len(whole), max(1, len(whole) // 60)):
        flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        for bad in (flipped, whole[:at]):
            with pytest.raises(Damaged, match="cut off, or bytes of it are others"):
                unsealed(MARK, bad)
    with pytest.raises(Damaged):
        unsealed(b"kept 2\n", whole)


def test_a_file_is_written_whole_here_and_elsewhere(tmp_path: Path):
    fs = fsspec.filesystem("memory")
    for where in (str(tmp_path / "a"), "memory://kepttest/a"):
        assert read_file(where) is None
        for content in (b"first, and longer", b"second"):
            write_file(where, content)
            assert read_file(where) == content
    assert os.listdir(tmp_path) == ["a"]
    fs.rm("kepttest", recursive=True)


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path):
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match="a"):
        write_file(str(tmp_path / "a"), b"x")
    assert os.listdir(tmp_path) == ["a"]


def test_one_is_alone_in_a_folder_until_it_is_done(tmp_path: Path):
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        with alone(str(tmp_path / "a")), pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(handle)
