"""``python -m benchmarks.peers.sizes NAME...``: MB on disk of distributions here, and of all that they require."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path


def closure(names: Iterable[str]) -> dict[str, Distribution]:
    """The distributions and what they require, by canonical name; extras are given as ``name[extra]``."""
    found: dict[str, Distribution] = {}
    todo = [(name, "") for name in names]
    seen = set()
    while todo:
        text, _ = todo.pop()
        match = re.match(r"([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?", text)
        if match is None or text in seen:
            continue
        seen.add(text)
        name, extras = re.sub(r"[-_.]+", "-", match[1]).lower(), [e.strip() for e in (match[2] or "").split(",")]
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # for another platform, or not installed
        todo += [(required, "") for required in found[name].requires or () if _applies(required, extras)]
    return found


def _applies(requirement: str, extras: list[str]) -> bool:
    """Whether a requirement holds for these extras. Other markers: what they exclude is not installed, mostly."""
    _, _, marker = requirement.partition(";")
    wanted = re.findall(r"""extra\s*==\s*['"]([^'"]+)['"]""", marker)
    return not wanted or any(extra in extras for extra in wanted)


def size(found: Distribution) -> int:
    """Bytes of the files of a distribution; compiled Python is not counted, since it may be there or not."""
    if is_editable(found):
        package = Path(str(found.locate_file(found.metadata["Name"])))
        return sum(f.stat().st_size for f in package.rglob("*") if f.is_file() and f.suffix != ".pyc")
    total = 0
    for file in found.files or ():
        path = Path(str(found.locate_file(file)))
        if path.suffix != ".pyc" and path.is_file():
            total += path.stat().st_size
    return total


def is_editable(found: Distribution) -> bool:
    """Whether the code lies elsewhere, in a checkout."""
    names = {str(file) for file in found.files or ()}
    return (
        not any(name.endswith("__init__.py") for name in names)
        and (Path(str(found.locate_file(found.metadata["Name"]))) / "__init__.py").exists()
    )


if __name__ == "__main__":
    print(json.dumps(sum(size(d) for d in closure(sys.argv[1:]).values()) / 1e6))
