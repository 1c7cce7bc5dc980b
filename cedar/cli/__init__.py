"""The command ``cedar``: look at pipelines, measure them, run them, make data."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import cedar
from cedar.cli import bench, commands, data, service, simulate, top, traces, train
from cedar.cli.target import load_pipeline
from cedar.core.errors import CedarError

__all__ = ["load_pipeline", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. What is wrong is said on stderr, without a traceback."""
    parser = _parser()
    chosen, rest = parser.parse_known_args(arguments)
    if "changes" in chosen:  # KEY=VALUE may stand on both sides of an option; argparse takes only the first run of them
        chosen.changes += [each for each in rest if "=" in each and not each.startswith("-")]
        rest = [each for each in rest if each not in chosen.changes]
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if "call" not in chosen:
        parser.print_help()
        return 0
    try:
        return int(chosen.call(chosen) or 0)
    except CedarError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `cedar explain ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("cedar", description="Input pipelines for training jobs.")
    parser.add_argument("--version", action="version", version=f"cedar {cedar.__version__}")
    adder = parser.add_subparsers(title="commands", metavar="COMMAND")
    for module in (commands, top, traces, data, train, simulate, service, bench):
        module.add(adder)
    return parser
