"""Code: functions on their way to other processes, by value, sent once to each."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any

from cedar.core import forks
from cedar.core.errors import WorkerError
from cedar.operators.base import Env, Instances
from cedar.tasks.unpicklable import unsendable_code

_KEPT = 32  # loaded at a time in a process
_loading = forks.Lock()  # a worker of a cluster may run several threads
_loaded: OrderedDict[str, Any] = OrderedDict()
_instances: dict[str, Instances] = {}


class UnknownCode(Exception):
    """This process received only a key, and does not have the code (any more)."""


@dataclass(frozen=True)
class Code:
    """Functions and what they close over, pickled.

    Args:
        key: equal for equal code, whatever the epoch and the run.
        pickled: None if the process at the other end has it.
        path: where modules are looked for.
    """

    key: str
    pickled: bytes | None
    path: tuple[str, ...] = field(default=())

    @staticmethod
    def of(value: Any) -> Code:
        """``value`` by value, as far as it is not from a module that can be imported.

        Raises:
            WorkerError: something in it cannot be pickled.
        """
        import cloudpickle

        try:
            pickled = cloudpickle.dumps(value)
        except Exception as error:
            raise unsendable_code(value, error) from error
        return Code(hashlib.blake2b(pickled, digest_size=16).hexdigest(), pickled, tuple(sys.path))

    def known(self) -> Code:
        """The key alone."""
        return Code(self.key, None)

    def load(self) -> Any:
        """The value, one object in this process as long as it is used.

        Raises:
            UnknownCode: there is only a key, and nothing sent the rest.
            WorkerError: a module is missing here, or its version is another.
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
        """``env`` with the one set of instances that belongs to this code in this process, whatever the epoch."""
        return replace(env, instances=_instances.setdefault(self.key, env.instances))


def _unloadable(error: Exception) -> WorkerError:
    """The error for code that this process cannot take: mostly it has not what the code is made of."""
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
