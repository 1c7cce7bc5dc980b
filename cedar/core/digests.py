"""Digests of functions and of the values they see: equal in every process where they would do the same.

Addresses, hash seeds, file names and line numbers take no part. Functions of installed packages stand for themselves
by name and version; those of the user's own modules by their bytecode, and by what it refers to. Types are understood
one by one: what is not, and may hold something that cannot be read, is named beside the digest, which then says less
than all.
"""

from __future__ import annotations

import builtins
import copyreg
import functools
import logging
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from cedar.core.library_values import of_package
from cedar.core.object_state import (
    attributes,
    base_of,
    behind,
    by_identity,
    contents,
    filled,
    full_name,
    hashed,
    looked_up,
    named,
    own_dict,
    reduces,
    registered,
)  # fmt: skip
from cedar.core.references import DYNAMIC, References, file_digest, is_library, references, version_of

_CODE = (FunctionType, type, MethodType, functools.partial, BuiltinFunctionType, functools._lru_cache_wrapper)
_PLAIN = frozenset({int, float, complex, str, bytes, bool, type(None), type(Ellipsis)})
_DEPTH = 60  # of data inside data; functions, classes and modules are walked one by one
_OF_THE_CLASS = frozenset({"__dict__", "__weakref__", "__module__", "__abstractmethods__", "_abc_impl",
                           "__firstlineno__", "__static_attributes__", "__annotate__", "__annotations_cache__",
                           "__slotnames__"})  # fmt: skip
_OF_THE_MODULE = frozenset({"__builtins__", "__cached__", "__doc__", "__file__", "__loader__", "__name__",
                            "__package__", "__path__", "__spec__"})  # fmt: skip
_MOST = 8  # unknown parts that are told


@dataclass(frozen=True)
class PartDigests:
    """Digests of the parts of something, and what of it they cannot stand for.

    Args:
        parts: a digest per part: ``code``, ``closure x``, ``global x``, ``state``.
        unknown: objects that are not understood completely, by their path, and why; empty where the digests stand for
            everything.
    """

    parts: dict[str, str]
    unknown: tuple[str, ...] = ()


def digest_of(value: Any, *, data: bool = True) -> str:
    """32 hex digits that stand for a value, or for what a function does, as far as it can be read (see ``examine``).

    Args:
        value: anything.
        data: False leaves out what a run may change: lists, dicts, sets, the state of objects, and data in globals.

    Example:
        >>> digest_of(lambda x: x + 1) == digest_of(lambda x: x + 1), digest_of([1, 2]) == digest_of([2, 1])
        (True, False)
    """
    return _Walk(data).whole(value, "value").hex()


def examine(value: Any, name: str = "") -> PartDigests:
    """The digests of a function's parts, or of any value, and what in it is not understood.

    Args:
        value: anything.
        name: what paths begin with; a function's own by default.

    Example:
        >>> def scaled(scale):
        ...     return lambda x: x * scale[0]
        >>> examine(scaled([3])) == examine(scaled([3])), examine(scaled([3])) == examine(scaled([4]))
        (True, False)
        >>> examine(scaled((i for i in "ab"))).unknown
        ('<lambda>.closure.scale: a generator: cannot read all of its state',)
    """
    walk = _Walk(True)
    name = name or getattr(value, "__name__", None) or type(value).__name__
    if isinstance(value, FunctionType) and not _from_library(value):
        walk.begin(value)
        parts = {
            part: walk.whole(each, f"{name}.{part.replace(' ', '.', 1)}").hex()
            for part, each in walk.function(value, name).items()
        }
    elif isinstance(value, _CODE) or is_library(type(value).__module__):
        parts = {"expression" if hasattr(value, "meta") else "code": walk.whole(value, name).hex()}
    else:
        parts = {"code": walk.whole(type(value), name).hex(), "state": walk.whole(value, name).hex()}
    return PartDigests(parts, walk.told())


class _Walk:
    """One digest. Data are hashed where they are met; functions, classes and modules of the user's own get a number
    there, and are hashed one after another, however they refer to each other.
    """

    def __init__(self, data: bool, parent: _Walk | None = None) -> None:
        self.data = data
        self._done: dict[int, bytes] = {}
        self._numbers: dict[int, int] = {}
        self._queue: deque[tuple[Any, str]] = deque()
        self._alive: list[Any] = []  # so that no id is used twice
        self._path: list[str] = parent._path if parent is not None else []
        self._open: dict[int, int] = parent._open if parent is not None else {}
        self._unknown: dict[str, None] = parent._unknown if parent is not None else {}
        self._read: set[str] = parent._read if parent is not None else set()
        self._counted: dict[str, str] = parent._counted if parent is not None else {}

    def whole(self, value: Any, path: str) -> bytes:
        """The digest of a value, and of all code that was met for the first time on the way."""
        before, opened = self._path, dict(self._open)
        self._path = [path]
        made = [self.of(value)]
        while self._queue:
            item, where = self._queue.popleft()
            self._path = [where]
            self._open.clear()
            made.append(self._guarded(self._shallow, item))
        self._path = before
        self._open.update(opened)
        return hashed("whole", *made)

    def begin(self, fn: FunctionType) -> None:
        """The function whose parts follow: it is known by its number when one of them refers to it."""
        self._numbers[id(fn)] = 0

    def told(self) -> tuple[str, ...]:
        """What is not understood."""
        for name in sorted(self._counted.keys() & self._read):
            self._unknown[f"{self._counted[name]}.{name}: is counted in and read elsewhere"] = None
        reasons = [*self._unknown]
        more = [f"and {len(reasons) - _MOST} more"] if len(reasons) > _MOST else []
        return (*reasons[:_MOST], *more)

    def of(self, value: Any, step: str = "") -> bytes:
        """The digest of a value, which is found at ``step`` from the one at hand."""
        if type(value) in _PLAIN:
            return _plain(value)
        known = self._done.get(id(value))
        if known is not None:
            return known
        if id(value) in self._open:
            return hashed("cycle", str(len(self._open) - self._open[id(value)]))
        self._path.append(step)
        try:
            if _is_own_code(value):
                return self._refer(value)
            if len(self._open) > _DEPTH:
                return self.unread(value, f"lies more than {_DEPTH} objects deep")
            self._alive.append(value)
            self._open[id(value)] = len(self._open)
            try:
                made = self._guarded(self._make, value)
            finally:
                del self._open[id(value)]
        finally:
            self._path.pop()
        self._done[id(value)] = hashed("again", str(self._number(value))) if by_identity(type(value)) else made
        return made

    def all(self, kind: str, values: Iterable[Any], step: Callable[[int], str] = lambda i: f"[{i}]") -> bytes:
        """The digest of several values."""
        return hashed(kind, *[self.of(v, step(i)) for i, v in enumerate(values)])

    def named(self, kind: str, values: dict[str, Any], skip: frozenset[str] = frozenset()) -> bytes:
        """The digest of attributes."""
        names = sorted(name for name in values if type(name) is str and name not in skip)
        return hashed(kind, *[part for n in names for part in (n, self.of(values[n], f".{n}"))])

    def _guarded(self, make: Callable[[Any], bytes], value: Any) -> bytes:
        try:
            return make(value)
        except Exception as error:  # noqa: BLE001 - whatever a user's object, or a library's, does when it is looked at
            return self.unread(value, f"cannot be read: {type(error).__name__}: {' '.join(str(error).split())[:80]}")

    def _number(self, value: Any) -> int:
        return self._numbers.setdefault(id(value), len(self._numbers))

    def _refer(self, value: Any) -> bytes:
        if id(value) not in self._numbers:
            self._alive.append(value)
            self._queue.append((value, "".join(self._path)))
        return hashed("code", str(self._number(value)))

    def unread(self, value: Any, why: str = "cannot read all of its state") -> bytes:
        self._unknown[f"{''.join(self._path)}: a {type(value).__qualname__}: {why}"] = None
        return hashed("unknown", full_name(type(value)))

    def _make(self, value: Any) -> bytes:
        make = _EXACT.get(type(value))
        if make is not None:
            return make(self, value)
        known_as = named(value)
        if known_as is not None:
            return hashed("named", known_as)
        if issubclass(type(value), type):
            return hashed("class", full_name(value), version_of(value.__module__))
        foreign = of_package(self, value)
        return foreign if foreign is not None else self._object(value)

    # ---- containers --------------------------------------------------------------------------------------------------

    def sequence(self, value: Any) -> bytes:
        if type(value) is list and not self.data:
            return b"list"
        if all(type(v) in _PLAIN for v in value):  # a long list of ids or words
            return hashed(full_name(type(value)), "plain", _repr(value))
        return self.all(full_name(type(value)), value)

    def unordered(self, value: Any) -> bytes:
        """Elements have no order: each is hashed by itself."""
        if type(value) is set and not self.data:
            return b"set"
        if any(type(v) is object for v in value):
            return self.unread(value, "holds objects that only their identity tells apart")
        made = [_plain(v) if type(v) in _PLAIN else _Walk(self.data, self).element(v) for v in value]
        return hashed("set", *sorted(made))

    def element(self, value: Any) -> bytes:
        """The digest of an element of a set, within the walk that met it."""
        path = "".join(self._path) + "{...}"
        self._path = []
        return self.whole(value, path)

    def mapping(self, value: Any) -> bytes:
        if not self.data:
            return b"dict"
        if all(type(v) in _PLAIN for v in value) and all(type(v) in _PLAIN for v in value.values()):
            return hashed("dict", "plain", _repr(dict(value)))
        parts = []
        for key, item in value.items():
            parts += [self.of(key, ".keys()"), self.of(item, f"[{_short(key)}]")]
        return hashed("dict", *parts)

    # ---- code --------------------------------------------------------------------------------------------------------

    def function(self, fn: FunctionType, path: str | None = None) -> dict[str, Any]:
        """The parts of a function of the user's own, by name."""
        path = "".join(self._path) if path is None else path
        parts: dict[str, Any] = {"code": (fn.__code__, fn.__defaults__, tuple((fn.__kwdefaults__ or {}).items()))}
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
            try:
                parts[f"closure {name}"] = cell.cell_contents
            except ValueError:
                self._unknown[f"{path}.closure.{name}: nothing has that name yet"] = None
        refs = references(fn)
        if not self.data:
            return parts | {n: v for n, v in refs.values.items() if isinstance(v, (FunctionType, type))}
        if fn.__annotations__:  # they fix the types of columns
            parts["annotations"] = fn.__annotations__
        return parts | refs.values | self._own_attributes(fn, refs, path)

    def _own_attributes(self, fn: FunctionType, refs: References, path: str) -> dict[str, Any]:
        for each in refs.unknown:
            self._unknown[f"{path}.{each}"] = None
        self._read |= refs.read
        self._counted |= dict.fromkeys(refs.counted & fn.__dict__.keys(), path)
        return {f"attribute {n}": v for n, v in fn.__dict__.items() if n not in refs.counted}

    def _shallow(self, item: Any) -> bytes:
        if isinstance(item, FunctionType):
            parts = self.function(item)
            return hashed(
                "function", *[p for n, v in parts.items() for p in (n, self.of(v, "." + n.replace(" ", ".", 1)))]
            )
        if isinstance(item, ModuleType):
            named = hashed("module", item.__name__, file_digest(item.__name__))
            return self.named("module", vars(item), _OF_THE_MODULE) if self.data else named
        return self._class(item)

    def library_function(self, fn: FunctionType) -> bytes:
        if f"{fn.__module__}.{fn.__qualname__}" in DYNAMIC:
            return self.unread(fn, "finds names or code only when it is called")
        closed = [cell.cell_contents for cell in fn.__closure__ or () if filled(cell)]
        defaults = [fn.__defaults__, fn.__kwdefaults__, own_dict(fn)] if closed or own_dict(fn) else []
        own = fn.__module__ if is_library(fn.__module__ or "") else _file_package(fn)
        return self.all("library", [full_name(fn), version_of(own), _code_bytes(fn.__code__), *closed, *defaults])

    def code(self, code: CodeType) -> bytes:
        named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        shape = [code.co_code, code.co_exceptiontable, code.co_names, named, code.co_argcount, code.co_flags]
        return self.all("code", [*shape, *code.co_consts])

    def _class(self, kind: type) -> bytes:
        if not kind.__flags__ >> 9 & 1:
            return self.unread(kind, "is compiled, and belongs to no installed package")
        parts = [kind.__qualname__.encode(), self.of(type(kind), ".__class__"), self.of(kind.__bases__, ".__bases__")]
        if "_abc_impl" in vars(kind):
            parts.append(self.of(registered(kind), ".register"))
        skip = _OF_THE_CLASS if self.data else _OF_THE_CLASS | {"__doc__", "__annotations__"}
        return hashed("class", *parts, self.named("members", dict(vars(kind)), skip))

    def module(self, module: ModuleType) -> bytes:
        return hashed("module", module.__name__, version_of(module.__name__))

    def builtin(self, fn: Any) -> bytes:
        owner = getattr(fn, "__self__", None)
        module = fn.__module__ or ("" if owner is not None else "builtins")
        if f"{module}.{fn.__qualname__}" in DYNAMIC:
            return self.unread(fn, "finds names or code only when it is called")
        if module and not is_library(module):
            return self.unread(fn, "is compiled, and belongs to no installed package")
        bound = [owner] if owner is not None and not isinstance(owner, ModuleType) else []
        if not self.data:
            bound = [type(each) for each in bound]
        version = version_of(module) if module else ""
        return self.all("builtin", [module, fn.__qualname__, version, *bound], lambda _i: ".__self__")

    def descriptor(self, value: Any) -> bytes:
        """A method or a field of a C class, or a slot."""
        owner = value.__objclass__
        compiled = not isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType))
        if compiled and not is_library(owner.__module__):
            return self.unread(value, "is compiled, and belongs to no installed package")
        return hashed("descriptor", full_name(owner), value.__name__, version_of(owner.__module__))

    # ---- data --------------------------------------------------------------------------------------------------------

    def array(self, value: Any) -> bytes:
        kind = value.dtype.kind
        value = np.ndarray.view(value, np.ndarray) if isinstance(value, np.ndarray) else value
        if value.dtype.hasobject or kind == "T":
            return self.all("array", [value.dtype.str, value.shape, *value.ravel().tolist()])
        if kind not in "biufcmMSUV":
            return self.unread(value)
        flat = np.ascontiguousarray(value).reshape(-1)
        raw = flat.view(np.uint8) if flat.nbytes else b""
        metadata = self.of(dict(value.dtype.metadata)) if value.dtype.metadata else b""
        return hashed("array", str(value.dtype), str(value.shape), raw, metadata)

    def _object(self, value: Any) -> bytes:
        """An object of any class: all that it holds where that can be seen, else what a library's makes copies from."""
        kind = type(value)
        own = self.of(kind, ".__class__")
        if not self.data:
            return own
        base = base_of(kind)
        library = is_library(kind.__module__)
        if not library or (base is not None and (base is not object or not reduces(kind))):
            if base is None:
                return self.unread(value)
            content = contents(value, base)
            inside = self.of(content) if type(content) in _PLAIN else self._of_contents(content)
            return hashed("object", own, inside, self.named("attributes", attributes(value)))
        return self._of_library(value, own)

    def _of_contents(self, content: Any) -> bytes:
        make = _EXACT[type(content)]
        self._alive.append(content)
        return make(self, content)

    def _of_library(self, value: Any, own: bytes) -> bytes:
        """An object of an installed package, by what the package copies it from, and by what hangs on it besides."""
        kind = type(value)
        if kind.__module__ == "builtins" and kind.__flags__ >> 9 & 1 and not hasattr(builtins, kind.__qualname__):
            return self.unread(value)  # of a compiled module that does not say which
        try:
            known = copyreg.dispatch_table.get(kind)
            made = known(value) if known is not None else value.__reduce_ex__(4)
        except Exception:  # noqa: BLE001 - a connection, a file: no state that can be told
            return self.unread(value)
        if isinstance(made, str):
            module = sys.modules.get(getattr(value, "__module__", None) or kind.__module__)
            if looked_up(module, made) is not value:
                return self.unread(value)
            return hashed("named", made, own)
        parts = [*made[:3], *(list(items) for items in made[3:5] if items is not None)]
        inside = self.all("object", [kind, *parts], lambda i: "" if i != 3 else ".__dict__")
        top = kind.__module__.partition(".")[0]
        if top == __name__.partition(".")[0] or top in sys.stdlib_module_names:
            return inside
        return hashed("object", inside, self._aside(own_dict(value)))

    def _aside(self, values: dict[str, Any]) -> bytes:
        """Attributes that a package may leave out of copies: what can be read of them."""
        known = dict(self._unknown)
        made = self.named("attributes", values)
        self._unknown.clear()
        self._unknown.update(known)
        return made


_EXACT: dict[type, Callable[[_Walk, Any], bytes]] = {
    FunctionType: _Walk.library_function,
    ModuleType: _Walk.module,
    CodeType: _Walk.code,
    MethodType: lambda walk, v: walk.all("method", [v.__func__, v.__self__], lambda i: (".__func__", ".__self__")[i]),
    BuiltinFunctionType: _Walk.builtin,
    types.MethodWrapperType: _Walk.builtin,
    functools.partial: lambda walk, v: walk.all(
        "partial", [v.func, v.args, tuple(v.keywords.items()), own_dict(v)],
        lambda i: (".func", ".args", ".keywords", ".__dict__")[i],
    ),
    functools._lru_cache_wrapper: lambda walk, v: walk.all("cached", [v.__wrapped__, own_dict(v)], lambda _i: ""),
    staticmethod: lambda walk, v: walk.all("staticmethod", [v.__func__], lambda _i: ""),
    classmethod: lambda walk, v: walk.all("classmethod", [v.__func__], lambda _i: ""),
    property: lambda walk, v: walk.all("property", [v.fget, v.fset, v.fdel], lambda i: (".fget", ".fset", ".fdel")[i]),
    types.MappingProxyType: lambda walk, v: walk.of(behind(v)),
    types.CellType: lambda walk, v: walk.all("cell", [v.cell_contents] if filled(v) else [], lambda _i: ""),
    types.MemberDescriptorType: _Walk.descriptor,
    types.GetSetDescriptorType: _Walk.descriptor,
    types.WrapperDescriptorType: _Walk.descriptor,
    types.MethodDescriptorType: _Walk.descriptor,
    types.ClassMethodDescriptorType: _Walk.descriptor,
    weakref.ReferenceType: lambda walk, v: walk.all("weak", [v()], lambda _i: "()"),
    type(threading.Lock()): lambda _walk, _v: b"lock",
    type(threading.RLock()): lambda _walk, _v: b"lock",
    object: lambda _walk, _v: b"object",
    logging.Logger: lambda _walk, v: hashed("logger", v.name),
    list: _Walk.sequence,
    tuple: _Walk.sequence,
    set: _Walk.unordered,
    frozenset: _Walk.unordered,
    dict: _Walk.mapping,
    bytearray: lambda _walk, v: hashed("bytearray", bytes(v)),
    np.ndarray: _Walk.array,
    np.memmap: _Walk.array,
}  # fmt: skip


def _plain(value: Any) -> bytes:
    return hashed(type(value).__name__, f"{value:x}" if type(value) is int else repr(value))


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # an integer of more digits than Python prints
        items = value.items() if isinstance(value, dict) else value
        return " ".join(_plain(part).hex() for item in items for part in (item if type(item) is tuple else (item,)))


def _short(key: Any) -> str:
    text = repr(key) if type(key) in _PLAIN else type(key).__name__
    return text if len(text) < 40 else f"{text[:37]}..."


def _is_own_code(value: Any) -> bool:
    """A function, a class or a module that is not installed."""
    if isinstance(value, FunctionType):
        return not _from_library(value)
    if isinstance(value, type):
        return not is_library(value.__module__)
    return isinstance(value, ModuleType) and not is_library(value.__name__)


def _from_library(fn: FunctionType) -> bool:
    return is_library(fn.__module__ or "", fn.__code__.co_filename)


def _file_package(fn: FunctionType) -> str:
    """The package that a function's file belongs to, where it goes by the name of another module."""
    spec = fn.__globals__.get("__name__")
    return spec if isinstance(spec, str) else ""


def _code_bytes(code: CodeType) -> bytes:
    return hashed(code.co_code, repr(code.co_names))
