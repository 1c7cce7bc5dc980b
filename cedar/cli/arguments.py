"""What all commands share: the parser, registration of commands, argument types, and the pipelines that they name."""

from __future__ import annotations

import argparse
import glob
import importlib
import importlib.util
import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import cedar
from cedar.core.errors import CedarError, PipelineError, nearest

if TYPE_CHECKING:
    Adder: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]
    Call: TypeAlias = Callable[[argparse.Namespace], int | None]


TARGET = "module:pipeline, or path/to/file.py:pipeline"
DATA = f"a file, folder, glob or URL of data, or {TARGET}"
_CHOICE = re.compile(r"argument (.*): invalid choice: '(.*)' \(choose from (.*)\)", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors suggest the most similar option or command."""

    given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Store the arguments, because ``error`` needs them, and parse them."""
        self.given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the usage, the problem, and the most similar option or command; exit with status 2."""
        if found := _CHOICE.match(message):
            where, given, choices = found.groups()
            message = f"{where}: there is no {given!r}"
            near = get_close_matches(given, re.findall(r"[\w.:-]+", choices), 1)
        else:
            known = [option for action in self._actions for option in action.option_strings]
            options = [each.partition("=")[0] for each in self.given if each[:2] == "--" != each]
            mistyped = [each for each in options if not any(option.startswith(each) for option in known)]
            near = get_close_matches(mistyped[0], known, 1) if mistyped else []
        message += f"; did you mean {near[0]}?" if near else ""
        super().error(f"{message}\n  `{self.prog} --help` lists what there is")


def command(
    adder: Adder, name: str, summary: str, call: Call, examples: Sequence[str] = (), about: str = ""
) -> argparse.ArgumentParser:
    """Register a command whose help ends with examples. ``about``: its description; by default ``summary``."""
    made = adder.add_parser(
        name, help=summary, description=about or f"{summary[0].upper()}{summary[1:]}.",
        epilog="examples:\n" + "\n".join(f"  cedar {name} {example}" for example in examples) if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.set_defaults(call=call, parser=made)
    return made


def on_pipeline(adder: Adder, name: str, summary: str, call: Call, examples: Sequence[str]) -> argparse.ArgumentParser:
    """Register a command whose argument is a pipeline."""
    made = command(adder, name, summary, call, examples)
    made.add_argument("pipeline", metavar="PIPELINE", help=TARGET)
    return made


def on_data(adder: Adder, name: str, summary: str, call: Call, options: str = "") -> argparse.ArgumentParser:
    """Register a command whose argument is data files or a pipeline. ``options``: appended to each example."""
    examples = [f"{target}{options}" for target in ("clicks.parquet", "'logs/*.jsonl'", "my_project.data:train")]
    made = command(adder, name, summary, call, examples)
    made.add_argument("data", metavar="FILE|PIPELINE", help=DATA)
    return made


def index(text: str) -> int:
    """Parse an integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be an integer of at least 0, not {text!r}")
    return int(text)


def count(text: str) -> int:
    """Parse an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer above 0, not {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """Parse a finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, not {text!r}")
    return number


def names(text: str) -> list[str]:
    """Split ``A,B`` into names."""
    return [name.strip() for name in text.split(",") if name.strip()]


def load_data(target: str) -> cedar.Pipeline:
    """Return a pipeline that reads data files, chosen by their extension, or the pipeline that ``target`` names.

    Raises:
        CedarError: the file or pipeline does not exist, or the extension is unknown.
    """
    if "://" in target or glob.has_magic(target) or (os.path.exists(target) and not target.endswith(".py")):
        return cedar.read(target)
    if ":" in target or target.endswith(".py"):
        return load_pipeline(target)
    folder, name = os.path.split(target)
    near = get_close_matches(name, os.listdir(folder or ".") if os.path.isdir(folder or ".") else [], 1)
    hint = f"; did you mean {os.path.join(folder, near[0])}?" if near else ""
    raise PipelineError(f"{target}: no such file or folder{hint}", fix=f"give {DATA}")


def load_pipeline(target: str) -> cedar.Pipeline:
    """Return the pipeline that ``module:name`` or ``file.py:name`` names; a function is called without arguments.

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
    """Return the object that ``module:name`` or ``file.py:name`` names."""
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
