"""assert_resumable: check that a pipeline that is stopped and resumed gives the same output as one run."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np

import cedar
from cedar.core.errors import user_site
from cedar.engine.nodes import deal_mode
from cedar.testing.compare import collect, first_difference, plain, rows_of


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
            raise AssertionError(f"run {reported} on {_name(options)}, it differs from one run: {difference}{where}")
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


def _name(options: dict[str, Any]) -> str:
    executor = options["executor"]
    return repr(executor) if isinstance(executor, str) else type(executor).__name__
