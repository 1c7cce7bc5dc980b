"""What every source over files has in common: one listing, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import cedar
from cedar import col
from cedar.datasets.parquet import read_parquet
from cedar.testing.storage import FlakyFileSystem, flaky
from tests.datasets.failing_storage import parquet


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_job_lists_its_storage_once(executor: str, tmp_path: Path):
    for i in range(3):
        (tmp_path / f"{i}.parquet").write_bytes(parquet(100 * i, 100 * (i + 1)))
    FlakyFileSystem.clear_instance_cache()
    url = flaky(tmp_path / "*.parquet", log=tmp_path / "log")
    p = cedar.read_parquet(url).shuffle(seed=1).batch(50)
    seen = []
    for rank in range(2):  # ranks of one process share the pipeline's listing
        with p.loader(executor=executor, workers=2, rank=rank, world=2) as loader:
            for _ in range(2):
                seen += [x for batch in loader for x in batch["x"].tolist()]
    assert sorted(seen) == sorted([*range(300), *range(300)])
    asked = [line.split()[1:3] for line in (tmp_path / "log").read_text().splitlines()]
    assert sum(operation == "list" for operation, _ in asked) == 1


def test_describe_hides_credentials():
    source = read_parquet(["s3://key:secret@bucket/a.parquet", "b.parquet"])
    assert source.describe() == "read_parquet(s3://***@bucket/a.parquet, +1)"
    assert "secret" not in repr(source)


@pytest.mark.parametrize("reader", ["read_csv", "read_jsonl"])
def test_a_column_that_is_not_parsed_keeps_its_type_where_pipelines_meet(reader: str, tmp_path: Path):
    rows = cedar.from_items([{"x": i, "f": i / 8, "name": str(i)} for i in range(20)])
    rows.write_parquet(str(tmp_path / "parquet"))
    lines = {"read_csv": "x,f,name\n7,0.5,seven\n", "read_jsonl": '{"x": 7, "f": 0.5, "name": "seven"}\n'}
    (tmp_path / "lines").write_text(lines[reader])
    stored, parsed = cedar.read_parquet(str(tmp_path / "parquet")), getattr(cedar, reader)(str(tmp_path / "lines"))
    derived = parsed.with_columns(x=col("f").floor().cast(int), f=col("x") / 2)
    for plan in ("off", "auto"):
        for other in (parsed, derived):
            for each in (cedar.concat(stored, other), cedar.mix([(other, 0.5), (stored, 0.5)], stop="all")):
                with each.select("name").batch(30).loader(plan=plan, executor="inline") as loader:
                    (batch,) = loader
                assert sorted(batch["name"]) == sorted([*map(str, range(20)), "seven"])
