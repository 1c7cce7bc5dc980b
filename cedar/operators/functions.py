"""Users' functions: their kinds, and checks of the arguments that come with them.

Errors refer to the user's line and are raised before anything runs.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from cedar.core.errors import Skip, invalid_call


def unwrapped(fn: Any) -> Any:
    """Return the function, class or object inside ``functools.partial``."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def makes_instances(fn: Any) -> bool:
    """Return True for a class whose instances are callable, and for a partial with arguments of its constructor."""
    fn = unwrapped(fn)
    return isinstance(fn, type) and any("__call__" in vars(base) for base in fn.__mro__)


def is_async(fn: Any) -> bool:
    """Return True for ``async def`` functions, classes and objects with an async ``__call__``, and their partials."""
    fn = unwrapped(fn)
    asynchronous = inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn)
    if asynchronous or inspect.isroutine(fn):
        return asynchronous
    if isinstance(fn, type) and not makes_instances(fn):
        return False
    call = getattr(fn, "__call__", None)  # noqa: B004 - inspected, not tested for callability
    return inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call)


def fn_name(fn: Any) -> str:
    """Return the name of a function for labels."""
    fn = unwrapped(fn)
    return str(getattr(fn, "__name__", None) or type(fn).__name__)


def check_columns(label: str, columns: Any) -> None:
    """Raise PipelineError unless ``columns`` is a tuple of names."""
    if not isinstance(columns, tuple) or not all(isinstance(name, str) for name in columns):
        strange = next((c for c in columns if not isinstance(c, str)), columns) if columns else columns
        raise invalid_call(
            f"{label}: {strange!r} is not a column name", fix=f'give column names as strings: {label}(fn, "x")'
        )


def names_written(label: str, into: Any, *, default: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``into`` as a tuple of names, or ``default`` if it is None."""
    if into is None:
        return default
    names = (into,) if isinstance(into, str) else into
    if not isinstance(names, (tuple, list)) or not names or not all(isinstance(n, str) and n for n in names):
        raise invalid_call(f"{label}: into={into!r} names no column", fix="name the column for the result")
    if len(set(names)) < len(names):
        raise invalid_call(f"{label}: into={into!r} names a column twice", fix="name each once")
    return tuple(names)


def check_policy(label: str, on_error: Any, timeout: Any = None) -> None:
    """Raise PipelineError if ``on_error`` is not a Skip or ``timeout`` is not a number above 0."""
    if on_error is not None and not isinstance(on_error, Skip):
        raise invalid_call(f"{label}: on_error={on_error!r} is not a policy", fix="give on_error=cedar.Skip(...)")
    number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if timeout is not None and not (number and timeout > 0):
        raise invalid_call(f"{label}: timeout={timeout!r} is not a time limit", fix="give seconds per row, above 0")


def check_fn(label: str, fn: Any, arguments: int, *, random: bool = False) -> None:
    """Check, as far as the signature shows, that ``fn`` can be called with ``arguments`` values (and ``rng=``).

    Raises:
        PipelineError: ``fn`` cannot be called this way; the error names the user's line.
    """
    if not callable(fn):
        raise invalid_call(
            f"{label}: {type(fn).__name__} cannot be called", fix="give a function, or a class with __call__"
        )
    instances, named = makes_instances(fn), f"{label}({fn_name(fn)})"
    if instances and not _binds(fn, (), {}):
        raise invalid_call(
            f"{named}: workers cannot construct the class, because its __init__ needs more arguments",
            fix=f"give them: functools.partial({fn_name(fn)}, ...), or give its __init__ defaults",
        )
    target, own = (unwrapped(fn).__call__, (None,)) if instances else (fn, ())
    values = (*own, *(None,) * arguments)
    if random and not _binds(target, values, {"rng": None}) and _binds(target, values, {}):
        raise invalid_call(
            f"{label}({fn_name(fn)}, random=True): the function has no parameter rng after the row or its columns",
            fix=f"def {fn_name(fn)}(..., rng): draw from rng, a numpy.random.Generator keyed by the row",
        )
    if not random and not _binds(target, values, {}) and _binds(target, values, {"rng": None}):
        calls = {
            "map": "write map(fn, ...",
            "flat_map": "write flat_map(fn, ...",
            "batch: collate": "write batch(n, collate=fn",
        }
        fix = f"{calls.get(label, 'draw in map(fn, ...')}, random=True), which passes rng=, a numpy.random.Generator"
        raise invalid_call(f"{named}: the function has a parameter rng", fix=fix)
    if not _binds(target, values, {"rng": None} if random else {}):
        given = "one argument" if arguments == 1 else f"{arguments} arguments"
        takes = {
            "map_batches": "the table, frame or dict of arrays that format= names",
            "batch: collate": "the rows of a batch as a list of dicts",
        }
        raise invalid_call(
            f"{named}: the function cannot be called with {given}" + (" and rng=" if random else ""),
            fix="it receives "
            + takes.get(label, "one value per named column, or the row as a dict if no columns are named"),
        )


def _binds(fn: Any, values: tuple[Any, ...], named: dict[str, Any]) -> bool:
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # many C functions have no signature
        return True
    try:
        signature.bind(*values, **named)
    except TypeError:
        return False
    return True
