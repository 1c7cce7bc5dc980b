"""The command ``cedar``: inspects, measures and runs pipelines, generates data, and trains models."""

from __future__ import annotations

import argparse
import os
import sys
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence

import cedar
from cedar.cli import commands, data, doctor, top, train
from cedar.cli.arguments import Parser, load_pipeline
from cedar.core.errors import CedarError

__all__ = ["load_pipeline", "main"]

GROUPS = {
    "look": ("head", "schema", "count", "describe", "inspect", "explain"),
    "run": ("run", "profile", "warm", "service", "bench"),
    "debug": ("doctor", "top", "trace", "view", "merge", "locate", "where"),
    "data": ("data",),
    "train": ("train", "simulate"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. Errors are printed to stderr without a traceback."""
    parser = _parser()
    chosen, rest = parser.parse_known_args(arguments)
    if "changes" in chosen:  # argparse itself only accepts KEY=VALUE arguments before the first option
        chosen.changes += [each for each in rest if "=" in each and not each.startswith("-")]
        rest = [each for each in rest if each not in chosen.changes]
    if rest:
        chosen.parser.error(f"unrecognized arguments: {' '.join(rest)}")
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


def _parser() -> Parser:
    parser = Parser("cedar", usage="cedar [-h] [--version] COMMAND ...", formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"cedar {cedar.__version__}")
    parser.set_defaults(parser=parser)
    adder = parser.add_subparsers(prog="cedar", metavar="COMMAND", help=argparse.SUPPRESS)
    for module in (commands, top, data, train, doctor):
        module.add(adder)
    summaries = {action.dest: action.help for action in adder._choices_actions}
    groups = [f"{group}:\n" + "".join(f"  {n:<9} {summaries[n]}\n" for n in names) for group, names in GROUPS.items()]
    parser.description = "Input pipelines for machine-learning training.\n\n" + "\n".join(groups)
    parser.epilog = "`cedar COMMAND --help` shows the options of a command, and examples."
    return parser
