"""What a run prints and writes: no credentials, no pickles; and what it reads: no more than the limits."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import logging
import lzma
import os
import pickletools
import re
import tarfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import cedar
import cedar.operators.audio
import cedar.operators.image
from cedar.core.limits import Limits, variable
from cedar.core.redact import redact, redact_url, redacted
from cedar.executors.worker.main import Failed
from cedar.testing.storage import FlakyFileSystem
from tests.toy_http_store import Store

PASSWORD, TOKEN = "hunter2" * 3, "tok" + "5ecre7" * 4
SECRETS = (PASSWORD, TOKEN)


def parquet(table: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=50)
    return sink.getvalue()


# ---- credentials -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pw@host/a?sig=abc", "https://***@host/a?***"),
        ("https://host/a.csv?X-Amz-Signature=abc&x=1", "https://host/a.csv?***"),
        ("s3://me:p@ss@bucket/a@b", "s3://***@bucket/a@b"),
        ("s3://bucket/a?.csv", "s3://bucket/a?.csv"),
        ("simplecache::https://me:pw@host/a", "simplecache::https://***@host/a"),
        ("/local/a?b=c.csv", "/local/a?b=c.csv"),
        ("it failed: 'https://host/a?token=b', sorry", "it failed: 'https://host/a?***', sorry"),
        ("GET /a?sig=abc failed", "GET /a?sig=*** failed"),
        ("aws_secret_access_key=abc", "aws_secret_access_key=***"),
        ("{'password': 'abc'}", "{'password': '***'}"),
        ("Authorization: Bearer abc", "Authorization: Bearer ***"),
        ("column 'token': 5 is not a string", "column 'token': 5 is not a string"),
        ("sort by key=5, token: 3, keys 'a': 'b'", "sort by key=5, token: 3, keys 'a': 'b'"),
        ("AWS_SESSION_TOKEN=abc AWS_SECRET_ACCESS_KEY='a b c'", "AWS_SESSION_TOKEN=*** AWS_SECRET_ACCESS_KEY='***'"),
        ("{'key': 'AKIA', 'secret': 's', 'token': \"t u\"}", "{'key': '***', 'secret': '***', 'token': \"***\"}"),
        ("S3FileSystem(key='AKIA', secret=abc, token=t)", "S3FileSystem(key='***', secret=***, token=***)"),
        ("key=AKIAIOSFODNN7EXAMPLE sas_token=x credential: y", "key=*** sas_token=*** credential: ***"),
        ("{'account_key': 'k==', 'connection_string': 'a;b'}", "{'account_key': '***', 'connection_string': '***'}"),
        ("-s3://me:pw@bucket", "-s3://***@bucket"),
        ("ftp://me:p/w@host/a", "ftp://***@host/a"),
        ("http://host:8080/a@b", "http://host:8080/a@b"),
    ],
)
def test_credentials_are_replaced_and_nothing_else(text: str, shown: str):
    assert redact(text) == shown
    assert redact(shown) == shown


HOSTILE = ("a", "a.", "a-", "://", "x://", "://a:b", "?", "*?", "@", "password", "a_", "key ", "key= ", "'", ", '", "=",
           "://?", "&x-", "x-", "authorization ", "\\", "token=", "secret: '")  # fmt: skip


@pytest.mark.parametrize("unit", HOSTILE)
def test_the_work_grows_with_the_text_and_no_faster(unit: str):
    """A pattern that looks at a text again from each of its places would take minutes for each of these."""
    many = unit * (200_000 // len(unit))
    shown = redact(f"{many}https://me:pw@host/a?b=c password=pw {many}")
    assert len(shown) <= 16_000
    assert "pw" not in shown
    small = unit * 200 + " https://me:pw@host/a?b=c"
    assert redact(redact(small)) == redact(small)
    redact_url(many)


def test_a_long_text_loses_its_middle():
    text = "first " + "x" * 50_000 + " https://me:pw@host " + "y" * 50_000 + " last"
    shown = redact(text)
    assert len(shown) <= 16_000
    assert shown.startswith("first")
    assert shown.endswith("last")
    assert "letters" in shown
    assert redact("x" * 16_000) == "x" * 16_000


def test_a_whole_url_may_hold_spaces():
    assert redact_url("https://me:pw@host/a b?sig=c d") == "https://***@host/a b?***"


def test_causes_are_redacted_in_place_or_replaced():
    class Stubborn(Exception):
        def __str__(self) -> str:
            return f"https://host/?sig={TOKEN}"

    plain = OSError(2, f"https://host/?sig={TOKEN}", f"https://host/?sig={TOKEN}")
    assert redacted(plain) is plain
    assert TOKEN not in str(plain)
    try:
        raise ValueError(f"https://host/?sig={TOKEN}") from Stubborn()
    except ValueError as error:
        replaced = redacted(error)
    printed = "".join(traceback.format_exception(replaced))
    assert TOKEN not in printed
    assert "Stubborn: https://host/?***" in printed
    assert "test_causes_are_redacted" in printed


@pytest.fixture
def memory() -> Iterator[Any]:
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    FlakyFileSystem.clear_instance_cache()
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


def secret(path: str) -> str:
    """A URL of the memory filesystem with a user and a password."""
    return f"flaky://me:{PASSWORD}@memory/{path}"


def fails_sometimes(x: int) -> int:
    if x % 40 == 7:
        raise ValueError(f"{x} from https://host/?sig={TOKEN}")
    return x


def everything_said(p: cedar.Pipeline, folder: Path) -> list[str]:
    """What a pipeline prints, one way or another; it also writes what can be written, into ``folder``."""
    policy = cedar.Skip(quarantine=str(folder / "quarantine"))
    kept = p.map(fails_sometimes, "x", dtype=int, on_error=policy).cache(secret("cache")).batch(10)
    said = [repr(p), repr(kept), p.explain(), kept.explain(), str(p.schema)]
    with kept.loader(executor="threads", workers=2) as loader:
        batches = iter(loader)
        next(batches)
        said += [json.dumps(loader.state_dict())]
        list(batches)
        report = loader.report()
        said += [loader.explain(), str(report), repr(report), report._repr_html_(), repr(loader), str(loader.plan)]
        loader.plan.save(str(folder / "plan.json"))
    profile = p.profile(seconds=0.1)
    profile.save(str(folder / "profile.json"))
    said += [repr(profile), profile.table()]
    said += [repr(p.optimize(profile=profile)), *p.write_parquet(secret("written"))]
    return said


def everything_written(folder: Path, memory: Any) -> list[str]:
    found = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    found += [memory.cat_file(path) for path in memory.find("/")]
    names = [str(path) for path in folder.rglob("*")] + memory.find("/")
    return [*names, *(data.decode("latin-1") for data in found)]


def assert_no_secret(texts: list[str]) -> None:
    for text in texts:
        for word in SECRETS:
            at = text.find(word)
            assert at < 0, f"a secret in: ...{text[max(0, at - 200) : at + 40]}"


def test_no_credentials_in_what_is_printed_or_written(
    memory: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    caplog.set_level(logging.DEBUG, "cedar")
    table = pa.table({"x": range(200)})
    for i in range(2):
        memory.pipe_file(f"/data/{i}.parquet", parquet(table))
    said = everything_said(cedar.read_parquet(secret("data/*.parquet")), tmp_path)
    assert len(list(tmp_path.rglob("*.jsonl"))) == 1
    assert memory.find("/cache")
    assert_no_secret([*said, *everything_written(tmp_path, memory), caplog.text, *capsys.readouterr()])


def failing_pipelines(store: Store) -> dict[str, Any]:
    url = store.url.replace("http://", f"http://me:{PASSWORD}@")
    sign = f"?sig={TOKEN}"
    return {
        "missing": lambda: cedar.read_parquet(f"{url}/missing.parquet{sign}").count(),
        "damaged": lambda: cedar.read_parquet(f"{url}/damaged.parquet{sign}").count(),
        "forbidden": lambda: cedar.read_text(f"{url}/forbidden.txt{sign}").to_arrow(),
        "json": lambda: cedar.read_jsonl(f"{url}/broken.jsonl{sign}").to_arrow(),
        "row": lambda: cedar.read_jsonl(f"{url}/good.jsonl{sign}").map(fails_sometimes, "x", dtype=int).to_arrow(),
        "twice": lambda: cedar.read_jsonl([f"{url}/good.jsonl{sign}"] * 2).to_arrow(),
        "column": lambda: cedar.read_jsonl(f"{url}/good.jsonl{sign}").select("y").to_arrow(),
        "flaky": lambda: cedar.read_jsonl(f"{url}/down.jsonl{sign}").to_arrow(),
        "protocol": lambda: cedar.read_jsonl(f"nosuch://me:{PASSWORD}@host/a{sign}").to_arrow(),
        "cache": lambda: cedar.from_items([{"x": 1}]).cache(f"nosuch://me:{PASSWORD}@host/a{sign}").to_arrow(),
        "sink": lambda: cedar.from_items([{"x": 1}]).write_parquet(f"{url}/out{sign}"),
        "plan": lambda: cedar.Plan.load(f"{url}/plan.json{sign}", cedar.from_items([{"x": 1}])),
        "quarantine": lambda: list(
            cedar.from_items([{"x": 7}]).map(
                fails_sometimes, "x", dtype=int, on_error=cedar.Skip(quarantine=f"nosuch://me:{PASSWORD}@host/q{sign}")
            )
        ),
    }


FAILURES = (
    "missing", "damaged", "forbidden", "json", "row", "twice", "column", "flaky", "protocol", "cache", "sink", "plan",
    "quarantine",
)  # fmt: skip


def failure(run: Any) -> cedar.CedarError:
    with pytest.raises(cedar.CedarError) as caught:
        run()
    return caught.value


@pytest.mark.parametrize("name", FAILURES)
def test_no_credentials_in_errors_nor_in_their_causes(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CEDAR_STORAGE_ATTEMPTS", "2")
    lines = b'{"x": 7}\n' * 20
    files = {"damaged.parquet": b"PAR1" + bytes(100), "broken.jsonl": lines + b"{\n", "good.jsonl": lines}
    with Store(files, statuses={"forbidden.txt": 403, "down.jsonl": 503}) as store:
        caught = failure(failing_pipelines(store)[name])
    if name == "row":  # the cause is the user's own error, which is left as it is
        assert_no_secret([str(caught), repr(caught)])
        return
    printed = "".join(traceback.format_exception(caught))
    travelled = cloudpickle.loads(cloudpickle.dumps(Failed(caught))).error
    assert_no_secret([str(caught), repr(caught), printed, "".join(traceback.format_exception(travelled))])


def test_other_credentials_change_neither_digests_nor_keys(memory: Any):
    memory.pipe_file("/data/0.parquet", parquet(pa.table({"x": range(100)})))
    old = cedar.read_parquet(secret("data/*.parquet")).shuffle(seed=1).batch(10)
    new = cedar.read_parquet(secret("data/*.parquet").replace(PASSWORD, "another")).shuffle(seed=1).batch(10)
    with old.loader() as before, new.loader() as after:
        batches = iter(before)
        first = [next(batches)["x"].tolist() for _ in range(4)]
        after.load_state_dict(json.loads(json.dumps(before.state_dict())))
        rest = [batch["x"].tolist() for batch in after]
    assert sorted(x for batch in first + rest for x in batch) == list(range(100))


# ---- no pickle on disk -----------------------------------------------------------------------------------------------


def is_pickle(data: bytes) -> bool:
    """Whether a whole file, or its beginning, is a pickle of protocol 2 or later."""
    if not data.startswith(tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))):
        return False
    try:
        list(pickletools.genops(data))
    except ValueError:
        return False
    return True


def test_nothing_that_a_run_writes_is_a_pickle(memory: Any, tmp_path: Path):
    import pickle

    assert is_pickle(pickle.dumps({"a": 1}))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.parquet").write_bytes(parquet(pa.table({"x": range(200)})))
    p = cedar.read_parquet(str(tmp_path / "in")).map(as_object, "x").cache(str(tmp_path / "cache"))
    for executor in ("threads", "processes"):
        with p.batch(10).loader(executor=executor, workers=2) as loader:
            batches = iter(loader)
            next(batches)
            (tmp_path / f"{executor}.json").write_text(json.dumps(loader.state_dict()))
            list(batches)
            loader.plan.save(str(tmp_path / "plan.json"))
    everything_said(cedar.read_parquet(str(tmp_path / "in")), tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 6
    for path in files:
        data = path.read_bytes()
        assert not is_pickle(data), path
        assert b"cloudpickle" not in data, path
        assert path.suffix in {".parquet", ".arrow", ".json", ".jsonl"} or path.name == ".cedar-owned", path


def as_object(x: int) -> Any:
    return {"x": x}


def test_no_code_of_the_package_unpickles_a_file():
    root = Path(cedar.__file__).parent
    calls = re.compile(r"pickle\.load\(|Unpickler\(|read_pickle|torch\.load\(|allow_pickle=True|joblib\.load|shelve\.")
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in root.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if calls.search(line) and "S301" not in line and "weights_only=True" not in line
    ]
    assert found == []


# ---- limits ----------------------------------------------------------------------------------------------------------


def over(name: str, value: int, monkeypatch: pytest.MonkeyPatch, read: Any) -> str:
    """The error of a read under a limit."""
    monkeypatch.setenv(variable(name), str(value))
    with pytest.raises((cedar.SourceError, cedar.RowError)) as caught:
        read()
    text = str(caught.value)
    assert name in text
    assert f"{variable(name)}=" in text
    return text


@pytest.mark.parametrize("codec", ["gz", "bz2", "xz", "zst"])
@pytest.mark.parametrize("reader", ["text", "jsonl", "csv"])
def test_a_file_that_decompresses_too_well(codec: str, reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cedar.core.limits._JUDGED", 1 << 18)
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
    monkeypatch.setattr("cedar.core.limits._JUDGED", 1 << 20)
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
    member = tarfile.TarInfo("a.bin")
    member.size = 1 << 40
    (tmp_path / "t.tar").write_bytes(member.tobuf() + bytes(1024))
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
