"""Two stores with the same URLs, distinguished by storage_options=, whose secrets are shown nowhere."""

from __future__ import annotations

import io
import json
import os
import tarfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col
from cedar.core.printable import StorageOptions
from cedar.datasets.manifest import write_manifest
from cedar.datasets.parquet import read_parquet
from tests.datasets.vault import options

KEYS = ("key-of-one", "key-of-two")


def _tar(path: Path, text: str) -> None:
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo(f"{text}.txt")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text.encode()))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two stores whose files have the same names, sizes and times."""
    for number, key in enumerate(KEYS, 1):
        store = tmp_path / key / "d"
        store.mkdir(parents=True)
        table = pa.table({"x": [number] * 10, "y": range(10)})
        pq.write_table(table, store / "a.parquet")
        pyarrow.feather.write_feather(table, str(store / "a.feather"))
        (store / "a.csv").write_text(f"x\n{number}\n")
        (store / "a.jsonl").write_text(json.dumps({"x": number}))
        (store / "a.txt").write_text(str(number))
        _tar(store / "a.tar", str(number))
        for file in store.iterdir():
            os.utime(file, (0, 0))
    return tmp_path


READERS: dict[str, Callable[..., Any]] = {
    "parquet": lambda **stored: cedar.read_parquet("vault://d/*.parquet", **stored).select("x"),
    "arrow": lambda **stored: cedar.read_arrow("vault://d/a.feather", columns=["x"], **stored),
    "csv": lambda **stored: cedar.read_csv("vault://d/a.csv", **stored),
    "jsonl": lambda **stored: cedar.read_jsonl("vault://d/a.jsonl", **stored),
    "text": lambda **stored: cedar.read_text("vault://d/a.txt", **stored).select(x=col("text").cast(int)),
    "files": lambda **stored: cedar.read_files("vault://d/a.txt", **stored).map(int, "bytes", into="x").select("x"),
    "tar": lambda **stored: cedar.read_tar("vault://d/a.tar", **stored).select(x=col("key").cast(int)),
}


@pytest.mark.parametrize("reader", READERS)
def test_each_store_gives_its_own_rows(place: Path, reader: str):
    one, two = (READERS[reader](storage_options=options(place, key)) for key in KEYS)
    found = [row["x"] for row in cedar.concat(one, two)]
    assert found == [1] * (len(found) // 2) + [2] * (len(found) // 2)


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_options_reach_workers_and_secrets_are_hidden_there(
    place: Path, executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEDAR_STORAGE_ATTEMPTS", "2")  # pauses between more of them take half a minute
    p = cedar.read_parquet("vault://d/a.parquet", storage_options=options(place, KEYS[1])).map(abs, "x")
    with p.batch(5).loader(executor=executor, workers=1) as loader:
        assert [batch["x"].tolist() for batch in loader] == [[2] * 5] * 2
    with (
        pytest.raises(cedar.SourceError) as error,
        READERS["csv"](storage_options=options(place, KEYS[0])).loader(executor=executor, workers=1) as loader,
    ):
        os.truncate(place / KEYS[0] / "d/a.csv", 1)
        list(loader)
    assert not shown(error.value)


def shown(error: BaseException) -> bool:
    return any(f"secret of {key}" in "".join(traceback.format_exception(error)) for key in (*KEYS, "nobody"))


def test_caches_and_kept_counts_are_those_of_one_store(place: Path, tmp_path: Path):
    for _ in range(2):
        for number, key in enumerate(KEYS, 1):
            p = cedar.read_parquet("vault://d/a.parquet", storage_options=options(place, key))
            cached = p.map(lambda x: x * 10, "x").cache(str(tmp_path / "cache"))
            assert {row["x"] for row in cached} == {number * 10}
            loader = p.filter((col("x") == 1) & (col("y") >= 0)).loader(counts="exact")
            assert len(loader) == len(list(loader)) == (10 if number == 1 else 0)
    stored = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert not any(secret in stored for secret in (b"secret of", b"key-of"))


def test_what_tells_a_store_is_not_what_is_renewed(place: Path):
    given = options(place, KEYS[0])
    marks = [
        StorageOptions({**given, **more}).mark
        for more in ({}, {"secret": "new"}, {"key": "key-of-three"}, {"anon": True})
    ]
    assert marks[0] == marks[1]
    assert len(set(marks)) == 3
    one, two = (read_parquet("vault://d/a.parquet") for _ in KEYS)
    assert one == two


@pytest.mark.parametrize("url", ["vault://out", "vault://out.parquet"])
def test_writers_write_to_their_store(place: Path, url: str):
    for number, key in enumerate(KEYS, 1):
        stored = options(place, key)
        rows = cedar.from_items([{"x": number, "k": i} for i in range(4)])
        assert rows.write_parquet(url, storage_options=stored)
        assert {row["x"] for row in cedar.read_parquet(url, storage_options=stored)} == {number}
    folders = rows.write("vault://folders", partition_by="k", format="parquet", storage_options=stored)
    assert len(folders.files) == 4
    assert rows.write("vault://folders", partition_by="k", storage_options=stored).resumed == 4
    assert cedar.read_parquet("vault://folders", storage_options=stored).filter(col("k") == 1).count() == 1
    assert not (place / KEYS[0] / "folders").exists()


def test_a_manifest_is_made_and_read_with_them(place: Path):
    stored = options(place, KEYS[1])
    for _ in range(2):
        p = cedar.read_parquet("vault://d/*.parquet", manifest="vault://d/of.manifest", storage_options=stored)
        assert {row["x"] for row in p} == {2}
        assert p.filter(col("x") == 2).batch(2).loader(counts="exact").state_dict()
    assert write_manifest("vault://d/*.parquet", "vault://d/of.manifest", storage_options=stored).read == 0


def test_secrets_are_shown_nowhere(place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    p = cedar.read_parquet("vault://d/a.parquet", storage_options=options(place, KEYS[0])).map(abs, "x").batch(2)
    loader = p.loader()
    next(iter(loader))
    p.optimize().save(tmp_path / "plan.json")
    texts = [
        repr(p),
        repr(p.node),
        p.explain(),
        loader.explain(),
        json.dumps(loader.state_dict()),
        str(loader.report()),
    ]
    texts += [(tmp_path / "plan.json").read_text(), repr(StorageOptions(options(place, KEYS[0]))), caplog.text]
    assert not any("secret of" in text or "key-of" in text.replace(str(place / KEYS[0]), "") for text in texts)


@pytest.mark.parametrize(
    "fail",
    [
        lambda stored: cedar.read_csv(
            "vault://d/a.csv", storage_options=stored | {"secret": f"secret of {'nobody'}"}
        ).count(),
        lambda stored: cedar.read_csv("vault://forbidden", storage_options=stored).count(),
        lambda stored: cedar.from_items([{"x": 1}]).write("vault://o/forbidden", storage_options=stored),
    ],
)
def test_errors_show_no_secret(place: Path, fail: Callable[[dict[str, str]], Any]):
    with pytest.raises(cedar.SourceError, match=r"\*\*\*|permission") as error:
        fail(options(place, KEYS[0]))
    assert not shown(error.value)


@pytest.mark.parametrize("given", ["key=a", [("key", "a")], {1: "a"}])
def test_options_are_a_dict_with_names(given: Any):
    with pytest.raises(cedar.PipelineError, match="storage_options= takes a dict") as error:
        cedar.read_parquet("vault://d/a.parquet", storage_options=given)
    assert error.value.site is not None
    with pytest.raises(cedar.PipelineError, match="storage_options= takes a dict"):
        cedar.from_items([{"x": 1}]).write("vault://out", storage_options=given)
