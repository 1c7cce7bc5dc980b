"""cedar's containers as pytrees of torch and JAX, so that ``tree_map`` and ``device_put`` reach the arrays in them."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, Protocol

_registered: dict[tuple[str, type], object] = {}


class Container(Protocol):
    """Holds arrays; the methods are those that JAX asks of a pytree."""

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]: ...

    @classmethod
    def tree_unflatten(cls, fixed: Any, parts: Any) -> Any: ...


def register(kind: type[Container]) -> None:
    """Make a class known to those of torch and JAX that are imported; called as its instances are made."""
    for module in ("torch.utils._pytree", "jax.tree_util"):
        add = None if module not in sys.modules else vars(sys.modules[module]).get("register_pytree_node")
        if add is None or (module, kind) in _registered:  # not there, or still being imported
            continue
        mine = object()
        if _registered.setdefault((module, kind), mine) is not mine:  # another thread is here, too
            continue
        if module == "jax.tree_util":
            add(kind, kind.tree_flatten, kind.tree_unflatten)
        else:
            add(kind, kind.tree_flatten, partial(_unflatten, kind), serialized_type_name=f"cedar.{kind.__name__}")


def _unflatten(kind: type[Container], parts: Any, fixed: Any) -> Any:
    return kind.tree_unflatten(fixed, parts)
