"""The page on the architecture names what is there."""

import importlib
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def found(name: str) -> bool:
    """A dotted name is a module, or something in one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            held: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            held = getattr(held, part, None)
        return held is not None
    return False


def test_every_name_is_there():
    names = re.findall(r"`(cedar(?:\.\w+)+)`", PAGE)
    assert len(names) > 12
    assert [name for name in names if not name.endswith(".py") and not found(name)] == []


def test_every_file_is_there():
    paths = re.findall(r"`((?:cedar|tests|benchmarks)/[\w/.]+)`", PAGE)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_a_block_takes_no_more_than_twelve_hops():
    assert re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE) == [str(hop) for hop in range(1, 13)]
