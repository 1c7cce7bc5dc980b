"""The suite of the executors on a Dask cluster of this machine: fewer pipelines, one for each kind of work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cedar
from cedar.cluster import dask
from tests.conformance.sources import PIPELINES
from tests.conformance.test_executors import SEED, counted, folder, reference, run
from tests.toy_runs import saved

pytestmark = [pytest.mark.heavy, pytest.mark.waits]

assert folder  # a fixture
WORKERS = 2
CASES = pytest.mark.parametrize(
    "name",
    "parquet text_gz_streams iterable map_random map_async_class skip_and_refill pack_best mix shuffle_by_group "
    "batches_drop map_on_whole_batches cache_in_memory".split(),
)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    yield
    dask.close()


def loader(name: str, folder: Path, **options: Any) -> cedar.Loader:
    return PIPELINES[name](folder).loader(executor="dask", seed=SEED, workers=WORKERS, **options)


@CASES
def test_gives_the_same_rows_in_the_same_order(name: str, folder: Path, conformance: Any) -> None:
    assert run(loader(name, folder)) == reference(name, folder)


@CASES
def test_resumes_from_the_middle_with_another_executor(name: str, folder: Path, conformance: Any) -> None:
    expected = reference(name, folder)
    stopped = loader(name, folder)
    head = run(stopped, len(expected) // 2)
    resumed = PIPELINES[name](folder).loader(executor="threads", seed=SEED)
    resumed.load_state_dict(saved(stopped))
    assert head + run(resumed) == expected


@CASES
def test_two_ranks_share_the_epoch(name: str, folder: Path, conformance: Any) -> None:
    expected = counted(reference(name, folder))
    ranks = [loader(name, folder, world=2, rank=rank, deal="global") for rank in range(2)]
    got = counted([value for each in ranks for value in run(each)])
    assert not got - expected
    assert (expected - got).total() == (expected.total() % 2 if name == "batches_drop" else 0)
