"""Digests that identify functions and values; equal in every process if code and data are equal.

A user's function is identified by its bytecode, defaults, closure and the globals that it names. Any user functions,
classes and modules among these are identified in the same way; code of an installed package, by name and version.
Objects that cannot be read are reported with the digest, which must then not be used to find earlier results.
"""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import copy
import copyreg
import functools
import gc
import hashlib
import modulefinder
import os
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from cedar.core.packages import file_of, installed, is_library, version_of
from cedar.core.references import BASES, DYNAMIC, LATE, Unloaded, attributes_of, c_base, is_python_class, references

_PLAIN_TYPES = frozenset({int, float, complex, str, bytes, bool, type(None), type(Ellipsis)})
_CODE_TYPES = (FunctionType, type, MethodType, functools.partial, BuiltinFunctionType, functools._lru_cache_wrapper)
_DEPTH, _OBJECTS, _REASONS = 60, 1_000_000, 8  # maximum nesting, maximum objects, maximum reported reasons
_UNREADABLE = "cannot read all of its state"
_COMPILED = "is compiled, and belongs to no installed package"
_CLASS_INTERNALS = frozenset({"__dict__", "__weakref__", "__module__", "__abstractmethods__", "_abc_impl",
                           "__firstlineno__", "__static_attributes__", "__annotate__", "__annotations_cache__",
                           "__slotnames__"})  # fmt: skip
_MODULE_INTERNALS = frozenset({"__builtins__", "__cached__", "__doc__", "__file__", "__loader__", "__name__",
                            "__package__", "__path__", "__spec__"})  # fmt: skip


@dataclass(frozen=True)
class PartDigests:
    """The digests of the parts of a value, and the objects in it that cannot be identified.

    Args:
        parts: a digest for each part: ``code``, ``closure x``, ``global x``, ``state``.
        unknown: the path of each object that is not identified, with the reason; empty if the digests cover everything.
    """

    parts: dict[str, str]
    unknown: tuple[str, ...] = ()


def digest_of(value: Any, *, data: bool = True) -> str:
    """Return 32 hex digits that identify a value or a function, as far as it can be identified (see ``examine``).

    Args:
        value: anything.
        data: False leaves out mutable data: lists, dicts, sets, arrays, the state of objects, and data in globals.

    Examples:
        >>> digest_of(lambda x: x + 1) == digest_of(lambda x: x + 1), digest_of([1, 2]) == digest_of([2, 1])
        (True, False)
    """
    return _Walk(data).full_digest(value, "value").hex()


def examine(value: Any, name: str = "") -> PartDigests:
    """Return the digests of a function's parts, or of any value, and the objects that cannot be identified.

    Args:
        value: anything.
        name: the beginning of all paths; the function's own name by default.

    Examples:
        >>> def scaled(scale):
        ...     return lambda x: x * scale[0]
        >>> examine(scaled([3])) == examine(scaled([3])), examine(scaled([3])) == examine(scaled([4]))
        (True, False)
        >>> examine(scaled((i for i in "ab"))).unknown
        ('<lambda>.closure.scale: a generator: cannot read all of its state',)
    """
    walk = _Walk(True)
    name = name or getattr(value, "__name__", None) or type(value).__name__
    if isinstance(value, FunctionType) and not is_library(value.__module__ or "", value.__code__.co_filename):
        parts = {
            part: walk.full_digest(each, f"{name}.{part.replace(' ', '.', 1)}").hex()
            for part, each in walk.function(value, name).items()
        }
    elif isinstance(value, _CODE_TYPES) or is_library(type(value).__module__):
        parts = {"expression" if hasattr(value, "meta") else "code": walk.full_digest(value, name).hex()}
    else:
        parts = {"code": walk.full_digest(type(value), name).hex(), "state": walk.full_digest(value, name).hex()}
    more = len(walk.unknown) - _REASONS
    return PartDigests(parts, (*list(walk.unknown)[:_REASONS], *([f"and {more} more"] if more > 0 else [])))


class _Walk:
    """Computes one digest. Data are hashed where they occur. Functions, classes and modules are replaced by numbers and
    hashed afterward, one after another, so that they may refer to each other.
    """

    def __init__(self, data: bool) -> None:
        self.data = data
        self.unknown: dict[str, None] = {}
        self._alive: list[Any] = []  # keeps objects alive, so that ids stay unique
        self._path: list[str] = []
        self._open: dict[int, int] = {}
        self._begin()

    def _begin(self) -> None:
        self._done: dict[int, bytes] = {}
        self._numbers: dict[int, int] = {}
        self._queue: deque[tuple[Any, str]] = deque()

    def full_digest(self, value: Any, path: str) -> bytes:
        """Return the digest of a value and of all code that it refers to and that was not hashed before."""
        before, opened = self._path, dict(self._open)
        self._path = [path]
        result = [self.digest(value)]
        while self._queue:
            item, where = self._queue.popleft()
            self._path = [where]
            self._open.clear()
            result.append(self._guarded(self._code, item))
        self._path = before
        self._open.update(opened)
        return _hashed("whole", *result)

    def digest(self, value: Any, step: str = "") -> bytes:
        """Return the digest of a part of the current value. ``step`` is the path from the current value to the part."""
        kind: Any = type(value)
        if kind in (str, bytes):
            return _hashed(kind.__name__, value)  # without the copies that ``repr`` makes of a large one
        if kind in _PLAIN_TYPES:
            return _hashed(kind.__name__, f"{value:x}" if kind is int else repr(value))
        if id(value) in self._done:
            return self._done[id(value)]
        if id(value) in self._open:
            return _hashed("cycle", str(len(self._open) - self._open[id(value)]))
        self._path.append(step)
        try:
            self._alive.append(value)
            if self._guarded(_is_own_code, value):
                if id(value) not in self._numbers:
                    self._queue.append((value, "".join(self._path)))
                return _hashed("code", str(self._number(value)))
            if len(self._open) > _DEPTH or len(self._alive) > _OBJECTS:
                return self.unread(value, f"is nested in more than {_DEPTH} objects, or holds too many")
            self._open[id(value)] = len(self._open)
            try:
                result: bytes = self._guarded(self._make, value)
            finally:
                del self._open[id(value)]
        finally:
            self._path.pop()
        same = kind.__eq__ is object.__eq__ and (
            kind is object or is_python_class(kind)
        )  # instances are compared by identity
        self._done[id(value)] = _hashed("again", str(self._number(value))) if same else result
        return result

    def all(self, kind: str, values: Iterable[Any], steps: Iterable[str] = ()) -> bytes:
        """Return the digest of several values."""
        names = [*steps]
        return _hashed(kind, *[self.digest(v, names[i] if names else f"[{i}]") for i, v in enumerate(values)])

    def named(self, kind: str, values: dict[str, Any], skip: frozenset[str] = frozenset()) -> bytes:
        """Return the digest of attributes."""
        names = sorted(name for name in values if type(name) is str and name not in skip)
        return _hashed(kind, *[part for n in names for part in (n, self.digest(values[n], f".{n}"))])

    def unread(self, value: Any, why: str = _UNREADABLE) -> bytes:
        self.unknown[f"{''.join(self._path)}: a {type(value).__qualname__}: {why}"] = None
        return _hashed("unknown", _full_name(type(value)))

    def _guarded(self, make: Callable[[Any], Any], value: Any) -> Any:
        try:
            return make(value)
        except Exception as error:  # noqa: BLE001 - reading an object of a user or a library may raise anything
            return self.unread(value, f"cannot be read: {type(error).__name__}: {' '.join(str(error).split())[:80]}")

    def _number(self, value: Any) -> int:
        return self._numbers.setdefault(id(value), len(self._numbers))

    def _make(self, value: Any) -> bytes:
        if make := _EXACT.get(type(value)):
            return make(self, value)
        if issubclass(type(value), type):
            if not is_library(value.__module__):
                return self.unread(value, _COMPILED)
            return _hashed("class", _full_name(value), version_of(value.__module__))
        if parts := _PARTS.get(type(value)):
            values = [*(getattr(value, each) for each in parts), attributes_of(value)]
            return self.all(type(value).__name__, values, [*("." + each for each in parts), ".__dict__"])
        if _is_named(value):
            return _hashed("named", _full_name(value), version_of(value.__module__))
        foreign = _package_data_digest(self, value)
        return foreign if foreign is not None else self._object(value)

    # ---- code --------------------------------------------------------------------------------------------------------

    def function(self, fn: FunctionType, path: str) -> dict[str, Any]:
        """Return the parts of a function by name."""
        parts: dict[str, Any] = {"code": (fn.__code__, fn.__defaults__, tuple((fn.__kwdefaults__ or {}).items()))}
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
            try:
                parts[f"closure {name}"] = cell.cell_contents
            except ValueError:
                self.unknown[f"{path}.closure.{name}: the name is not defined yet"] = None
        if is_library(fn.__module__ or "", fn.__code__.co_filename):
            if _full_name(fn) in DYNAMIC:
                self.unknown[f"{path}: {LATE}"] = None
            own = fn.__module__ if is_library(fn.__module__ or "") else str(fn.__globals__.get("__name__"))
            return parts | {"package": f"{_full_name(fn)} {version_of(own)}"}
        named, unknown = references(fn)
        if not self.data:
            return parts | {n: v for n, v in named.items() if issubclass(type(v), (FunctionType, type))}
        self.unknown |= {f"{path}.{each}": None for each in unknown}
        attributes = {f"attribute {n}": v for n, v in fn.__dict__.items()}  # a package's version identifies these
        return parts | ({"annotations": fn.__annotations__} if fn.__annotations__ else {}) | named | attributes

    def _code(self, item: Any) -> bytes:
        """Return the digest of a function, a user's class or a user's module."""
        if isinstance(item, FunctionType):
            parts = self.function(item, "".join(self._path))
            steps = ["." + name.replace(" ", ".", 1) for name in parts]
            return _hashed("function", *parts, self.all("parts", parts.values(), steps))
        if isinstance(item, ModuleType):
            source = self.sources(item.__name__)
            return _hashed(source, self.named("module", vars(item), _MODULE_INTERNALS)) if self.data else source
        result = [self.digest(type(item), ".__class__"), self.digest(item.__bases__, ".__bases__")]
        if "_abc_impl" in vars(item):
            given = frozenset(each() for each in _abc._get_dump(item)[0])
            result.append(self.digest(given, ".register"))
        skip = _CLASS_INTERNALS if self.data else _CLASS_INTERNALS | {"__doc__", "__annotations__"}
        return _hashed("class", item.__qualname__, *result, self.named("members", dict(vars(item)), skip))

    def sources(self, name: str) -> bytes:
        """Return the digest of the sources of a module and of all modules outside of packages that it imports."""
        path = [each for each in sys.path if not installed(os.path.join(os.path.realpath(each), ""))]
        finder = modulefinder.ModuleFinder(path)
        try:
            finder.import_hook(name)
        except ImportError:
            self.unknown |= {} if name in sys.modules else {f"{''.join(self._path)}: has no source": None}
        for each in {bad.partition(".")[0] for bad in finder.badmodules} - finder.modules.keys():
            if not is_library(each) and file_of(each):
                self.unknown[f"{''.join(self._path)}: the source of {each} cannot be found"] = None
        found: list[Any] = []
        for each, module in sorted(finder.modules.items()):
            if file := module.__file__:  # type: ignore[attr-defined]
                with open(file, "rb") as source:
                    found += [each, source.read()]
        return _hashed("sources", *found)

    def code(self, code: CodeType) -> bytes:
        count = code.co_argcount + code.co_kwonlyargcount
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames[:count])
        return self.all("code", [code.co_code, code.co_exceptiontable, names, counts, *code.co_consts])

    def builtin(self, fn: Any) -> bytes:
        owner = getattr(fn, "__self__", None)
        module = fn.__module__ or ("" if owner is not None else "builtins")
        if f"{module}.{fn.__qualname__}" in DYNAMIC:
            return self.unread(fn, LATE)
        if module and not is_library(module):
            return self.unread(fn, _COMPILED)
        module += f" {version_of(module)}" if module else ""
        bound = [] if owner is None or isinstance(owner, ModuleType) else [owner if self.data else type(owner)]
        return self.all("builtin", [module, fn.__qualname__, *bound], ["", "", ".__self__"])

    def descriptor(self, value: Any) -> bytes:
        """Return the digest of a method or field of a built-in class, or of a slot."""
        owner = value.__objclass__
        compiled = not isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType))
        if compiled and not is_library(owner.__module__):
            return self.unread(value, _COMPILED)
        return _hashed("descriptor", _full_name(owner), value.__name__, version_of(owner.__module__))

    # ---- data --------------------------------------------------------------------------------------------------------

    def sequence(self, value: Any) -> bytes:
        if type(value) is list and not self.data:
            return b"list"
        if all(type(v) in _PLAIN_TYPES for v in value):
            with suppress(ValueError):  # integers with more digits than Python prints
                return _hashed(type(value).__name__, "plain", repr(value))
        return self.all(type(value).__name__, value)

    def unordered(self, value: Any) -> bytes:
        """Return the digest of a set. Its elements have no order, so each is hashed separately."""
        if type(value) is set and not self.data:
            return b"set"
        if any(type(v) is object for v in value):
            return self.unread(value, "holds objects that only their identity distinguishes")
        result = []
        for each in value:
            walk = copy.copy(self)
            walk._begin()
            result.append(walk.full_digest(each, "".join(self._path) + "{...}"))
        return _hashed("set", *sorted(result))

    def mapping(self, value: Any) -> bytes:
        if not self.data:
            return b"dict"
        if all(type(v) in _PLAIN_TYPES for v in value) and all(type(v) in _PLAIN_TYPES for v in value.values()):
            with suppress(ValueError):
                return _hashed("dict", "plain", repr(value))
        parts = []
        for key, item in value.items():
            text = repr(key) if type(key) in (str, int) else type(key).__name__
            text = text if len(text) < 40 else text[:37] + "..."
            parts += [self.digest(key, ".keys()"), self.digest(item, f"[{text}]")]
        return _hashed("dict", *parts)

    def array(self, value: Any) -> bytes:
        if not self.data:
            return b"array"
        value = np.ndarray.view(value, np.ndarray)
        if value.dtype.hasobject or value.dtype.kind == "T":
            return self.all("array", [value.dtype.str, value.shape, *value.ravel().tolist()])
        if value.dtype.kind not in "biufcmMSUV":
            return self.unread(value)
        raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8) if value.nbytes else b""
        return _hashed("array", str(value.dtype), str(value.shape), raw, self.digest(value.dtype))

    def _object(self, value: Any) -> bytes:
        """Return the digest of an object's whole state if readable, otherwise of the state that its package pickles."""
        kind = type(value)
        own = self.digest(kind, ".__class__")
        if not self.data:
            return own
        base, library = c_base(kind), is_library(kind.__module__)
        reduces = kind in copyreg.dispatch_table or any(
            getattr(kind, each, None) is not getattr(object, each, None)
            for each in ("__reduce__", "__reduce_ex__", "__getstate__")
        )
        if base is not None and not (library and base is object and reduces):
            inside = self.digest(BASES[base](value))
            return _hashed("object", own, inside, self.named("attributes", attributes_of(value)))
        return self._reduced(value, own) if library else self.unread(value)

    def _reduced(self, value: Any, own: bytes) -> bytes:
        """Return the digest of a package's object: the state that it pickles, and its other attributes."""
        kind = type(value)
        try:
            result = copyreg.dispatch_table.get(kind, lambda v: v.__reduce_ex__(4))(value)  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001 - connections and files cannot be pickled
            return self.unread(value)
        if isinstance(result, str):
            found = _lookup(sys.modules.get(getattr(value, "__module__", None) or kind.__module__), result) is value
            return _hashed("named", result, own) if found else self.unread(value)
        parts = [*result[:3], *(list(items) for items in result[3:5] if items is not None), *result[5:]]
        others = {} if kind.__module__.startswith("cedar.") else attributes_of(value)  # pickles may leave these out
        inside = self.all("object", parts, ["", "", ".__dict__", *[""] * len(parts)])
        return _hashed("object", own, inside, self.named("attributes", others))


_PARTS: dict[type, tuple[str, ...]] = {
    MethodType: ("__func__", "__self__"), functools.partial: ("func", "args", "keywords"),
    functools._lru_cache_wrapper: ("__wrapped__",), staticmethod: ("__func__",), classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
}  # fmt: skip
_EXACT: dict[type, Callable[[_Walk, Any], bytes]] = {
    ModuleType: lambda _walk, v: _hashed("module", v.__name__, version_of(v.__name__)),
    Unloaded: lambda walk, v: walk.sources(v.name),
    CodeType: _Walk.code,
    **dict.fromkeys((BuiltinFunctionType, types.MethodWrapperType), _Walk.builtin),
    types.MappingProxyType: lambda walk, v: walk.digest(gc.get_referents(v)[0]),
    **dict.fromkeys((types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType,
                     types.MethodDescriptorType, types.ClassMethodDescriptorType), _Walk.descriptor),
    weakref.ReferenceType: lambda walk, v: walk.all("weak", [v()], ["()"]),
    **dict.fromkeys((type(threading.Lock()), type(threading.RLock())), lambda _walk, _v: b"lock"),
    object: lambda _walk, _v: b"object",
    list: _Walk.sequence,
    tuple: _Walk.sequence,
    set: _Walk.unordered,
    frozenset: _Walk.unordered,
    dict: _Walk.mapping,
    bytearray: lambda _walk, v: _hashed("bytearray", v),
    np.ndarray: _Walk.array,
    np.memmap: _Walk.array,
}  # fmt: skip


def _package_data_digest(walk: _Walk, value: Any) -> bytes | None:
    """Return the digest of a package's data whose pickles differ between processes; None for other objects."""
    kind = type(value)
    package = kind.__module__.partition(".")[0] if is_library(kind.__module__) else ""
    if not walk.data and package in ("pyarrow", "torch"):
        return None
    if package == "pyarrow" and isinstance(value, (pa.Array, pa.ChunkedArray)):
        return _table(pa.table({"": value}))
    if package == "pyarrow" and isinstance(value, (pa.Table, pa.RecordBatch)):
        return _table(value if isinstance(value, pa.Table) else pa.Table.from_batches([value]))
    if package == "polars" and hasattr(value, "meta"):
        raw = value.meta.serialize(format="binary")
        if b"PLPYFN" in raw or b"python" in raw.lower():
            walk.unread(value, "holds a Python function")
        return _hashed("expression", raw if walk.data else str(value))
    if package == "polars" and walk.data and kind.__name__ in ("Series", "DataFrame"):
        result = value.to_arrow()
        return _table(result if isinstance(result, pa.Table) else pa.table({value.name: result}))
    if package == "torch" and kind.__name__ in ("Tensor", "Parameter", "Buffer"):
        import torch

        if value.layout != torch.strided or value.is_quantized:
            return walk.unread(value)
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        result = _hashed("tensor", kind.__name__, str(value.dtype), str(tuple(value.shape)), raw)
        return _hashed(result, walk.named("attributes", attributes_of(value)))
    if package == "numba" and hasattr(value, "py_func"):
        return walk.all("numba", [version_of("numba"), value.py_func, value.targetoptions], [".py_func"] * 3)
    return None


def _table(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return _hashed("table", sink.getvalue())


def _hashed(*parts: Any) -> bytes:
    """Return the digest of strings and bytes, each preceded by its length."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = memoryview(part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part)
        state.update(raw.nbytes.to_bytes(8, "little"))
        state.update(raw)
    return state.digest()


def _full_name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _lookup(module: Any, dotted: str) -> Any:
    try:
        return functools.reduce(getattr, dotted.split("."), module)
    except AttributeError:
        return None


def _is_own_code(value: Any) -> bool:
    """Whether to hash an object's code: functions, and classes and modules that no package exports under their name."""
    kind = type(value)
    if issubclass(kind, type):
        return is_python_class(value) and not _is_named(value)
    return kind is FunctionType or (issubclass(kind, ModuleType) and not is_library(value.__name__))


def _is_named(value: Any) -> bool:
    """Whether an installed package exports exactly this object under its module and name."""
    module, called = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(called, str) and is_library(module)):
        return False
    return _lookup(sys.modules.get(module), called) is value
