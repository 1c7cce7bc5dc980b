"""Registration of cedar's containers as pytrees of torch and JAX, so that ``tree_map`` reaches their arrays."""

from __future__ import annotations

import sys
from dataclasses import fields
from functools import partial
from typing import Any, ClassVar, Self

_registered: set[tuple[str, type]] = set()


class Container:
    """A dataclass that holds arrays, with the methods that JAX requires of a pytree."""

    __slots__ = ()
    fixed: ClassVar[str] = ""  # the name of the field without arrays

    def tree_flatten(self: Any) -> tuple[tuple[Any, ...], Any]:
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        fixed = parts.pop(self.fixed, None)
        return tuple(parts.values()), fixed

    @classmethod
    def tree_unflatten(cls, fixed: Any, parts: Any) -> Self:
        """Build an instance without checks, since frameworks replace arrays by other objects."""
        made, rest = object.__new__(cls), iter(parts)
        for field in fields(cls):  # type: ignore[arg-type]
            object.__setattr__(made, field.name, fixed if field.name == cls.fixed else next(rest))
        return made


def register(*kinds: type[Container]) -> None:
    """Register classes with torch and JAX if these are loaded. Called whenever batches are requested."""
    for module in ("torch.utils._pytree", "jax.tree_util"):
        add: Any = None if module not in sys.modules else vars(sys.modules[module]).get("register_pytree_node")
        for kind in () if add is None else kinds:  # ``add`` is None while the module is being imported
            if (module, kind) in _registered:
                continue
            _registered.add((module, kind))
            if module == "jax.tree_util":
                add(kind, kind.tree_flatten, kind.tree_unflatten)
            else:
                add(kind, kind.tree_flatten, partial(_unflatten, kind), serialized_type_name=f"cedar.{kind.__name__}")


def _unflatten(kind: type[Container], parts: Any, fixed: Any) -> Any:
    return kind.tree_unflatten(fixed, parts)
