"""assert_deterministic: check that a pipeline gives the same rows in the same order, however it is run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest import mock

import cedar
from cedar.core.block import Block
from cedar.core.errors import user_site
from cedar.engine.streams import stage
from cedar.tasks import reading
from cedar.testing.compare import collect, first_difference

_BLOCKS = (1, 7)


def assert_deterministic(
    pipeline: cedar.Pipeline,
    *,
    executors: Sequence[Any] = ("inline", "threads", "processes"),
    workers: int = 2,
    batches: int | None = None,
    **options: Any,
) -> None:
    """Run a pipeline in several ways, and compare the outputs bit by bit.

    The pipeline runs twice in this thread, then with blocks of 7 rows and of 1 row, and then on each executor.

    Args:
        pipeline: the pipeline to check.
        executors: values of ``loader(executor=)``.
        workers: number of workers, for executors that have workers.
        batches: compare only this many batches, for long or endless pipelines.
        options: further arguments of ``loader``, such as ``seed`` and ``epoch``.

    Raises:
        AssertionError: two outputs differ. The message names the first batch, column and row that differ.

    Examples:
        >>> import cedar, cedar.testing
        >>> numbers = cedar.from_items([{"x": i} for i in range(20)]).shuffle(seed=1)
        >>> cedar.testing.assert_deterministic(numbers.batch(4), executors=["threads"])
        >>> seen = []
        >>> counted = numbers.map(lambda x: seen.append(x) or len(seen), "x", dtype=int)
        >>> cedar.testing.assert_deterministic(counted.batch(4), executors=["threads"])
        Traceback (most recent call last):
        ...
        AssertionError: a second run differs from the first: batch 0, column 'x', row 0: 21, not 1
        ...
    """
    site = user_site()
    with pipeline.loader(**({"executor": "inline", "plan": "off"} | options)) as loader:
        expected = collect(loader, batches)
        unit = "batch" if pipeline.node.batched else "row"
    ways: list[tuple[str, AbstractContextManager[None], dict[str, Any]]] = [
        ("a second run", nullcontext(), {"executor": "inline", "plan": "off"}),
        *((f"a run in blocks of {rows} row(s)", blocks_of(rows), {"executor": "inline"}) for rows in reversed(_BLOCKS)),
        *((f"executor={_name(one)}", nullcontext(), {"executor": one, "workers": workers}) for one in executors),
    ]
    for name, around, how in ways:
        with around:
            got = _run(pipeline, batches, how | options)
        difference = first_difference(expected, got, unit)
        if difference is not None:
            raise AssertionError(f"{name} differs from the first: {difference}\n{_hint(name)}\n  checked at {site}")


def _run(pipeline: cedar.Pipeline, batches: int | None, options: dict[str, Any]) -> list[Any]:
    with pipeline.loader(**options) as loader:
        return collect(loader, batches)


def _name(executor: Any) -> str:
    return repr(executor) if isinstance(executor, str) else type(executor).__name__


def _hint(name: str) -> str:
    if "blocks" in name:
        return "  a row's result depends on other rows: give map_batches size=, or work on each row alone"
    return "  a function keeps state, reads the clock, or draws: draw from map(..., random=True), and keep no state"


@contextmanager
def blocks_of(rows: int) -> Iterator[None]:
    """Limit blocks to ``rows`` rows for all runs in this process. Do not use this in several threads at a time."""
    read = reading.Reader.blocks

    def cut(self: reading.Reader, split: Any, lap: int) -> Iterator[Block]:
        for block in read(self, split, lap):
            for start in range(0, max(block.slots, 1), rows):
                yield block.slice(start, min(start + rows, block.slots))

    with (
        mock.patch.object(reading.Reader, "blocks", cut),
        mock.patch.object(stage, "_MOST_ROWS", rows),
        mock.patch.object(stage, "_FIRST_ROWS", rows),
        mock.patch.object(stage, "_FEW_ROWS", rows),
    ):
        yield
