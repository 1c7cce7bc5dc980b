"""cedar's containers as pytrees of torch and JAX, so that ``tree_map`` and ``device_put`` reach the arrays in them."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, Protocol, TypeVar

_registered: dict[tuple[str, type], object] = {}
_containers: list[type[Container]] = []
C = TypeVar("C", bound="type[Container]")


class Container(Protocol):
    """Holds arrays; the methods are those that JAX asks of a pytree."""

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]: ...

    @classmethod
    def tree_unflatten(cls, fixed: Any, parts: Any) -> Any: ...


def container(kind: C) -> C:
    """Marks a class that is a pytree."""
    _containers.append(kind)
    register()
    return kind


def register() -> None:
    """Make the containers known to those of torch and JAX that are imported; called whenever batches are asked for."""
    for module in ("torch.utils._pytree", "jax.tree_util"):
        add = None if module not in sys.modules else vars(sys.modules[module]).get("register_pytree_node")
        for kind in () if add is None else _containers:  # None while it is being imported
            mine = object()
            if (module, kind) in _registered or _registered.setdefault((module, kind), mine) is not mine:
                continue  # by another thread, just now
            if module == "jax.tree_util":
                add(kind, kind.tree_flatten, kind.tree_unflatten)
            else:
                add(kind, kind.tree_flatten, partial(_unflatten, kind), serialized_type_name=f"cedar.{kind.__name__}")


def _unflatten(kind: type[Container], parts: Any, fixed: Any) -> Any:
    return kind.tree_unflatten(fixed, parts)
