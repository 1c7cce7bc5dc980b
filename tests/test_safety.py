"""What a run prints and writes: no credentials, and no pickles."""

from __future__ import annotations

import io
import json
import logging
import pickletools
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import fsspec
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import cedar
import cedar.operators.audio
import cedar.operators.image
from cedar.executors.worker.main import TaskFailed
from cedar.testing.storage import FlakyFileSystem
from tests.core.toy_secrets import PASSWORD, TOKEN
from tests.toy_http_store import Store

SECRETS = (PASSWORD, TOKEN)


def parquet(table: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=50)
    return sink.getvalue()


# ---- credentials -----------------------------------------------------------------------------------------------------


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
    if name == "row":  # the cause is the user's own error, which is left unchanged
        assert_no_secret([str(caught), repr(caught)])
        return
    printed = "".join(traceback.format_exception(caught))
    traveled = cloudpickle.loads(cloudpickle.dumps(TaskFailed(caught))).error
    assert_no_secret([str(caught), repr(caught), printed, "".join(traceback.format_exception(traveled))])


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
