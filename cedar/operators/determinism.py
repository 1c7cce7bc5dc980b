"""Tests of users' functions on sample rows: are they deterministic, and does a row's result depend only on that row?"""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from cedar.core.block import Block
from cedar.core.columns import Column, take
from cedar.core.packages import loaded


def find_row_dependence(
    run: Callable[[Block], Mapping[str, Column]], block: Block, whole: Mapping[str, Column]
) -> tuple[str, str] | None:
    """Return the reason why ``run`` is not row-wise, and a fix; None if the test passes on the sample.

    Args:
        run: a function from a block to the columns of its result.
        block: the sample.
        whole: the result of ``run`` for the whole sample.
    """
    from cedar.core.compare import column_difference

    rows, slots = len(block), block.live_slots()
    if rows < 2:
        return None
    for symptom, parts in (
        ("cut in two, the rows give another result", (np.arange(rows // 2), np.arange(rows // 2, rows))),
        ("the first row alone gives another result", (np.arange(1),)),
        ("in another order, the rows give another result", (np.arange(rows)[::-1],)),
    ):
        for part in parts:
            columns = run(block.take(slots[part]))
            for name, column in whole.items():
                if column_difference(take(column, part), columns[name]) is None:
                    continue
                again = run(block)
                if any(column_difference(each, again[other]) for other, each in whole.items()):
                    return (
                        "called again, it gives another result for the same rows",
                        "draw from map(..., random=True), and keep no state between calls",
                    )
                problem = f"{symptom} (column {name!r})"
                return (
                    f"its result depends on other rows of the block: {problem}, so the size of a block would show",
                    "give size=, the number of rows that the function sees at a time, or work on each row alone",
                )
    return None


ROWS = 32  # maximum number of rows on which a function is called twice more, until two results differ
TEXT = (
    "{} is not deterministic: it draws from a global random generator, and called again on the first rows it returned "
    "different results. Runs and resumes will differ. Pass random=True, and draw from the generator that the function "
    "then receives as rng=; help(cedar.Pipeline.map) describes both"
)


class GeneratorChanged(list[Any]):
    """A list of results of calls that changed the state of a global random generator."""


def generator_states() -> bytes:
    """Return the states of this process's global random generators."""
    torch = loaded("torch")
    bits = None if torch is None else torch.get_rng_state().numpy()
    return pickle.dumps((random.getstate(), np.random.get_state(), bits))  # noqa: NPY002


@contextmanager
def preserve_generators() -> Iterator[None]:
    """Restore the states of the global generators after the ``with`` block."""
    python, numpys, torch = random.getstate(), np.random.get_state(), loaded("torch")  # noqa: NPY002
    torchs = None if torch is None else torch.get_rng_state()
    devices = torch.cuda.get_rng_state_all() if torch is not None and torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpys)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(torchs)
        if devices is not None:
            torch.cuda.set_rng_state_all(devices)


def calls_differ(fn: Callable[..., Any], *args: Any, **named: Any) -> bool:
    """Whether two calls return different values."""
    from cedar.core.compare import same_value

    first = fn(*copy.deepcopy(args), **copy.deepcopy(named))  # copies, as fn may modify its arguments
    return not same_value(first, fn(*args, **named))
