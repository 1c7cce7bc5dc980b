"""What a loader hands over: the last step of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cedar.block import Block
from cedar.errors import PipelineError, Site
from cedar.operators.base import Env

FORMATS = ("numpy", "torch", "arrow")


def check_format(name: str, site: Site | None) -> None:
    """Raises PipelineError for an unknown format."""
    if name not in FORMATS:
        raise PipelineError(f"format={name!r}: it is one of {', '.join(map(repr, FORMATS))}", site=site)
    if name == "torch":
        import importlib.util

        if importlib.util.find_spec("torch") is None:
            raise PipelineError('format="torch" needs torch', site=site, fix='pip install "cedar[torch]"')


@dataclass(frozen=True)
class Finish:
    """The kernel that converts a batch's columns; its result is for the caller alone."""

    format: str

    def __call__(self, block: Block, env: Env) -> Block:
        from cedar.convert import to_arrow, to_numpy, to_torch

        if self.format == "arrow":
            columns = {name: to_arrow(column, name) for name, column in block.columns.items()}
        else:
            convert: Callable[..., Any] = to_torch if self.format == "torch" else to_numpy
            keys = block.live_keys() if block.aligned else None
            columns = {name: convert(column, name, keys) for name, column in block.columns.items()}
        return Block(columns, block.keys, block.dead, aligned=False)


def handed_over(columns: dict[str, Any], format: str, device: Any) -> Any:
    """A converted batch as the caller gets it: a dict, or an Arrow table."""
    if format == "arrow":
        import pyarrow as pa

        return pa.table(columns)
    if device is None:
        return columns
    return {name: _moved(value, device) for name, value in columns.items()}


def _moved(value: Any, device: Any) -> Any:
    if isinstance(value, dict):
        return {name: _moved(inner, device) for name, inner in value.items()}
    return value.to(device, non_blocking=True) if hasattr(value, "to") else value
