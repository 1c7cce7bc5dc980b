"""A loader within the workers of a torch DataLoader: each of them would read every row."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from typing import Any

import pytest

import cedar

torch: Any = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def soon_over(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Workers that could not start their dataset are waited for this long, each, when the iterator is collected."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)
    yield
    gc.collect()


def batches(**options: Any) -> Iterator[Any]:
    loader = cedar.from_items([{"x": i} for i in range(300)]).batch(4, last="keep").loader(format="torch", **options)
    return iter(loader)


def own_part() -> Iterator[Any]:
    worker = torch.utils.data.get_worker_info()
    return batches(rank=worker.id, world=worker.num_workers, subgroup=True)


class Batches(torch.utils.data.IterableDataset):  # type: ignore[misc]
    def __init__(self, make: Any) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return self.make()  # type: ignore[no-any-return]


def rows(make: Any, workers: int) -> list[int]:
    loader = torch.utils.data.DataLoader(
        Batches(make), batch_size=None, num_workers=workers, timeout=60 * bool(workers)
    )
    return sorted(x for batch in loader for x in batch["x"].tolist())


def test_several_workers_are_refused() -> None:
    with pytest.raises(cedar.PipelineError, match="iterate the loader itself"):
        rows(batches, 2)


def test_a_loader_that_they_inherit_is_refused() -> None:
    loader = cedar.from_items([{"x": i} for i in range(300)]).batch(4).loader(format="torch")
    with pytest.raises(cedar.PipelineError, match="worker 0 of 2"):
        rows(functools.partial(iter, loader), 2)


@pytest.mark.parametrize(("make", "workers"), [(batches, 0), (own_part, 2)])
def test_each_row_comes_once(make: Any, workers: int) -> None:
    assert rows(make, workers) == list(range(300))


@pytest.mark.parametrize("options", [{}, {"batch_size": None}, {"shuffle": True}, {"sampler": [0]}])
def test_a_dataloader_around_a_loader_or_a_pipeline_says_what_to_do(options: dict[str, Any]) -> None:
    p = cedar.from_items([{"x": i} for i in range(8)])
    for around in (p, p.batch(2), p.batch(2).loader(executor="inline")):
        with pytest.raises(cedar.PipelineError, match="in place of a DataLoader") as caught:
            next(iter(torch.utils.data.DataLoader(around, **options)))
        assert str(caught.value.site).startswith(__file__)
