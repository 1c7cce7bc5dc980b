"""Files of one JSON object per line: what steps tell, and what a run has to remember of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cedar.trainers.common.sealed import replacing

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

OnMetrics = Callable[[Mapping[str, Any]], None]


class MetricsFile:
    """Records of steps as lines of JSON, written as they come; what is no finite number is null.

    Args:
        path: of the file; empty: none is written.
        after: records of this step and later ones are dropped: they will be written again.
        on_metrics: is given each record, too, as the line says it.
    """

    def __init__(self, path: str, after: int = 0, on_metrics: OnMetrics | None = None) -> None:
        self.path, self.on_metrics = path, on_metrics
        if path:
            kept = [line for line in read_lines(path) if line["step"] < after] if after else []
            with replacing(path) as file:
                file.writelines(json.dumps(line).encode() + b"\n" for line in kept)

    def write(self, record: DataclassInstance) -> None:
        """Append a record, which has a field ``step``."""
        line = finite(asdict(record))
        if self.path:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
        if self.on_metrics is not None:
            self.on_metrics(line)


def finite(value: Any) -> Any:
    """A value of JSON with None for what is no finite number.

    Example:
        >>> finite({"loss": math.nan, "rates": (0.5, math.inf)})
        {'loss': None, 'rates': [0.5, None]}
    """
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
