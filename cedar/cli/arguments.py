"""What all commands share: the parser, registration of commands, and argument types."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from cedar.cli.target import DATA, TARGET

if TYPE_CHECKING:
    Adder: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]
    Call: TypeAlias = Callable[[argparse.Namespace], int | None]

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
