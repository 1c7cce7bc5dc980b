"""What every source over files has in common: one listing, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import cedar
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
