"""Digests of functions and of the values they see: equal in every process where they would do the same.

Addresses, hash seeds, file names and line numbers take no part. Functions of installed packages stand for themselves
by name and version; those of the user's own modules by their bytecode, and by what it refers to.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import hashlib
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.references import file_digest, is_library, references, version_of

_CODE = (FunctionType, type, MethodType, functools.partial, BuiltinFunctionType, functools._lru_cache_wrapper)
_PLAIN = frozenset({int, float, complex, str, bytes, bool, type(None), type(Ellipsis)})
_DEPTH = 60  # of nesting, below which only types count
_OF_THE_CLASS = frozenset({"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__abstractmethods__",
                           "_abc_impl", "__firstlineno__", "__static_attributes__", "__match_args__",
                           "__annotate__", "__annotations_cache__", "__slotnames__"})  # fmt: skip


def digest_of(value: Any, *, data: bool = True) -> str:
    """32 hex digits that stand for a value, or for what a function does.

    Args:
        value: anything.
        data: False leaves out what a run may change: lists, dicts, sets, the state of objects, and data in globals.

    Example:
        >>> digest_of(lambda x: x + 1) == digest_of(lambda x: x + 1), digest_of([1, 2]) == digest_of([2, 1])
        (True, False)
    """
    return _Walk(data).of(value).hex()


def parts_of(fn: Any) -> dict[str, str]:
    """What a function is made of, a digest per part: ``code``, ``closure x``, ``global x``, ``state``.

    Example:
        >>> def scaled(scale):
        ...     return lambda x: x * scale[0]
        >>> parts_of(scaled([3])) == parts_of(scaled([3])), parts_of(scaled([3])) == parts_of(scaled([4]))
        (True, False)
    """
    walk = _Walk(True)
    if isinstance(fn, FunctionType) and not _from_library(fn):
        return {name: walk.of(part).hex() for name, part in walk.function(fn).items()}
    if isinstance(fn, _CODE) or is_library(type(fn).__module__):
        return {"expression" if hasattr(fn, "meta") else "code": walk.of(fn).hex()}
    return {"code": walk.of(type(fn)).hex(), "state": walk.of(fn).hex()}


class _Walk:
    """One digest: remembers what it has seen, so that shared parts are walked once and cycles end."""

    def __init__(self, data: bool) -> None:
        self._data = data
        self._done: dict[int, bytes] = {}
        self._open: dict[int, int] = {}
        self._alive: list[Any] = []  # so that no id is used twice

    def of(self, value: Any) -> bytes:
        if type(value) in _PLAIN:
            return _hashed(type(value).__name__, f"{value:x}" if type(value) is int else repr(value))
        known = self._done.get(id(value))
        if known is not None:
            return known
        if id(value) in self._open:
            return _hashed("cycle", str(len(self._open) - self._open[id(value)]))
        if len(self._open) > _DEPTH:
            return _hashed("deep", _name(type(value)))
        self._alive.append(value)
        self._open[id(value)] = len(self._open)
        try:
            made = self._make(value)
        finally:
            del self._open[id(value)]
        self._done[id(value)] = made
        return made

    def _all(self, kind: str, values: Iterable[Any]) -> bytes:
        return _hashed(kind, *(self.of(v) for v in values))

    def _make(self, value: Any) -> bytes:
        for kinds, make in _KINDS:
            if isinstance(value, kinds):
                made: bytes = make(self, value)
                return made
        foreign = _foreign(value, self._data)
        return foreign if foreign is not None else self._object(value)

    # ---- containers --------------------------------------------------------------------------------------------------

    def _sequence(self, value: Any) -> bytes:
        if isinstance(value, list) and not self._data:
            return b"list"
        kind = _name(type(value))
        if all(type(v) in _PLAIN for v in value):  # a long list of ids or words
            return _hashed(kind, "plain", repr([*value]))
        return self._all(kind, value)

    def _set(self, value: Any) -> bytes:
        if isinstance(value, set) and not self._data:
            return b"set"
        return _hashed("set", *sorted(self.of(v) for v in value))

    def _dict(self, value: Any) -> bytes:
        if not self._data:
            return b"dict"
        if all(type(v) in _PLAIN for v in value) and all(type(v) in _PLAIN for v in value.values()):
            return _hashed("dict", "plain", repr(dict(value)))
        return self._all("dict", (part for pair in value.items() for part in pair))

    # ---- code --------------------------------------------------------------------------------------------------------

    def function(self, fn: FunctionType) -> dict[str, Any]:
        """The parts of a function of the user's own, by name."""
        parts: dict[str, Any] = {"code": (fn.__code__, fn.__defaults__, tuple((fn.__kwdefaults__ or {}).items()))}
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
            try:
                parts[f"closure {name}"] = cell.cell_contents
            except ValueError:  # an empty cell: the name is bound later
                continue
        outside = references(fn).items()
        return parts | {name: v for name, v in outside if self._data or isinstance(v, (FunctionType, type))}

    def _function(self, fn: FunctionType) -> bytes:
        if not _from_library(fn):
            return self._all("function", (part for pair in self.function(fn).items() for part in pair))
        closed = [cell.cell_contents for cell in fn.__closure__ or () if _filled(cell)]
        return self._all("library", [_name(fn), version_of(fn.__module__), *closed])

    def _code(self, code: CodeType) -> bytes:
        named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        shape = [code.co_code, code.co_exceptiontable, code.co_names, named, code.co_argcount, code.co_flags]
        return self._all("code", [*shape, *code.co_consts])

    def _class(self, kind: type) -> bytes:
        if is_library(kind.__module__):
            return _hashed("class", _name(kind), version_of(kind.__module__))
        members = [name for name in vars(kind) if name not in _OF_THE_CLASS]
        parts = [(name, vars(kind)[name]) for name in sorted(members)]
        return self._all("class", [kind.__qualname__, kind.__bases__, *parts])

    def _module(self, module: ModuleType) -> bytes:
        name = module.__name__
        return _hashed("module", name, version_of(name) if is_library(name) else file_digest(name))

    def _builtin(self, fn: Any) -> bytes:
        owner = getattr(fn, "__self__", None)
        bound = [owner] if self._data and owner is not None and not isinstance(owner, ModuleType) else []
        return self._all("builtin", [fn.__qualname__, version_of(fn.__module__ or "builtins"), *bound])

    # ---- data --------------------------------------------------------------------------------------------------------

    def _array(self, value: Any) -> bytes:
        if value.dtype.hasobject:
            return self._all("array", [value.shape, *value.ravel().tolist()])
        flat = np.ascontiguousarray(value).reshape(-1)
        raw = flat.view(np.uint8) if flat.nbytes else b""
        return _hashed("array", str(value.dtype), str(value.shape), raw)

    def _object(self, value: Any) -> bytes:
        """An object by its class and by what a copy would be made from."""
        kind = self.of(type(value))
        if not self._data:
            return kind
        try:
            known = copyreg.dispatch_table.get(type(value))
            made = known(value) if known is not None else value.__reduce_ex__(4)
        except Exception:  # noqa: BLE001 - a lock, a connection: no state that can be told
            return kind
        if isinstance(made, str):
            return _hashed("named", made, kind)
        parts = [*made[:3], *(list(items) for items in made[3:5] if items is not None)]
        return self._all("object", [type(value), *parts])


_KINDS: tuple[tuple[Any, Callable[[_Walk, Any], bytes]], ...] = (
    (FunctionType, _Walk._function),
    (type, _Walk._class),
    (ModuleType, _Walk._module),
    (CodeType, _Walk._code),
    (MethodType, lambda walk, v: walk._all("method", [v.__func__, v.__self__])),
    (functools.partial, lambda walk, v: walk._all("partial", [v.func, v.args, tuple(v.keywords.items())])),
    ((BuiltinFunctionType, BuiltinMethodType), _Walk._builtin),
    ((staticmethod, classmethod), lambda walk, v: walk._all(type(v).__name__, [v.__func__])),
    (property, lambda walk, v: walk._all("property", [v.fget, v.fset])),
    (functools._lru_cache_wrapper, lambda walk, v: walk._all("cached", [v.__wrapped__])),
    (enum.Enum, lambda walk, v: walk._all("enum", [type(v), v.name])),
    ((list, tuple), _Walk._sequence),
    ((set, frozenset), _Walk._set),
    (dict, _Walk._dict),
    (bytearray, lambda _walk, v: _hashed("bytearray", bytes(v))),
    (np.ndarray, _Walk._array),
    (np.generic, lambda walk, v: walk._array(np.asarray(v))),
    ((pa.Array, pa.ChunkedArray), lambda _walk, v: _table(pa.table({"": v}))),
    (pa.RecordBatch, lambda _walk, v: _table(pa.Table.from_batches([v]))),
    (pa.Table, lambda _walk, v: _table(v)),
)


def _foreign(value: Any, data: bool) -> bytes | None:
    """Values of libraries that need not be installed."""
    package = type(value).__module__.partition(".")[0]
    if package == "polars" and hasattr(value, "meta"):
        return _hashed("expression", value.meta.serialize(format="binary") if data else str(value))
    if package == "polars" and hasattr(value, "to_arrow"):
        made = value.to_arrow()
        return _table(made if isinstance(made, pa.Table) else pa.table({"": made}))
    if package == "torch" and hasattr(value, "detach"):
        import torch

        plain = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return _hashed("tensor", str(value.dtype), str(tuple(value.shape)), plain.data)
    return None


def _table(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return _hashed("table", sink.getvalue())


def _hashed(*parts: Any) -> bytes:
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = memoryview(part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part)
        state.update(raw.nbytes.to_bytes(8, "little"))
        state.update(raw)
    return state.digest()


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _from_library(fn: FunctionType) -> bool:
    return is_library(fn.__module__ or "", fn.__code__.co_filename)


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
