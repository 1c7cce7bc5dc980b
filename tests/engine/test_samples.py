"""Sample rows that functions are called with before a run are not the run's: they may be changed in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cedar
from cedar import col


def brighten(image: Any) -> Any:
    image += 1
    return image


@pytest.mark.parametrize("plan", ["auto", "off"])
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_arrays_of_differing_sizes_are_changed_once(plan: Any, executor: str) -> None:
    rows = [{"image": np.zeros((2, 2 + i % 3, 1), np.uint8)} for i in range(100)]
    loader = cedar.from_items(rows).map(brighten, "image").batch(50).loader(plan=plan, executor=executor)
    assert [set(image.ravel()) for batch in loader for image in batch["image"]] == [{1}] * 100


@pytest.mark.parametrize("plan", ["auto", "off"])
def test_containers_are_changed_once(plan: Any) -> None:
    def grow(tags: Any) -> int:
        tags["all"].append(1)
        return len(tags["all"])

    rows = [{"tags": {"all": [i] * (i + 1), i: object()}} for i in range(4)]
    loader = cedar.from_items(rows).map(grow, "tags", into="count").batch(2).loader(plan=plan, executor="inline")
    assert [batch["count"].tolist() for batch in loader] == [[2, 3], [4, 5]]


def test_functions_of_processes_run_once_on_samples(tmp_path: Any) -> None:
    def noted(x: int) -> int:
        with open(tmp_path / "calls", "a") as file:
            file.write(".")
        return x

    pipeline = cedar.from_items([{"x": i} for i in range(20)]).map(noted, "x").map(abs, "x").batch(5)
    with pipeline.loader(executor="processes", plan="off") as loader:
        assert len(list(loader)) == 4
    assert (tmp_path / "calls").stat().st_size == 40, "once for the types, once in the run"


def test_filters_by_float16_are_pushed_into_the_scan(tmp_path: Any) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"h": pa.array(np.arange(70) % 7, pa.float16()), "id": range(70)}), path)
    with cedar.read_parquet(path).with_columns(z=col("id") * 2).filter(col("h") > 5).loader() as loader:
        assert len(list(loader)) == 10
        assert '{where col("h") > 5}' in str(loader.explain())
