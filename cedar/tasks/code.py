"""Code: functions whose pickled code is sent to other processes, once to each process."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any

from cedar.core import forks
from cedar.core.errors import WorkerError
from cedar.operators.base import Env
from cedar.operators.instances import Instances
from cedar.tasks.unpicklable import unsendable_code

_KEPT = 32  # maximum number of loaded values in a process
_loading = forks.Lock()  # a cluster's worker may run several threads
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
        import cloudpickle

        try:
            pickled = cloudpickle.dumps(value)
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
