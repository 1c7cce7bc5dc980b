"""Algebra marks: declare what kind of change a function makes to a value, so that the optimizer can reorder maps.

Mark your own functions and classes. The optimizer can then reorder ``map(fn, "x")``, which replaces a column::

    from cedar.operators.algebra import pointwise, spatial

    @pointwise
    def brighten(image):
        return image * 1.1

    p.map(brighten, "image").map(spatial(crop), "image")  # may crop first, so that brighten works on fewer pixels

Spatial functions commute with pointwise functions, and length-changing functions with per-value functions. No other
kinds commute. Checks on sample rows and audits during the run detect an incorrect mark if results differ on their rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from cedar.core.errors import invalid_call
from cedar.operators.base import Algebra

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__cedar_algebra__"


def pointwise(fn: F) -> F:
    """Mark a function that computes each element independently of its position and of the shape, such as a cast.

    A random pointwise function may draw numbers per value but not per element: a crop changes the number of elements.

    Raises:
        PipelineError: ``fn`` cannot be called.

    Examples:
        >>> import numpy as np
        >>> from cedar.operators.algebra import algebra_of, pointwise
        >>> @pointwise
        ... def halve(image):
        ...     return image // 2
        >>> algebra_of(halve)
        'pointwise'
    """
    return _marked(fn, "pointwise")


def spatial(fn: F) -> F:
    """Mark a function that moves, repeats or drops elements by position and not by value: crop, flip, transpose.

    Raises:
        PipelineError: ``fn`` cannot be called.
    """
    return _marked(fn, "spatial")


def resampling(fn: F) -> F:
    """Mark a function that computes each new element from several others: resize, rotate, blur. It never commutes.

    Raises:
        PipelineError: ``fn`` cannot be called.
    """
    return _marked(fn, "resampling")


def per_value(fn: F) -> F:
    """Mark a function that maps each list item independently of its position and of the length: a vocabulary lookup.

    Raises:
        PipelineError: ``fn`` cannot be called.
    """
    return _marked(fn, "per-value")


def length_changing(fn: F) -> F:
    """Mark a function that selects list items by position and not by value: truncate, the last n, every second.

    Raises:
        PipelineError: ``fn`` cannot be called.
    """
    return _marked(fn, "length")


def mark(transform: Any, algebra: Algebra) -> None:
    """Mark a single instance of a frozen dataclass, for classes whose algebra mark depends on parameters."""
    object.__setattr__(transform, _MARK, algebra)


def algebra_of(fn: Any) -> Algebra | None:
    """Return the algebra mark of a function, class, instance or functools.partial; None if it has no mark.

    A subclass does not inherit the mark of its base class.

    Examples:
        >>> import functools
        >>> from cedar.operators.algebra import algebra_of, spatial
        >>> def crop(image, size):
        ...     return image[:size, :size]
        >>> algebra_of(functools.partial(spatial(crop), size=224))
        'spatial'
    """
    own: dict[str, Any] = getattr(fn, "__dict__", {})
    if _MARK in own:
        return own[_MARK]  # type: ignore[no-any-return]
    if isinstance(fn, functools.partial):
        return algebra_of(fn.func)
    if hasattr(fn, "__func__"):  # a method
        return algebra_of(fn.__func__)
    return None if isinstance(fn, type) else vars(type(fn)).get(_MARK)


def _marked(fn: F, algebra: Algebra) -> F:
    if not callable(fn):
        raise invalid_call(f"{algebra}: {type(fn).__name__} cannot be called", fix="mark a function or a class")
    target: Any = fn
    own = isinstance(fn, FunctionType | type) or isinstance(type(fn).__call__, FunctionType)
    try:
        if not own:  # mark a wrapper, because other code shares the method or C function (such as a ufunc)
            target = functools.partial(fn)
        setattr(target, _MARK, algebra)
    except (AttributeError, TypeError):  # a C type or a frozen dataclass does not accept the attribute
        target = functools.partial(fn)
        setattr(target, _MARK, algebra)
    return target  # type: ignore[no-any-return]
