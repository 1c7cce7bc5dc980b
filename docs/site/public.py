"""What the site shows of an installed cedar, as JSON: public names and where they are defined, and the command's help.

It runs in the environment of the package, `hooks.py` in that of the site: ``python docs/site/public.py``.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import sys
from typing import Any

MODULES = (
    "cedar", "cedar.operators.image", "cedar.operators.audio", "cedar.operators.video", "cedar.operators.text",
    "cedar.operators.recsys", "cedar.preprocessing", "cedar.recommendation", "cedar.nn", "cedar.trainers",
    "cedar.testing", "cedar.simulate",
)  # fmt: skip


def names(module: str) -> list[str]:
    """Public names of a module, as tab completion offers them."""
    found = importlib.import_module(module)
    return [name for name in getattr(found, "__all__", dir(found)) if not name.startswith("_")]


def defined(module: str, name: str) -> str:
    """The dotted path at which a documentation generator finds the object."""
    held = getattr(importlib.import_module(module), name)
    if inspect.isclass(held) or inspect.isfunction(held):
        return f"{held.__module__}.{held.__qualname__}"
    return f"{module}.{name}"


def is_callable(module: str, name: str) -> bool:
    held = getattr(importlib.import_module(module), name)
    return inspect.isclass(held) or inspect.isfunction(held)


def public() -> dict[str, dict[str, str]]:
    """Module -> name -> path, of what has a signature."""
    return {
        module: {name: defined(module, name) for name in names(module) if is_callable(module, name)}
        for module in MODULES
    }


def commands(parser: argparse.ArgumentParser, path: str) -> list[dict[str, Any]]:
    """A command and those below it, with their help in 100 columns."""
    found = [{"command": path, "help": parser.format_help().rstrip()}]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            seen: set[int] = set()
            for name, made in action.choices.items():
                if id(made) not in seen:
                    seen.add(id(made))
                    found += commands(made, f"{path} {name}")
    return found


def main() -> None:
    from cedar.cli import _parser

    json.dump({"modules": public(), "commands": commands(_parser(), "cedar")}, sys.stdout)


if __name__ == "__main__":
    main()
