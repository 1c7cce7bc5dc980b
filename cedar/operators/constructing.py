"""Constructs instances of user classes, one at a time per process, with reproducible global random state."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from cedar.core import forks
from cedar.core.cursor import hash_ints
from cedar.core.numeric import NumericEnvironment, arrived
from cedar.core.packages import loaded

_constructor_lock = forks.Lock()  # a pipeline that runs inside a constructor uses no threads, which would wait for this
_thread = threading.local()


def constructed(make: Callable[[], Any], name: str, numeric: NumericEnvironment | None) -> Any:
    """Call ``make`` and return the instance.

    The global generators of random, NumPy and torch are seeded from the class name and restored afterwards. Instances
    are therefore the same in every thread and process, and the caller's own draws are not affected. If the constructor
    is the first to import torch and draws from its still unseeded generator, it is called again.

    Args:
        make: the constructor.
        name: the class name. The seed depends on nothing else, because caches do not know the run's seed.
        numeric: the numeric environment of the run.
    """
    with _constructor_lock, _mark_thread(), nullcontext() if numeric is None else numeric.entered():
        for last in (False, True):
            before = arrived()
            with _seeded_generators(name):
                instance = make()
                fresh = last or arrived() == before or _torch_unused()
            if fresh:
                return instance
            if numeric is not None:
                numeric.set()
    raise AssertionError


def constructing() -> bool:
    """Return whether this thread runs a constructor, which must not wait for another thread's constructor."""
    return getattr(_thread, "depth", 0) > 0


@contextmanager
def _mark_thread() -> Iterator[None]:
    _thread.depth = getattr(_thread, "depth", 0) + 1
    try:
        yield
    finally:
        _thread.depth -= 1


@contextmanager
def _seeded_generators(name: str) -> Iterator[None]:
    words = name.encode()
    seed = hash_ints(*(int.from_bytes(words[i : i + 8], "little") for i in range(0, len(words), 8)))
    python, numpys, torch = random.getstate(), np.random.get_state(), loaded("torch")  # noqa: NPY002 - users draw from it
    torchs = None if torch is None else torch.random.default_generator.get_state()
    devices = torch.cuda.get_rng_state_all() if torch is not None and torch.cuda.is_initialized() else None
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    if torch is not None:
        torch.random.default_generator.manual_seed(seed % 2**63)  # torch.manual_seed would also seed devices
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpys)  # noqa: NPY002
        if torch is not None:
            torch.random.default_generator.set_state(torchs)
        if devices is not None:
            torch.cuda.set_rng_state_all(devices)


def _torch_unused() -> bool:
    """Return True if torch is not imported or its generator is unused; otherwise reset the generator, return False."""
    torch = loaded("torch")
    if torch is None:
        return True
    fresh = torch.Generator().get_state()
    if torch.equal(torch.random.default_generator.get_state(), fresh):
        return True
    torch.random.default_generator.set_state(fresh)
    return False
