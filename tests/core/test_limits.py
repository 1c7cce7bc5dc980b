"""Sizes and integers, as users write them and as they are shown."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch

import cedar
import cedar.operators.audio
import cedar.operators.image
from cedar.core.errors import PipelineError
from cedar.core.limits import Limits, as_int, parse_bytes, size_text, variable


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), torch.tensor(3)])
def test_whole_numbers_of_libraries_are_ints(value: Any) -> None:
    assert type(as_int(value)) is int
    assert as_int(value) == 3


@pytest.mark.parametrize("value", [True, np.bool_(True), torch.tensor(True), 3.0, np.float32(3), "3", None])
def test_whatever_else_stays_as_it_is(value: Any) -> None:
    assert as_int(value) is value


@pytest.mark.parametrize(
    ("text", "size"),
    [("256MiB", 256 << 20), (" 1.5 GiB ", 3 << 29), ("2gb", 2 * 10**9), ("1B", 1), ("3 KB", 3000), ("1tib", 1 << 40)],
)
def test_sizes_are_numbers_of_bytes(text: str, size: int) -> None:
    assert parse_bytes(text, "memory") == size


@pytest.mark.parametrize("text", ["", "12", "MiB", "-1MiB", "0GiB", "1 parsec", "1e3MB", "1MiB 2MiB", "NaN B"])
def test_what_is_no_size_is_refused_by_its_argument(text: str) -> None:
    with pytest.raises(PipelineError, match="memory=.* is not a size") as caught:
        parse_bytes(text, "memory")
    assert caught.value.site is not None
    assert caught.value.site.file == __file__


def test_sizes_are_shown_in_three_digits() -> None:
    shown = [size_text(size) for size in (0, 1023, 1024, 1500 << 10, (1 << 30) - 1, 5000 << 40)]
    assert shown == ["0B", "1023B", "1KiB", "1.46MiB", "1,024MiB", "5,000TiB"]


def over(name: str, value: int, monkeypatch: pytest.MonkeyPatch, read: Any) -> str:
    """The error of a read under a limit."""
    monkeypatch.setenv(variable(name), str(value))
    with pytest.raises((cedar.SourceError, cedar.RowError)) as caught:
        read()
    text = str(caught.value)
    assert name in text
    assert f"{variable(name)}=" in text
    return text


@pytest.mark.heavy
@pytest.mark.parametrize("codec", ["gz", "bz2", "xz", "zst"])
@pytest.mark.parametrize("reader", ["text", "jsonl", "csv"])
def test_a_file_that_decompresses_too_well(codec: str, reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cedar.core.limits._MIN_CHECKED_BYTES", 1 << 18)
    line = {"text": b"a" * 99 + b"\n", "jsonl": b'{"x": 1}\n', "csv": b"1,2\n"}[reader]
    data = line * (1_500_000 // len(line))
    compress: dict[str, Any] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lambda d: lzma.compress(d, preset=0)}
    path = tmp_path / f"bomb.{reader}.{codec}"
    path.write_bytes(pa.compress(data, "zstd", asbytes=True) if codec == "zst" else compress[codec](data))
    read: Any = {"text": cedar.read_text, "jsonl": cedar.read_jsonl, "csv": cedar.read_csv}[reader]
    said = over("decompression_ratio", 20, monkeypatch, lambda: read(str(path)).to_arrow())
    assert "times its size" in said
    monkeypatch.setenv(variable("decompression_ratio"), "100000000")
    if codec == "gz":
        assert read(str(path)).count() == len(data) // len(line) - (reader == "csv")


def test_a_tar_that_decompresses_too_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cedar.core.limits._MIN_CHECKED_BYTES", 1 << 20)
    path = shard(tmp_path / "t.tar.gz", {"a.bin": bytes(4 << 20)}, "w:gz")
    over("decompression_ratio", 50, monkeypatch, lambda: cedar.read_tar(path).to_arrow())


def shard(path: Path, members: dict[str, bytes], mode: Any = "w") -> str:
    with tarfile.open(path, mode) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return str(path)


def test_a_member_of_a_tar_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = shard(tmp_path / "t.tar", {"a.bin": b"1", "b.bin": bytes(1001)})
    said = over("split_bytes", 1000, monkeypatch, lambda: cedar.read_tar(path).to_arrow())
    assert "member 'b.bin' takes what is held at a time to 1,002 bytes" in said
    monkeypatch.setenv(variable("split_bytes"), "1002")
    assert cedar.read_tar(path).count() == 2


def test_a_member_that_lies_about_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first, member = tarfile.TarInfo("a.bin"), tarfile.TarInfo("b.bin")
    member.size = 1 << 40
    (tmp_path / "t.tar").write_bytes(first.tobuf() + member.tobuf() + bytes(1024))
    over("split_bytes", 8 << 30, monkeypatch, lambda: cedar.read_tar(str(tmp_path / "t.tar")).to_arrow())


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_a_header_of_a_tar_that_is_too_long(kind: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Such headers are read at once, before there is a member to judge."""
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, 1 << 20
    path = tmp_path / "t.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("a.bin")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"1"))
        archive.fileobj.write(header.tobuf() + b"30 x=" + b"y" * ((1 << 20) - 5))
    said = over("split_bytes", 1000, monkeypatch, lambda: cedar.read_tar(str(path)).to_arrow())
    assert "the header after member 'a.bin' takes what is held at a time to" in said


def test_global_headers_of_a_tar_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "t.tar"
    with open(path, "wb") as file:
        file.writelines(tarfile.TarInfo.create_pax_global_header({f"k{i}": "v" * 200}) for i in range(20))
        file.write(bytes(1024))
    over("split_bytes", 3000, monkeypatch, lambda: cedar.read_tar(str(path)).to_arrow())


def test_a_sparse_member_of_a_tar_is_refused(tmp_path: Path):
    """A thousand bytes of it stand for a gigabyte of zeros."""
    member = tarfile.TarInfo("a.bin")
    member.size = 0
    member.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 30), "GNU.sparse.numblocks": "1"}
    with tarfile.open(tmp_path / "t.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member)
    with pytest.raises(cedar.SourceError, match=r"member 'a\.bin' is refused: it is a sparse file"):
        cedar.read_tar(str(tmp_path / "t.tar")).to_arrow()


def test_a_record_batch_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = pa.table({"x": np.zeros(100_000, np.int64)})
    pyarrow.feather.write_feather(table, tmp_path / "t.arrow", compression="zstd")
    said = over("split_bytes", 100_000, monkeypatch, lambda: cedar.read_arrow(str(tmp_path / "t.arrow")).to_arrow())
    assert "a record batch of 65,536 rows" in said


@pytest.mark.parametrize("codec", ["", ".gz"])
@pytest.mark.parametrize("size", [5_001, 100_000, 9 << 20])
def test_a_line_that_is_too_long(codec: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / f"t.txt{codec}"
    data = b"first\n" + b"a" * size + b"\nlast\n"
    path.write_bytes(gzip.compress(data) if codec else data)
    said = over("line_bytes", 5_000, monkeypatch, lambda: cedar.read_text(str(path)).to_arrow())
    assert "the line at byte 6" in said
    monkeypatch.setenv(variable("line_bytes"), str(size))
    assert cedar.read_text(str(path)).count() == 3


def test_a_csv_header_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "t.csv").write_bytes(b"a" * 100_000)
    over("line_bytes", 50_000, monkeypatch, lambda: cedar.read_csv(str(tmp_path / "t.csv")).to_arrow())


def test_a_row_group_that_declares_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = str(tmp_path / "t.parquet")
    # Run lengths: a hundred bytes in the file, a million numbers in memory.
    pq.write_table(pa.table({"x": np.zeros(1_000_000, np.int64), "y": np.zeros(1_000_000, np.int8)}), path)
    assert os.path.getsize(path) < 10_000
    said = over("split_bytes", 1 << 20, monkeypatch, lambda: cedar.read_parquet(path).to_arrow())
    assert "row group 0, as it declares, takes" in said
    monkeypatch.setenv(variable("split_bytes"), "10MB")
    assert len(cedar.read_parquet(path, columns=["x"]).to_arrow()) == 1_000_000


@pytest.mark.parametrize("place", [0, 70])
@pytest.mark.parametrize("depth", [5, 200_000])
def test_json_that_is_too_deep(place: int, depth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines = ['{"x": [1]}'] * 71
    lines[place] = '{"x": ' + "[" * depth + "]" * depth + "}"
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    said = over("json_depth", 4, monkeypatch, lambda: cedar.read_jsonl(str(tmp_path / "t.jsonl")).to_arrow())
    assert f"line {place + 1}:" in said


@pytest.mark.parametrize("value", ["", "-1", "0", "lots", "1.5", "\u00b2"])
def test_a_limit_that_is_none(value: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(variable("json_depth"), value)
    with pytest.raises(cedar.PipelineError, match="CEDAR_MAX_JSON_DEPTH"):
        Limits.of_environment()


def small_files(path: Path, kind: str, side: int = 128, count: int = 12) -> str:
    """A row group of files of few bytes that are decoded to side * side * 3 bytes of pixels, or as many of samples."""
    files = []
    for _ in range(count):
        file = io.BytesIO()
        if kind == "png":
            pytest.importorskip("PIL.Image").new("RGB", (side, side)).save(file, "PNG")
        else:
            pytest.importorskip("soundfile").write(file, np.zeros(side * side * 3 // 4), 8000, format="FLAC")
        files.append(file.getvalue())
    pq.write_table(pa.table({"bytes": files}), path)
    return str(path)


def decoded(path: str, kind: str, then: Any = None, executor: str = "inline") -> int:
    module: Any = cedar.operators.image if kind == "png" else cedar.operators.audio
    p = cedar.read_parquet(path).map(module.decode() if kind == "png" else module.decode(mono=True), "bytes")
    p = p if then is None else p.map(then, "bytes")
    with p.batch(4).loader(executor=executor, workers=1) as loader:
        return sum(1 for _ in loader)


@pytest.mark.parametrize("executor", ["inline", "processes"])
@pytest.mark.parametrize("kind", ["png", "flac"])
def test_what_is_decoded_meets_the_limit_of_a_split(
    kind: str, executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = small_files(tmp_path / "files.parquet", kind)  # 48 KiB each
    monkeypatch.setenv(variable("split_bytes"), str(64 << 20))
    assert decoded(path, kind, None, executor) == 3
    said = over("split_bytes", 100_000, monkeypatch, lambda: decoded(path, kind, None, executor))
    assert "files.parquet" in said
    assert "images" in said if kind == "png" else "clips" in said or "samples" in said


def test_what_is_decoded_and_made_small_at_once_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(variable("split_bytes"), "100000")
    images, sound = small_files(tmp_path / "images", "png"), small_files(tmp_path / "sound", "flac")
    assert decoded(images, "png", cedar.operators.image.resize((8, 8))) == 3
    assert decoded(sound, "flac", cedar.operators.audio.crop(8)) == 3


def test_limits_travel_with_the_source_to_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with cedar.from_items([{"x": 1}]).loader(executor="processes", workers=2) as loader:
        list(loader)  # the workers are there, and know nothing of what is set now
    path = tmp_path / "t.txt"
    path.write_bytes(b"ok\n" * 10 + b"a" * 1000 + b"\n")

    def read() -> None:
        with cedar.read_text(str(path)).loader(executor="processes", workers=2) as loader:
            list(loader)

    over("line_bytes", 500, monkeypatch, read)
