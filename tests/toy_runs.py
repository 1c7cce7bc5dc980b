"""Run a loader and hold on to what it gave, in a form that can be compared bit by bit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

import cedar

Batch = dict[str, Any]
State = dict[str, Any]


def plain(value: Any) -> Any:
    """A column (or a row's value) as something that compares bit by bit: type, shape and bytes."""
    if hasattr(value, "to_list"):  # jagged
        return ["jagged", plain(value.values), plain(value.offsets)]
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, np.ndarray):
        body = value.tolist() if value.dtype == object else value.tobytes().hex()
        return [str(value.dtype), list(value.shape), body]
    return [type(value).__name__, repr(value)]


def values(column: Any) -> list[Any]:
    """A column's values, row by row."""
    return column.to_list() if hasattr(column, "to_list") else column.tolist()  # type: ignore[no-any-return]


def run(loader: cedar.Loader, stop: int | None = None) -> tuple[list[Batch], State]:
    """The batches of one epoch, or the first ``stop`` of them, and the state after the last."""
    out: list[Batch] = []
    if stop == 0:
        return out, saved(loader)
    for batch in loader:
        out.append({name: values(column) for name, column in batch.items()})
        if stop is not None and len(out) >= stop:
            break
    return out, saved(loader)


def saved(loader: cedar.Loader) -> State:
    """The state as it comes back from a file."""
    return json.loads(json.dumps(loader.state_dict()))  # type: ignore[no-any-return]


def rows_of(batches: Sequence[Batch], valid: bool = False) -> Counter[str]:
    """How often each row is there; with ``valid``, rows that are padding are left out."""
    rows = (dict(zip(b, row, strict=True)) for b in batches for row in zip(*b.values(), strict=True))
    return Counter(json.dumps(row, sort_keys=True) for row in rows if not valid or row["valid"])


def batches_of(batches: Sequence[Batch]) -> Counter[str]:
    """How often each batch is there; padding alone is left out."""
    whole = (b for b in batches if "valid" not in b or any(b["valid"]))
    return Counter(json.dumps(b, sort_keys=True) for b in whole)
