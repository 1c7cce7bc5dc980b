"""Checks that compare the outputs of runs bit by bit: ``assert_deterministic`` and ``assert_resumable``."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import cycle, islice
from typing import Any
from unittest import mock

import numpy as np

import cedar
from cedar.core.block import Block
from cedar.core.errors import user_site
from cedar.engine.nodes import deal_mode
from cedar.engine.streams import stage
from cedar.tasks import reading

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
        with around, pipeline.loader(**(how | options)) as loader:
            got = collect(loader, batches)
        difference = first_difference(expected, got, unit)
        if difference is not None:
            hint = (
                "a function keeps state, reads the clock, or draws: draw from map(..., random=True), and keep no state"
            )
            if "blocks" in name:
                hint = "a row's result depends on other rows: give map_batches size=, or work on each row alone"
            raise AssertionError(f"{name} differs from the first: {difference}\n  {hint}\n  checked at {site}")


def _name(executor: Any) -> str:
    return repr(executor) if isinstance(executor, str) else type(executor).__name__


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


def collect(loader: cedar.Loader, most: int | None = None) -> list[Any]:
    """Return the batches or rows that a loader delivers in one epoch, or the first ``most`` of them."""
    return [] if most == 0 else list(islice(loader, most))


def plain(value: Any) -> Any:
    """Convert a value to one that compares equal only if type, shape and bytes are equal.

    Examples:
        >>> import numpy as np
        >>> plain(np.array([np.nan])) == plain(np.array([np.nan]))
        True
        >>> plain(np.array([1])) == plain(np.array([1.0]))
        False
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        body = tuple(map(plain, value.ravel().tolist())) if value.dtype == object else value.tobytes()
        return (str(value.dtype), value.shape, body)
    if isinstance(value, dict):
        return tuple((name, plain(inner)) for name, inner in value.items())
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, tuple(map(plain, value)))
    parts = _parts(value)
    if parts is not None:
        return (type(value).__name__, plain(parts))
    if getattr(type(value), "__eq__", None) is object.__eq__:  # compares by identity, which differs between runs
        return type(value).__name__
    return (type(value).__name__, repr(value))


def _parts(value: Any) -> dict[str, Any] | None:
    """Return the parts of a jagged column or an Arrow array; None for other values."""
    if hasattr(value, "to_list") and hasattr(value, "offsets"):
        return {"values": value.values, "offsets": value.offsets}
    if hasattr(value, "inverse_lookup"):
        return {"keys": value.keys, "values": value.values, "offsets": value.offsets, "inverse": value.inverse_lookup}
    if hasattr(value, "to_pylist"):
        return {"type": str(value.type), "values": value.to_pylist()}
    return None


def first_difference(expected: Sequence[Any], got: Iterable[Any], unit: str = "batch") -> str | None:
    """Describe the first difference between two runs: a batch, column and row, or the counts; None if they are equal.

    Examples:
        >>> first_difference([{"x": np.array([1, 2])}], [{"x": np.array([1, 3])}])
        "batch 0, column 'x', row 1: 3, not 2"
    """
    number = 0
    for number, value in enumerate(got, 1):
        if number > len(expected):
            return f"{unit} {number - 1}: unexpected; expected {len(expected)} in all"
        difference = _difference(expected[number - 1], value)
        if difference is not None:
            return f"{unit} {number - 1}, {difference}"
    if number < len(expected):
        return f"{unit} {number}: missing; expected {len(expected)} in all"
    return None


def _difference(expected: Any, got: Any) -> str | None:
    if plain(expected) == plain(got):
        return None
    if not isinstance(expected, dict) or not isinstance(got, dict):
        return _column_difference(expected, got)
    if list(expected) != list(got):
        return f"columns {list(got)}, not {list(expected)}"
    for name in expected:
        difference = _column_difference(expected[name], got[name])
        if difference is not None:
            return f"column {name!r}{difference}"
    return "the columns have another type"


def _column_difference(expected: Any, got: Any) -> str | None:
    if plain(expected) == plain(got):
        return None
    mine, other = rows_of(expected), rows_of(got)
    if mine is None or other is None:
        return f": {_short_repr(got)}, not {_short_repr(expected)}"
    if len(mine) != len(other):
        return f": {len(other)} rows, not {len(mine)}"
    for row, (a, b) in enumerate(zip(mine, other, strict=True)):
        if plain(a) != plain(b):
            return f", row {row}: {_short_repr(b)}, not {_short_repr(a)}"
    kinds = [getattr(one, "dtype", type(one).__name__) for one in (got, expected)]
    return f": of type {kinds[0]}, not {kinds[1]}"


def rows_of(value: Any) -> list[Any] | None:
    """Return the rows of a column as a list; None if it cannot be split into rows."""
    for name in ("to_list", "to_pylist", "tolist"):
        if hasattr(value, name):
            rows = getattr(value, name)()
            return rows if isinstance(rows, list) else None
    return value if isinstance(value, list) else None


def _short_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def assert_resumable(
    pipeline: cedar.Pipeline,
    *,
    stops: int | Sequence[int] = 4,
    executors: Sequence[Any] = ("inline", "threads", "processes"),
    workers: int = 2,
    worlds: Sequence[int] = (1, 2, 3),
    batches: int | None = None,
    **options: Any,
) -> None:
    """Repeatedly stop a pipeline, save its state as JSON, and resume it in another loader on another executor.

    Then stop all ranks of a job and resume it on another number of ranks. Every batch must be delivered exactly once;
    with ``last=None``, every row, since the batches at the end of an epoch depend on the number of ranks.

    Args:
        pipeline: the pipeline to check.
        stops: numbers of batches after which to stop, or the number of random stops in addition to the start and end.
        executors: values of ``loader(executor=)``, used alternately.
        workers: number of workers, for executors that have workers.
        worlds: numbers of ranks to use one after another. With fewer than two, the check with ranks is skipped.
        batches: check only this many batches, for long or endless pipelines. The check with ranks is then skipped.
        options: further arguments of ``loader``, such as ``seed`` and ``epoch``.

    Raises:
        AssertionError: deliveries were lost, repeated or reordered. The message describes the difference.

    Examples:
        >>> import cedar, cedar.testing
        >>> numbers = cedar.from_items([{"x": i} for i in range(50)]).shuffle(seed=1).batch(4, last="keep")
        >>> cedar.testing.assert_resumable(numbers, executors=["inline", "threads"])
    """
    where = f"\n  checked at {user_site()}"
    ways = [{"workers": workers} | options | {"executor": one} for one in executors]
    with pipeline.loader(**({"executor": "inline", "plan": "off"} | options)) as loader:
        whole = collect(loader, batches)
    draw = random.Random(len(whole))
    if isinstance(stops, int):
        stops = [0, *sorted(draw.randint(0, len(whole)) for _ in range(stops)), len(whole)]
    _check_stops(pipeline, sorted(stops), ways, whole, where, batches)
    if batches is None and len(worlds) > 1:
        _check_worlds(pipeline, worlds, ways, whole, where, draw)


def _check_stops(
    pipeline: cedar.Pipeline, stops: Sequence[int], ways: Sequence[dict[str, Any]], whole: list[Any], where: str,
    batches: int | None,
) -> None:  # fmt: skip
    got: list[Any] = []
    state: Any = None
    reported, epoch = "from the beginning", ways[0].get("epoch", 0)
    for stop, options in zip([*stops, None], cycle(ways), strict=False):
        with pipeline.loader(**options) as loader:
            if state is not None:
                loader.load_state_dict(state)
            most = batches if stop is None else stop
            got += _collect_rest(loader, epoch, None if most is None else max(0, most - len(got)))
            state = json.loads(json.dumps(loader.state_dict()))
        difference = first_difference(whole[: len(got)] if stop is not None else whole, got)
        if difference is not None:
            raise AssertionError(
                f"run {reported} on {_name(options['executor'])}, it differs from one run: {difference}{where}"
            )
        reported = f"on from delivery {len(got)}"


def _check_worlds(
    pipeline: cedar.Pipeline, worlds: Sequence[int], ways: Sequence[dict[str, Any]], whole: list[Any], where: str,
    draw: random.Random,
) -> None:  # fmt: skip
    parts: list[Any] = []
    states: list[Any] = []
    last: str | None = "keep"
    epoch = ways[0].get("epoch", 0)
    turns = cycle(ways)
    for number, world in enumerate(worlds):
        stop = None if number == len(worlds) - 1 else draw.randint(0, 1 + len(whole) // (world * len(worlds)))
        after = []
        for rank in range(world):
            with pipeline.loader(**(next(turns) | {"rank": rank, "world": world})) as loader:
                last = deal_mode(pipeline.node)
                if states:
                    loader.load_state_dict(states)
                parts += _collect_rest(loader, epoch, stop)
                after.append(json.loads(json.dumps(loader.state_dict())))
        states = after
    reported = f"with {', then '.join(map(str, worlds))} rank(s)"
    expected, got = (_count(each if last else _rows(each)) for each in (whole, parts))
    repeated, lost = got - expected, expected - got
    if repeated:
        raise AssertionError(
            f"{reported}: {repeated.total()} of {got.total()} deliveries were repeated or differ{where}"
        )
    if lost.total() > (worlds[-1] - 1 if last in (None, "drop") else 0):
        raise AssertionError(f"{reported}: {lost.total()} of {expected.total()} deliveries are missing{where}")


def _rows(deliveries: Sequence[Any]) -> list[Any]:
    """Return the rows of batches, from the columns that can be split into rows."""
    return [
        dict(enumerate(row))
        for one in deliveries
        for row in zip(*filter(None, map(rows_of, one.values())), strict=True)
    ]


def _collect_rest(loader: cedar.Loader, epoch: int, most: int | None) -> list[Any]:
    """Return the rest of an epoch, or at most ``most`` batches of it; [] if the state is already at the next epoch."""
    if loader.epoch > epoch:
        return []
    loader.set_epoch(epoch)  # without this, a loader with nothing left would deliver the next epoch
    return collect(loader, most)


def _count(deliveries: Sequence[Any]) -> Counter[Any]:
    """Count equal batches, except batches that are only padding."""
    return Counter(plain(one) for one in deliveries if "valid" not in one or np.any(np.asarray(one["valid"])))
