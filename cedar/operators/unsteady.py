"""Detects functions that draw from a global random generator, so that runs cannot be reproduced."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from cedar.core.packages import loaded
from cedar.operators.row_wise import same_value

ROWS = 8  # the number of rows on which a function is called again, to compare results
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
    torch = loaded("torch")
    before = random.getstate(), np.random.get_state(), torch and torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(before[2])


def calls_differ(fn: Callable[..., Any], *args: Any, **named: Any) -> bool:
    """Whether two calls return different values."""
    first = fn(*copy.deepcopy(args), **copy.deepcopy(named))  # copies, as fn may modify its arguments
    return not same_value(first, fn(*args, **named))
