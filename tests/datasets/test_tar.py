from __future__ import annotations

import gzip
import io
import random
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest

from cedar.core.errors import CedarError, PipelineError, SourceError
from cedar.datasets.tar import read_tar
from tests.datasets.reading import read_keyed, read_rows, traveled

Member = tuple[str, bytes] | tarfile.TarInfo


def shard(members: list[Member], **options) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", **options) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return stream.getvalue()


def write(folder: Path, members: list[Member], name: str = "t.tar") -> Path:
    (folder / name).write_bytes(shard(members))
    return folder / name


def samples(n: int, start: int = 0) -> list[Member]:
    return [(f"{i:04d}.{e}", f"{i}{e}".encode() * i) for i in range(start, start + n) for e in ("jpg", "cls")]


def special(name: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = "/etc/passwd"
    return info


def test_samples_become_rows(tmp_path: Path):
    source = read_tar(write(tmp_path, samples(600)))
    assert source.schema() == {"key": pa.large_string(), "jpg": pa.large_binary(), "cls": pa.large_binary()}
    assert [s.streaming for s in source.splits()] == [True]
    rows = read_keyed(source)
    assert [key for key, _ in rows] == [(0, i) for i in range(600)]
    assert rows[3][1] == {"key": "0003", "jpg": b"3jpg3jpg3jpg", "cls": b"3cls3cls3cls"}
    assert read_keyed(traveled(source)) == rows


def test_several_and_compressed_shards(tmp_path: Path):
    write(tmp_path, samples(3), "a.tar")
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(shard(samples(2, 3))))
    (tmp_path / "c.tgz").write_bytes(gzip.compress(shard(samples(1, 5))))
    rows = read_keyed(read_tar(tmp_path / "*"))
    assert [(key, row["key"]) for key, row in rows] == [
        ((0, 0), "0000"),
        ((0, 1), "0001"),
        ((0, 2), "0002"),
        ((1, 0), "0003"),
        ((1, 1), "0004"),
        ((2, 0), "0005"),
    ]


def test_keys_and_extensions(tmp_path: Path):
    folder = tarfile.TarInfo("train")
    folder.type = tarfile.DIRTYPE
    members: list[Member] = [folder, ("./train/a/01.seg.PNG", b"1"), ("./train/a/01.json", b"2")]
    source = read_tar(write(tmp_path, members))
    assert read_rows(source) == [{"key": "train/a/01", "seg.png": b"1", "json": b"2"}]


def test_long_names(tmp_path: Path):
    name = "d/" * 100 + "x" * 150
    assert read_rows(read_tar(write(tmp_path, [(f"{name}.txt", b"1")])))[0]["key"] == name


def test_the_order_of_members_and_columns(tmp_path: Path):
    source = read_tar(write(tmp_path, [("1.b", b"1"), ("1.a", b"2"), ("2.a", b"3"), ("2.b", b"4")]))
    assert read_rows(source) == [{"key": "1", "b": b"1", "a": b"2"}, {"key": "2", "b": b"4", "a": b"3"}]
    assert read_rows(source.select(["a"])) == [{"a": b"2"}, {"a": b"3"}]
    assert read_rows(source.select(["key"])) == [{"key": "1"}, {"key": "2"}]
    with pytest.raises(PipelineError, match="there is no column 'c'"):
        source.select(["c"]).schema()


def test_much_is_handed_over_in_portions(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("cedar.datasets.tar._BYTES", 100)
    source = read_tar(write(tmp_path, samples(50)))
    assert len(list(source.read(source.splits()[0]))) > 10
    assert len(read_rows(source)) == 50


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (("../evil.jpg", b"x"), r"member '\.\./evil\.jpg' is refused: its name leads out of the archive"),
        (("/etc/evil.jpg", b"x"), "its name leads out of the archive"),
        (("a/../../evil.jpg", b"x"), "its name leads out of the archive"),
        (special("link.jpg", tarfile.SYMTYPE), "it is a link"),
        (special("link.jpg", tarfile.LNKTYPE), "it is a link"),
        (special("dev.jpg", tarfile.CHRTYPE), "it is a device or another special file"),
        (special("pipe.jpg", tarfile.FIFOTYPE), "it is a device or another special file"),
        (("0001.jpg", b"x"), "key '0001' has a second .jpg"),
        (("0001.JPG", b"x"), "key '0001' has a second .jpg"),
        (("0000.jpg", b"x"), "key '0000' appeared before"),
        (("README", b"x"), "its name has no extension"),
        ((".hidden", b"x"), "its name has no extension, or begins with a dot"),
        (("caf\udce9.jpg", b"x"), "its name is not UTF-8"),
    ],
)
def test_members_that_are_refused(tmp_path: Path, member: Member, message: str):
    source = read_tar(write(tmp_path, [*samples(2), member]))
    with pytest.raises(SourceError, match=message) as error:
        read_rows(source)
    assert "t.tar" in error.value.what


def test_samples_with_other_extensions(tmp_path: Path):
    with pytest.raises(SourceError, match=r"t\.tar: sample 'x' has no \.cls; the first sample has jpg, cls"):
        read_rows(read_tar(write(tmp_path, [*samples(2), ("x.jpg", b"")])))
    with pytest.raises(SourceError, match=r"sample 'x' also has \.txt"):
        read_rows(read_tar(write(tmp_path, [*samples(2), ("x.jpg", b""), ("x.cls", b""), ("x.txt", b"")])))
    write(tmp_path, [("x.txt", b"")], "u.tar")
    write(tmp_path, samples(2), "t.tar")
    with pytest.raises(SourceError, match=r"u\.tar: sample 'x' has no \.jpg, \.cls"):
        read_rows(read_tar(tmp_path / "*.tar"))
    with pytest.raises(SourceError, match="clashes with the column 'key'"):
        read_rows(read_tar(write(tmp_path, [("x.key", b"")])))


def test_an_archive_without_members(tmp_path: Path):
    source = read_tar(write(tmp_path, []))
    assert read_rows(source) == []
    assert source.schema() == {"key": pa.large_string()}


@pytest.mark.parametrize("content", [b"", b"hello", b"x" * 5000])
def test_what_is_no_tar(tmp_path: Path, content: bytes):
    (tmp_path / "t.tar").write_bytes(content)
    with pytest.raises(SourceError, match=r"t\.tar"):
        read_rows(read_tar(tmp_path / "t.tar"))


@pytest.mark.heavy
def test_an_archive_cut_short_is_never_taken_for_a_whole_one(tmp_path: Path):
    whole = shard(samples(30))
    end = len(shard(samples(30)).rstrip(b"\0"))
    chance = random.Random(3)
    path = tmp_path / "t.tar"
    cuts = [chance.randrange(end) for _ in range(40)] + [512 * chance.randrange(end // 512) for _ in range(20)]
    for cut in cuts:
        path.write_bytes(whole[:cut])
        with pytest.raises(SourceError, match=r"t\.tar"):
            read_rows(read_tar(path))


def test_what_follows_the_end_is_not_passed_over(tmp_path: Path):
    whole = shard(samples(10))
    hole = bytearray(whole)
    hole[5 * 1024 : 5 * 1024 + 512] = bytes(512)
    for content in (hole, whole + shard(samples(10, 10)), whole + bytes(3 << 20) + b"x"):
        (tmp_path / "t.tar").write_bytes(content)
        with pytest.raises(SourceError, match=r"t\.tar: data follows the end of the archive"):
            read_rows(read_tar(tmp_path / "t.tar"))
    (tmp_path / "t.tar").write_bytes(whole + bytes(3 << 20))
    assert len(read_rows(read_tar(tmp_path / "t.tar"))) == 10


def test_a_shard_that_changes_while_it_is_read(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("cedar.datasets.tar._ROWS", 1)
    source = read_tar(write(tmp_path, samples(3)))
    chunks = source.read(source.splits()[0])
    next(chunks)
    write(tmp_path, samples(30))
    with pytest.raises(SourceError, match=r"t\.tar: changed while in use"):
        list(chunks)


def test_damaged_headers_are_errors(tmp_path: Path):
    whole = shard(samples(30))
    path = tmp_path / "t.tar"
    chance = random.Random(3)
    for _ in range(60):
        content = bytearray(whole)
        content[chance.randrange(len(whole) - 10_240)] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        try:
            assert len(read_rows(read_tar(path))) == 30
        except CedarError as error:
            assert "t.tar" in str(error)  # noqa: PT017 - either outcome is right


def test_parts_that_samples_lack_are_null_where_that_is_asked_for(tmp_path: Path):
    members = [("0.jpg", b"a"), ("1.jpg", b"b"), ("1.cls", b"1"), ("2.cls", b"2")]
    path = write(tmp_path, members)
    with pytest.raises(SourceError, match=r'(?s)0.*missing="null"|missing="null"'):
        read_rows(read_tar(path))
    source = read_tar(path, missing="null")
    assert list(source.schema()) == ["key", "jpg", "cls"]
    want = [{"key": k, "jpg": j, "cls": c} for k, j, c in [("0", b"a", None), ("1", b"b", b"1"), ("2", None, b"2")]]
    assert read_rows(source) == want
    assert read_rows(source.select(["cls"])) == [{"cls": row["cls"]} for row in want]
    assert read_rows(traveled(source)) == want
    late = write(tmp_path, [*samples(256), ("0256.new", b"x")], "late.tar")
    with pytest.raises(SourceError, match=r"'0256' also has \.new; the first 256 samples have jpg, cls"):
        read_rows(read_tar(late, missing="null"))


def test_dots_in_keys(tmp_path: Path):
    path = write(tmp_path, [("d.1/a.b.jpg", b"j"), ("d.1/a.b.cls", b"c"), ("d.1/a.c.jpg", b"k"), ("d.1/a.c.cls", b"d")])
    rows = read_rows(read_tar(path, dot="last"))
    assert rows == [{"key": "d.1/a.b", "jpg": b"j", "cls": b"c"}, {"key": "d.1/a.c", "jpg": b"k", "cls": b"d"}]
    first = read_rows(read_tar(path))
    assert [row["key"] for row in first] == ["d.1/a"]
    assert first[0]["b.jpg"] == b"j"


@pytest.mark.parametrize("option", [{"missing": "skip"}, {"dot": "middle"}])
def test_options_that_are_none(option):
    with pytest.raises(PipelineError, match=next(iter(option))):
        read_tar("x.tar", **option)


@pytest.mark.parametrize(("mode", "suffix"), [("w:gz", ".gz"), ("w:bz2", ".bz2"), ("w:xz", ".xz")])
def test_a_compressed_shard_without_its_suffix_states_the_cause(tmp_path: Path, mode, suffix: str):
    with tarfile.open(tmp_path / "a.tar", mode) as archive:
        archive.addfile(tarfile.TarInfo("0.jpg"))
    with pytest.raises(SourceError, match="compressed with .*which its name does not say") as caught:
        read_rows(read_tar(str(tmp_path / "a.tar")))
    assert suffix in str(caught.value.fix)
