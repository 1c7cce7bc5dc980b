"""Values of well-known packages, most of which need not be installed, and what tells one from another."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from cedar.core.object_state import full_name, hashed, looked_up, own_dict
from cedar.core.references import is_library, version_of


class Walk(Protocol):
    """The digest that is being made."""

    data: bool

    def all(self, kind: str, values: Iterable[Any], step: Callable[[int], str] = ...) -> bytes: ...

    def named(self, kind: str, values: dict[str, Any]) -> bytes: ...

    def array(self, value: Any) -> bytes: ...

    def unread(self, value: Any, why: str = ...) -> bytes: ...


def of_package(walk: Walk, value: Any) -> bytes | None:
    """The digest of a value that a package made; None where this is none of these."""
    kind = type(value)
    package = kind.__module__.partition(".")[0] if is_library(kind.__module__) else ""
    if package == "numpy" and isinstance(value, np.generic):
        return walk.array(np.asarray(value))
    if package == "numpy" and isinstance(value, np.dtype):
        return walk.all("dtype", [value.__reduce__(), dict(value.metadata or {})], lambda _i: "")
    if package == "numpy" and isinstance(value, np.ufunc):
        named = any(looked_up(sys.modules.get(m), value.__name__) is value for m in ("numpy", "scipy.special"))
        return hashed("ufunc", value.__name__, version_of("numpy"), version_of("scipy")) if named else None
    if package == "pyarrow" and isinstance(value, (pa.Array, pa.ChunkedArray)):
        return _table(pa.table({"": value}))
    if package == "pyarrow" and isinstance(value, (pa.Table, pa.RecordBatch)):
        return _table(value if isinstance(value, pa.Table) else pa.Table.from_batches([value]))
    if package == "polars" and hasattr(value, "meta"):
        raw = value.meta.serialize(format="binary")
        if b"PLPYFN" in raw or b"python" in raw.lower():
            walk.unread(value, "holds a function of Python's")
        return hashed("expression", raw if walk.data else str(value))
    if package == "polars" and kind.__name__ in ("Series", "DataFrame"):
        made = value.to_arrow()
        return _table(made if isinstance(made, pa.Table) else pa.table({value.name: made}))
    if package == "torch" and kind.__name__ in ("Tensor", "Parameter", "Buffer"):
        return _tensor(walk, value)
    if package == "numba" and hasattr(value, "py_func"):
        return walk.all("numba", [version_of("numba"), value.py_func, value.targetoptions], lambda _i: ".py_func")
    return None


def _tensor(walk: Walk, value: Any) -> bytes:
    import torch

    if value.layout != torch.strided or value.is_quantized:
        return walk.unread(value)
    plain = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    made = hashed("tensor", full_name(type(value)), str(value.dtype), str(tuple(value.shape)), plain.data)
    return hashed("tensor", made, walk.named("attributes", own_dict(value)))


def _table(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return hashed("table", sink.getvalue())
