"""Algebra: what a function does to the one value that it gets, so that an optimizer may change the order of maps.

Mark your own functions and classes; ``map(fn, "x")``, which turns a column into itself, then takes part::

    from cedar.operators.algebra import pointwise, spatial

    @pointwise
    def brighten(image):
        return image * 1.1

    p.map(brighten, "image").map(spatial(crop), "image")  # may run as crop, then brighten: on fewer pixels

Spatial and pointwise functions commute, and so do length-changing and per-value ones; nothing else does. A wrong mark
is found on sample rows and by audits while running, where rows show it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from cedar.core.errors import PipelineError, user_site
from cedar.operators.base import Algebra

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__cedar_algebra__"


def pointwise(fn: F) -> F:
    """Each element by itself, whatever its place or the shape: brightness, normalize by constants, a cast.

    A random one may draw one number per value, but none per element, since their number changes with a crop.

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
    """Moves, repeats or drops elements by their place alone, never by their value: crop, flip, transpose.

    Raises:
        PipelineError: ``fn`` cannot be called.
    """
    return _marked(fn, "spatial")


def resampling(fn: F) -> F:
    """Computes new elements from several: resize, rotate, blur. Commutes with nothing.

    Raises:
        PipelineError: ``fn`` cannot be called.
    """
    return _marked(fn, "resampling")


def per_value(fn: F) -> F:
    """Each item of a list by itself, one for one, whatever its place or the list's length: a vocabulary lookup.

    Raises:
        PipelineError: ``fn`` cannot be called.
    """
    return _marked(fn, "per-value")


def length_changing(fn: F) -> F:
    """Keeps some items of a list by their place alone, never by their value: truncate, the last n, every second.

    Raises:
        PipelineError: ``fn`` cannot be called.
    """
    return _marked(fn, "length")


def mark(transform: Any, algebra: Algebra) -> None:
    """Mark one instance of a frozen dataclass, whose parameters decide what it does."""
    object.__setattr__(transform, _MARK, algebra)


def algebra_of(fn: Any) -> Algebra | None:
    """What a function, a class, an instance or a functools.partial was marked as; None if it was not.

    A subclass is not what its base class was marked as.

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
        raise PipelineError(
            f"{algebra}: {type(fn).__name__} cannot be called", site=user_site(), fix="mark a function or a class"
        )
    target: Any = fn
    own = isinstance(fn, FunctionType | type) or isinstance(type(fn).__call__, FunctionType)
    try:
        if not own:  # a method, a ufunc or another function in C, which others use too: a wrapper carries the mark
            target = functools.partial(fn)
        setattr(target, _MARK, algebra)
    except (AttributeError, TypeError):  # a type in C, a frozen dataclass
        target = functools.partial(fn)
        setattr(target, _MARK, algebra)
    return target  # type: ignore[no-any-return]
