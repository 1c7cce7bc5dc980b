"""The command ``cedar``: look at pipelines, make data."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import cedar
from cedar.errors import CedarError, PipelineError, nearest

_LATER = {
    "profile": "measure a pipeline, operator by operator",
    "run": "run a pipeline and report what it did",
    "bench": "compare with the peers that are installed",
    "train": "train dlrm, moe or resilient",
}
_TARGET = "module:pipeline, or path/to/file.py:pipeline"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. What is wrong is said on stderr, without a traceback."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if "call" not in chosen:
        parser.print_help()
        return 0
    try:
        chosen.call(chosen)
    except CedarError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `cedar explain ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("cedar", description="Input pipelines for training jobs.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    explain = commands.add_parser("explain", help="print what a pipeline does, without running it")
    explain.add_argument("pipeline", metavar="PIPELINE", help=_TARGET)
    explain.set_defaults(call=_explain)

    data = commands.add_parser("data", help="make synthetic data")
    kinds = data.add_subparsers(title="data", metavar="KIND", required=True)
    clicks = kinds.add_parser("clicks", help="a click log as Parquet: sessions, lists, dense features with gaps, label")
    clicks.add_argument("out", metavar="OUT", help="a directory or URL")
    clicks.add_argument("--rows", type=int, default=500_000, help="number of rows (default: 500000)")
    clicks.add_argument("--seed", type=int, default=0, help="the same seed writes the same rows (default: 0)")
    clicks.set_defaults(call=_clicks)

    for name, what in _LATER.items():
        later = commands.add_parser(name, help=f"{what} (not there yet)")
        later.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
        later.set_defaults(call=_later, command=name)
    return parser


def _later(chosen: argparse.Namespace) -> None:
    raise CedarError(
        f"cedar {chosen.command} is not there yet", fix="explain and data work; `cedar --help` lists all commands"
    )


def _explain(chosen: argparse.Namespace) -> None:
    print(load_pipeline(chosen.pipeline).explain())


def _clicks(chosen: argparse.Namespace) -> None:
    from cedar.datasets.clicks import write_clicks

    write_clicks(chosen.out, rows=chosen.rows, seed=chosen.seed)
    print(f"wrote {chosen.rows:,} rows to {chosen.out}")


def load_pipeline(target: str) -> cedar.Pipeline:
    """The pipeline that ``target`` names: ``module:name`` or ``file.py:name``; a function of no arguments is called.

    Raises:
        PipelineError: there is no such module, file or name, or it is no pipeline.

    Example:
        >>> from cedar.cli import load_pipeline
        >>> load_pipeline("json:dumps")
        Traceback (most recent call last):
        cedar.errors.PipelineError: json:dumps cannot be called without arguments...
    """
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise PipelineError(f"{target!r} names no pipeline", fix=f"write {_TARGET}")
    module = _module(place)
    if not hasattr(module, name):
        known = [n for n in vars(module) if not n.startswith("_")]
        raise PipelineError(
            f"{place} has no {name!r}; it has {', '.join(nearest(name, known)[:12]) or 'no names'}",
            fix=f"write {_TARGET}",
        )
    found: Any = getattr(module, name)
    if callable(found) and not isinstance(found, cedar.Pipeline):
        try:
            found = found()
        except TypeError as error:
            raise PipelineError(f"{target} cannot be called without arguments: {error}") from error
    if not isinstance(found, cedar.Pipeline):
        raise PipelineError(f"{target} is a {type(found).__name__}, not a Pipeline")
    return found


def _module(place: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    except (ImportError, FileNotFoundError) as error:
        raise PipelineError(f"{place} cannot be imported: {error}", fix=f"write {_TARGET}") from error
    finally:
        sys.path.pop(0)


if __name__ == "__main__":
    sys.exit(main())
