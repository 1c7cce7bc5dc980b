"""Code: functions whose pickled code is sent to other processes, once to each process, and the calls that run it there.

If a function cannot be pickled, the error names the object inside it that is to blame, and says what to do.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import io
import platform
import sys
import time
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from cedar.control.timeline import Part
from cedar.core.block import Block
from cedar.core.errors import Site, WorkerError
from cedar.core.process import Lock
from cedar.core.stream import Rows
from cedar.datasets.base import Split
from cedar.operators.base import Env
from cedar.operators.instances import Instances
from cedar.operators.marks import READING, Trial, each_key
from cedar.tasks import clocks
from cedar.tasks.chain import KernelStep, Result, Timing, run_rows, run_steps
from cedar.tasks.reading import from_row, marked, read_split

_KEPT = 32  # maximum number of loaded values in a process
_loading = Lock()  # a cluster's worker may run several threads
_loaded: OrderedDict[str, Any] = OrderedDict()
_instances: dict[str, Instances] = {}


class UnknownCode(Exception):
    """This process received only a key, and does not have the code for it."""


@dataclass(frozen=True)
class Code:
    """Pickled functions and the values in their closures.

    Args:
        key: hash of the pickle; equal code has equal keys in all epochs and runs.
        pickled: the pickle; None if the receiver already has the code.
        path: the sender's ``sys.path``, which the receiver also searches for modules.
    """

    key: str
    pickled: bytes | None
    path: tuple[str, ...] = field(default=())

    @staticmethod
    def of(value: Any) -> Code:
        """Pickle ``value``; only objects of importable modules are pickled by name.

        Raises:
            WorkerError: something in ``value`` cannot be pickled.
        """
        try:
            pickled = _pickled(value)
        except Exception as error:
            raise unsendable_code(value, error) from error
        return Code(hashlib.blake2b(pickled, digest_size=16).hexdigest(), pickled, tuple(sys.path))

    def known(self) -> Code:
        """Return a copy with only the key, for a process that already has the code."""
        return Code(self.key, None)

    def load(self) -> Any:
        """Return the unpickled value. A process reuses the object while it is among the recently used ones.

        Raises:
            UnknownCode: only the key was sent, and this process does not have the code.
            WorkerError: a module is missing in this process, or has another version.
        """
        with _loading:
            if self.key not in _loaded:
                if self.pickled is None:
                    raise UnknownCode(self.key)
                while len(_loaded) >= _KEPT:
                    old, _ = _loaded.popitem(last=False)
                    _instances.pop(old, None)
                _loaded[self.key] = self._unpickled(self.pickled)
            _loaded.move_to_end(self.key)
            return _loaded[self.key]

    def _unpickled(self, pickled: bytes) -> Any:
        import cloudpickle

        sys.path += [folder for folder in self.path if folder not in sys.path]
        try:
            return cloudpickle.loads(pickled)
        except Exception as error:
            raise _unloadable(error) from error

    def env(self, env: Env) -> Env:
        """Return ``env`` with the instances that this process made for the code. All epochs share these instances."""
        return replace(env, instances=_instances.setdefault(self.key, env.instances))


def _pickled(value: Any) -> bytes:
    """Pickle a value; a function with ``functools.cache`` is pickled by value if it is not in an importable module."""
    import cloudpickle

    class CachePickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, functools._lru_cache_wrapper) and not _importable(obj):
                return _cached, (obj.__wrapped__, obj.cache_parameters())
            return super().reducer_override(obj)

    file = io.BytesIO()
    CachePickler(file).dump(value)
    return file.getvalue()


def _importable(cached: Any) -> bool:
    import cloudpickle

    module, name = getattr(cached, "__module__", None), getattr(cached, "__qualname__", "<locals>")
    by_value = (None, "__main__", *cloudpickle.list_registry_pickle_by_value())
    return module not in by_value and "<locals>" not in name


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _unloadable(error: Exception) -> WorkerError:
    """Return the error for code that this process cannot load, usually because a module is missing."""
    here = f"the worker ({sys.executable} on {platform.node()})"
    problem = f"a worker cannot load the pipeline's functions: {type(error).__name__}: {error}"
    fix = "a module that they use must be one that a fresh Python can import"
    if isinstance(error, ModuleNotFoundError) and error.name:
        problem = f"a worker cannot load the pipeline's functions: there is no module {error.name!r} at {here}"
        fix = (
            f"install {error.name.partition('.')[0]!r} there, or add its folder to PYTHONPATH; a module of your own "
            f"can travel with the functions: cloudpickle.register_pickle_by_value({error.name})"
        )
    elif isinstance(error, (AttributeError, ImportError)):
        fix = f"the module at {here} may be another version than yours: install the same one"
    return WorkerError(problem, done="nothing was run there", fix=fix)


# ---- the object that cannot be pickled -------------------------------------------------------------------------------

_MAX_DEPTH = 24  # maximum levels of nested objects to search
_MAX_PARTS = 256  # maximum parts of one container to try
_CONTAINERS = (list, tuple, dict, set, frozenset)
_PLAIN = (str, bytes, int, float, complex, bool, type(None))

_IN_INIT = "create it in the __init__ of a class and pass the class to map: each worker creates one instance"
_ADVICE = (  # substrings of a type's name, and advice for such objects
    (("Lock", "Condition", "Semaphore", "Event", "local"), "locks and threads belong to one process: " + _IN_INIT),
    (("generator", "coroutine", "async_generator"), "a generator can be used only once: pass a list or a function"),
    (("IO", "Buffered", "TextIO", "FileIO"), "keep the path, and open the file where it is read; or " + _IN_INIT),
    (("socket", "SSL", "Connection", "Cursor", "Client", "Session", "Engine"), "connections stay here: " + _IN_INIT),
    (("module",), "import the module inside the function"),
)


@dataclass(frozen=True)
class Culprit:
    """An object that cannot be pickled.

    Args:
        path: the path to the object, such as ``decode.<closure conn>`` or ``Tokenizer._lock``.
        kind: the object's type, such as ``sqlite3.Connection``.
        label: the label of the operator that contains it.
        site: the user's line that built that operator.
    """

    path: str
    kind: str
    label: str = ""
    site: Site | None = None


def unsendable_code(value: Any, error: Exception) -> WorkerError:
    """Return the error for functions that cannot be pickled. It names the object to blame, if one is found."""
    offender = culprit(value)
    if offender is None:
        return WorkerError(
            f"a function of the pipeline cannot be sent to another process: {error}",
            done="nothing was run",
            fix='make what it closes over picklable, or use executor="threads"',
        )
    where = f"{offender.label}: " if offender.label else ""
    name = offender.kind.rpartition(".")[2]
    advice = next((advice for words, advice in _ADVICE if any(word in name for word in words)), _IN_INIT)
    return WorkerError(
        f"{where}{offender.path} cannot be sent to another process: it is a {offender.kind} ({error})",
        site=offender.site,
        done="nothing was run",
        fix=f'{advice}; or use executor="threads"',
    )


def culprit(value: Any) -> Culprit | None:
    """Return the innermost object in ``value`` that cannot be pickled; None if ``value`` can be pickled.

    Examples:
        >>> import threading
        >>> def decode(x, lock=threading.Lock()):
        ...     return x
        >>> culprit([decode]).path
        'decode.<default 0>'
    """
    return None if _pickles(value) else _inside(value, "", Culprit("", ""), _MAX_DEPTH, set())


def _inside(value: Any, path: str, above: Culprit, depth: int, seen: set[int]) -> Culprit:
    """Return the culprit in a value that cannot be pickled: one of its parts, or else the value itself.

    Args:
        value: the value, which cannot be pickled.
        path: the path to the value from the user's function or object. Inside cedar's objects, only the last step.
        above: has the label and site of the operator that contains the value.
        depth: how many more levels to search.
        seen: ids of the objects that contain the value.
    """
    kind = type(value)
    label, site = getattr(value, "label", None), getattr(value, "site", None)
    from_cedar = kind.__module__.partition(".")[0] == "cedar"
    if from_cedar and isinstance(site, Site) and isinstance(label, str):  # a step has the user's line
        above = Culprit("", "", label, site)
    path = path or _name(value)
    for step, part in _parts(value):
        if id(part) not in seen and not isinstance(part, _PLAIN) and depth and not _pickles(part):
            if from_cedar or not path:
                inner = step.lstrip(".") if isinstance(part, _CONTAINERS) and step.startswith(".") else ""
            else:
                inner = path + step
            return _inside(part, inner, above, depth - 1, seen | {id(value)})
    named = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return Culprit(path or _name(value) or kind.__name__, named, above.label, above.site)


def _name(value: Any) -> str:
    if isinstance(value, (types.FunctionType, types.MethodType, type)):
        return value.__qualname__.rpartition("<locals>.")[2]
    return "" if isinstance(value, _CONTAINERS) else type(value).__qualname__.rpartition("<locals>.")[2]


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts that a pickle of the value contains, each with its path step."""
    if isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield ".func", value.func
        yield from ((f".args[{i}]", part) for i, part in enumerate(value.args))
        yield from ((f".keywords[{name!r}]", part) for name, part in value.keywords.items())
    elif isinstance(value, type):
        yield from ((f".{name}", getattr(part, "__func__", part)) for name, part in vars(value).items())
    elif isinstance(value, Mapping):
        for i, (key, part) in enumerate(value.items()):
            if i == _MAX_PARTS:
                return
            yield f"[{key!r}]", part
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"[{i}]", part) for i, part in zip(range(_MAX_PARTS), value, strict=False))
    else:
        yield from _state(value)


def _parts_of_function(fn: types.FunctionType) -> Iterator[tuple[str, Any]]:
    from cedar.core.references import nested  # workers do not need this module

    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            yield f".<closure {name}>", cell.cell_contents
        except ValueError:  # an empty cell
            continue
    steps = chain.from_iterable(map(dis.get_instructions, nested(fn.__code__)))
    for name in dict.fromkeys(step.argval for step in steps if step.opname == "LOAD_GLOBAL"):
        if name in fn.__globals__:
            yield f".<global {name}>", fn.__globals__[name]
    yield from ((f".<default {i}>", part) for i, part in enumerate(fn.__defaults__ or ()))
    yield from ((f".<default {name}>", part) for name, part in (fn.__kwdefaults__ or {}).items())
    yield from ((f".{name}", part) for name, part in vars(fn).items())


def _state(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of an object's pickle: the parts of ``__getstate__()`` if it has one, else its attributes."""
    from cedar.core.references import attributes_of

    own = getattr(type(value), "__getstate__", None)
    state: Any = None
    if own is not None and own is not getattr(object, "__getstate__", None):
        try:
            state = own(value)
        except Exception:  # noqa: BLE001 - user code failed: use the attributes instead
            state = None
    parts = state if isinstance(state, dict) else attributes_of(value)
    yield from ((f".{name}", part) for name, part in parts.items())
    if hasattr(value, "__wrapped__"):
        yield ".__wrapped__", value.__wrapped__


def _pickles(value: Any) -> bool:
    try:
        _pickled(value)
    except Exception:  # noqa: BLE001 - pickling an object may raise anything
        return False
    return True


# ---- what workers run ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gathering:
    """Rows that are gathered when they are pickled, which the sending thread does instead of the loader's loop."""

    rows: Rows

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.rows.blocks

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.rows.gather(),)


def _itself(block: Block) -> Block:
    return block


@dataclass(frozen=True)
class Survived:
    """The result of a trial whose process survived."""


def run_shipped(code: Code, env: Env, block: Any) -> Result | Survived:
    """Run a program, or the trial of ``env.marks``, on a block.

    Unpickling has turned a ``Gathering`` into a block, unless nothing was pickled.
    """
    began = time.perf_counter()
    block = block.rows.gather() if isinstance(block, Gathering) else block
    (program,) = code.load()
    env = code.env(env)
    if env.marks is not None and env.marks.trial is not None:
        return run_trial(program.steps, [block], env, env.marks.trial)
    return _with_shipping(run_rows, began, program, block, env)


def read_shipped(code: Code, env: Env, split: Split, lap: int, first: int) -> Result | Survived:
    """Read a split, and run a program, or the trial of ``env.marks``, on its blocks. A trial uses no cache."""
    began = time.perf_counter()
    program, reader = code.load()
    env = code.env(env)
    if env.marks is None or env.marks.trial is None:
        return _with_shipping(read_split, began, program, reader, split, lap, env, first)
    plain, trial = reader.plain, env.marks.trial
    if trial.alone and plain.source.cuts_splits:
        row = trial.suspect.key[2]  # the source can read this row without reading other rows
        split = replace(split, start=row, stop=row + 1, rows=1)
    blocks = marked(plain.blocks(split, lap), plain, split, first, env.marks)
    return run_trial((*reader.steps, *program.steps), (from_row(block, first) for block in blocks), env, trial)


def call_shipped(code: Code) -> Any:
    """Call a function that was shipped together with its arguments."""
    fn, args, kwargs = code.load()
    return fn(*args, **kwargs)


def load_shipped(code: Code) -> None:
    """Load code and its imports ahead of time, so that its first task starts without delay."""
    code.load()


def same(value: Any) -> Any:
    """Return the argument; used to measure the round trip to a worker."""
    return value


def _with_shipping(run: Callable[..., Result], began: float, *args: Any) -> Result:
    """Run a task, and add the time to receive it and to send the previous result to its timing."""
    began -= clocks.shipped()
    loading: list[tuple[Part, float, float]] = [(("ship", ()), time.perf_counter() - began, 0.0)]
    clocks.separate_preparation(loading, began)
    result = run(*args)
    result.timing.parts += loading
    return result


def run_trial(steps: Sequence[KernelStep], blocks: Iterable[Block], env: Env, trial: Trial) -> Survived:
    """Run only a trial's suspect row, or its block, up to the operator where a worker died.

    ``SupervisedTask`` decides from the results of trials, each in a fresh process, which row or block is to blame.
    """
    operator, suspect, env = trial.suspect.operator, trial.suspect.key, replace(env, watch="")
    if operator == READING:  # the worker died while reading
        steps = ()
    else:
        last = next((i for i, step in enumerate(steps) if operator in step.operators), len(steps) - 1)
        steps = steps[: last + 1]
    with suppress(Exception):  # a trial detects only crashes, not errors
        for block in blocks:
            keys = each_key(block.keys)
            slots = [slot for slot, key in enumerate(keys) if key == suspect]
            slots = slots or [slot for slot, key in enumerate(keys) if key[:3] == suspect[:3]]  # an operator made it
            if slots:
                rows = block.take(np.array(slots, dtype=np.int64)) if trial.alone else block
                run_steps(steps, rows, env, Timing())
    return Survived()
