"""Options that users know from other loaders: an error says what they are called here."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from cedar.core.errors import PipelineError, nearest, user_site

F = TypeVar("F", bound=Callable[..., Any])
_OTHERS = {  # of torch's DataLoader, tf.data and Ray Data
    "num_workers": "workers=", "num_parallel_calls": "workers=", "concurrency": "workers=",
    "batch_size": ".batch(n) before .loader()", "drop_last": '.batch(n, last="drop")',
    "shuffle": ".shuffle() before .batch()",
    "sampler": ".shuffle() or .sample() before .batch()", "collate_fn": ".map_batches(fn), or format=",
    "pin_memory": 'device="cuda"', "generator": "seed=", "multiprocessing_context": 'executor="processes"',
    "worker_init_fn": "a class given to .map(), of which each worker makes an instance",
    "prefetch_factor": "nothing: how much is read ahead follows the memory",
    "persistent_workers": "nothing: workers stay until the loader is closed",
}  # fmt: skip


def named(method: F) -> F:
    """Let a method say what an option that it does not have is called here.

    Raises:
        PipelineError: from the method, for a keyword that it does not know.
    """
    known = list(inspect.signature(method).parameters)[1:]

    @functools.wraps(method)
    def called(self: Any, *args: Any, **options: Any) -> Any:
        for name in options:
            if name not in known:
                here = (
                    f"here that is {_OTHERS[name]}" if name in _OTHERS else f"did you mean {nearest(name, known)[0]}=?"
                )
                raise PipelineError(f"{method.__name__}() has no option {name!r}", site=user_site(), fix=here)
        return method(self, *args, **options)

    return cast("F", called)
