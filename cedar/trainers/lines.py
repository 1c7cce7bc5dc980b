"""Files of one JSON object per line: what steps tell, and what a run has to remember of them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class MetricsFile:
    """Records of steps as lines of JSON, for rank 0.

    Args:
        path: of the file.
        after: records of this step and later ones are dropped: they will be written again.
    """

    def __init__(self, path: str, after: int = 0) -> None:
        self.path = path
        kept = [line for line in read_lines(path) if line["step"] < after] if after else []
        temporary = f"{path}.tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in kept)
        os.replace(temporary, path)

    def write(self, record: DataclassInstance) -> None:
        """Append a record, which has a field ``step``."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")


def read_lines(path: str) -> list[dict[str, Any]]:
    """The lines of a file of JSON; the last one is left out if it was cut off, all where there is no file."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    found: list[dict[str, Any]] = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return found
