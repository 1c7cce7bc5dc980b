"""Files on storage that fails: what is read, fetched and renamed all the same."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedar.core.errors import PipelineError, SourceError
from cedar.core.remote import Remote, find_place, rename
from cedar.core.requests import RequestPatience, RequestStats
from cedar.testing.storage import FlakyFileSystem
from tests.datasets.failing_storage import QUICK, lines
from tests.toy_http_store import Store


@given(
    st.binary(max_size=300),
    st.lists(st.tuples(st.integers(0, 320), st.integers(-1, 320)), max_size=12),
    st.integers(0, 9),
)
def test_a_file_reads_as_one_in_memory_does(data: bytes, reads: list[tuple[int, int]], seed: int):
    fsspec.filesystem("memory").pipe_file("/model", data)
    fs = FlakyFileSystem("memory", status=0.1, reset=0.1, short=0.2, seed=seed, skip_instance_cache=True)
    model = io.BytesIO(data)
    with Remote(fs, RequestStats(QUICK)).open("/model", len(data)) as file:
        for position, size in reads:
            assert file.seek(position) == model.seek(position)
            assert file.read(size) == model.read(size)
            assert file.tell() == max(position, model.tell())
        assert file.seek(-len(data), io.SEEK_END) == 0
        assert file.readall() == data


class Unsized(FlakyFileSystem):
    """Says of no file how large it is."""

    cachable = False

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        return super().info(path, **kwargs) | {"size": None}


def test_a_file_of_unknown_size_goes_on_where_it_broke_off(memory: Any):
    data = np.random.default_rng(0).bytes(300_000)
    memory.pipe_file("/f", data)
    fs = Unsized("memory", reset=0.3, seed=2)
    with Remote(fs, RequestStats(QUICK)).open("/f", None) as file:
        assert not file.seekable()
        parts = []
        while part := file.read(10_000):
            parts.append(part)
    assert b"".join(parts) == data
    assert fs.faults["reset"] > 3


def test_a_file_that_shrank_is_said_to_be_short(memory: Any):
    memory.pipe_file("/f", b"abc")
    with pytest.raises(SourceError, match=r"memory://f: .* short read \(3 of 5 bytes from byte 0; 5 when listed\)"):
        Remote(memory, RequestStats(RequestPatience(attempts=2, first=0.0))).fetch("/f", 0, 5, 5)


class Renaming(FlakyFileSystem):
    """Renames, and loses the first answer."""

    cachable = False
    lost = False

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        self.target.mv(path1, path2)
        if not self.lost:
            self.lost = True
            raise ConnectionResetError


def test_a_rename_whose_answer_was_lost_is_not_an_error(memory: Any):
    memory.pipe_file("/old", b"1")
    rename(Remote(Renaming("memory"), RequestStats(QUICK)), "/old", "/new")
    assert memory.find("/") == ["/new"]


def test_a_server_that_never_answers_is_asked_again():
    with Store({"a.jsonl": lines(0, 100)}) as store:
        account = RequestStats(RequestPatience(seconds=4, first=0.0))
        fs = fsspec.filesystem("http")
        store.hung["a.jsonl"] = 1
        data = Remote(fs, account).fetch(f"{store.url}/a.jsonl", 0, 50, len(lines(0, 100)))
    assert data == lines(0, 100)[:50]
    assert account.metadata.retries == 1


def test_large_ranges_are_fetched_in_pieces(memory: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cedar.core.remote._REQUEST_BYTES", 100)
    data = np.random.default_rng(0).bytes(1050)
    memory.pipe_file("/f", data)
    fs = FlakyFileSystem("memory", short=0.3, reset=0.2, seed=1, skip_instance_cache=True)
    remote = Remote(fs, RequestStats(QUICK))
    assert remote.fetch("/f", 0, None, 1050) == data
    assert remote.fetch("/f", 7, 999, 1050) == data[7:999]
    assert remote.account.metadata.requests - remote.account.metadata.retries == 11 + 10


def test_directories_and_urls_have_a_filesystem_and_a_path(tmp_path: Path) -> None:
    for where in (f"{tmp_path}/out/", f"file://{tmp_path}/out//"):
        fs, path = find_place(where, "cache")
        assert path == f"{tmp_path}/out"
        assert "file" in fs.protocol
    fs, path = find_place("memory://kept/", "cache")
    assert (fs.protocol, path) == ("memory", "/kept")


def test_a_url_that_nobody_knows_is_refused_by_the_argument() -> None:
    with pytest.raises(PipelineError, match="quarantine='nowhere://x'") as caught:
        find_place("nowhere://x", "quarantine")
    assert "a filesystem that fsspec has installed" in str(caught.value.fix)
