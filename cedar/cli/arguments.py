"""What all commands share: how one is registered, and what its arguments may be."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from cedar.cli.target import TARGET

if TYPE_CHECKING:
    Adder: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]
    Call: TypeAlias = Callable[[argparse.Namespace], int | None]


def command(
    adder: Adder, name: str, summary: str, call: Call, examples: Sequence[str] = (), about: str = ""
) -> argparse.ArgumentParser:
    """A command, with examples below its help. ``about``: what it does, in place of ``summary`` as a sentence."""
    made = adder.add_parser(
        name, help=summary, description=about or f"{summary[0].upper()}{summary[1:]}.",
        epilog="examples:\n" + "\n".join(f"  cedar {name} {example}" for example in examples) if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.set_defaults(call=call)
    return made


def on_pipeline(adder: Adder, name: str, summary: str, call: Call, examples: Sequence[str]) -> argparse.ArgumentParser:
    """A command on a pipeline."""
    made = command(adder, name, summary, call, examples)
    made.add_argument("pipeline", metavar="PIPELINE", help=TARGET)
    return made


def index(text: str) -> int:
    """A whole number from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def count(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def seconds(text: str) -> float:
    """A finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return number


def names(text: str) -> list[str]:
    """Those of ``A,B``."""
    return [name.strip() for name in text.split(",") if name.strip()]
