"""Loads pipelines by name: ``module:name`` or ``file.py:name``."""

from __future__ import annotations

import glob
import importlib
import importlib.util
import inspect
import os
import sys
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

import cedar
from cedar.core.errors import CedarError, PipelineError, nearest

TARGET = "module:pipeline, or path/to/file.py:pipeline"
DATA = f"a file, folder, glob or URL of data, or {TARGET}"


def load_data(target: str) -> cedar.Pipeline:
    """Return a pipeline that reads data files, chosen by their extension, or the pipeline that ``target`` names.

    Raises:
        CedarError: there is no such file or pipeline, or the extension is unknown.
    """
    if "://" in target or glob.has_magic(target) or (os.path.exists(target) and not target.endswith(".py")):
        return cedar.read(target)
    if ":" in target or target.endswith(".py"):
        return load_pipeline(target)
    folder, name = os.path.split(target)
    near = get_close_matches(name, os.listdir(folder or ".") if os.path.isdir(folder or ".") else [], 1)
    hint = f"; did you mean {os.path.join(folder, near[0])}?" if near else ""
    raise PipelineError(f"{target}: there is no such file or folder{hint}", fix=f"give {DATA}")


def load_pipeline(target: str) -> cedar.Pipeline:
    """Return the pipeline that ``module:name`` or ``file.py:name`` names; a function is called without arguments.

    Raises:
        PipelineError: there is no such module, file or name, it raises, or it is not a pipeline.

    Examples:
        >>> from cedar.cli import load_pipeline
        >>> load_pipeline("json:dumps")
        Traceback (most recent call last):
        cedar.PipelineError: json:dumps cannot be called without arguments...
    """
    named = load_name(target)
    if callable(named) and not isinstance(named, cedar.Pipeline):
        named = _call(named, target)
    if not isinstance(named, cedar.Pipeline):
        raise PipelineError(f"{target} is a {type(named).__name__}, not a Pipeline")
    return named


def load_name(target: str) -> Any:
    """Return the object that ``module:name`` or ``file.py:name`` names.

    Raises:
        PipelineError: there is no such module, file or name.
    """
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise PipelineError(f"{target!r} does not name a pipeline", fix=f"write {TARGET}")
    module = _import_module(place)
    if not hasattr(module, name):
        known = [n for n in vars(module) if not n.startswith("_")]
        raise PipelineError(
            f"{place} has no {name!r}; it has {', '.join(nearest(name, known)[:12]) or 'no names'}",
            fix=f"write {TARGET}",
        )
    return getattr(module, name)


def _call(make: Any, target: str) -> Any:
    try:
        inspect.signature(make).bind()
    except (TypeError, ValueError) as error:
        raise PipelineError(f"{target} cannot be called without arguments: {error}") from error
    try:
        return make()
    except CedarError:
        raise
    except (Exception, SystemExit) as error:
        raise PipelineError(f"{target}() raised {_describe_error(error)}") from error


def _import_module(place: str) -> ModuleType:
    file = Path(place) if place.endswith(".py") else None
    folders = [os.getcwd()] if file is None else [os.getcwd(), str(file.resolve().parent)]
    for folder in folders:  # as `python -m` and `python file.py` do; they stay, for later imports
        if folder not in sys.path:
            sys.path.insert(0, folder)
    try:
        return importlib.import_module(place) if file is None else _import_file(file)
    except CedarError:
        raise
    except (ImportError, FileNotFoundError) as error:
        raise PipelineError(f"{place} cannot be imported: {error}", fix=f"write {TARGET}") from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise PipelineError(f"{place} cannot be imported: {_describe_error(error)}") from error


def _import_file(file: Path) -> ModuleType:
    """Import a file as a module. Its functions and classes are pickled by value, since workers cannot import it."""
    import cloudpickle

    name = f"cedar_target_{file.stem}"
    while name in sys.modules:
        name += "_"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look up the module in sys.modules
    cloudpickle.register_pickle_by_value(module)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        cloudpickle.unregister_pickle_by_value(module)
        del sys.modules[name]
        raise
    return module


def _describe_error(error: BaseException) -> str:
    """Describe an exception and the line that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})" if trace is not None else ""
    return f"{type(error).__name__}: {error}" + ("" if isinstance(error, SyntaxError) else where)
