"""Lossless conversion of polars expressions to nested dicts and lists, and back.

The conversion uses polars' binary format, which is MessagePack. Polars' JSON format is not suitable: it has no NaN or
infinity, rounds numbers when it is read, and allows at most 64 nested operators.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, TypeAlias

import msgpack

from cedar.core.errors import PipelineError, Site, user_site

if TYPE_CHECKING:
    import polars as pl

Node: TypeAlias = Any  # a dict with the node's kind as its only key, or a string if the node has no parts

_WIDE = frozenset({"Int", "Int128", "UInt128"})  # encoded as 16 bytes, regardless of the value
_MAX_TREES = 1024
_trees: dict[int, tuple[pl.Expr, Node]] = {}  # by id(expr); a reference to the expression keeps the id unique


def tree(expr: pl.Expr) -> Node:
    """Return an expression as nested dicts and lists, which callers must not change.

    Raises:
        PipelineError: the expression nests many hundreds of operators.

    Examples:
        >>> import polars as pl
        >>> from cedar.operators.expression_nodes import tree
        >>> tree(pl.col("a").alias("b"))
        {'Alias': [{'Column': 'a'}, 'b']}
    """
    known = _trees.get(id(expr))
    if known is None or known[0] is not expr:
        try:
            made = msgpack.unpackb(expr.meta.serialize(format="binary"))
        except msgpack.StackError as error:
            raise too_deep(user_site()) from error
        if len(_trees) >= _MAX_TREES:
            _trees.clear()
        known = _trees[id(expr)] = expr, made
    return known[1]


def expression(node: Node) -> pl.Expr:
    """Return the polars expression of a node."""
    import polars as pl

    packer = msgpack.Packer(autoreset=False)
    waiting = [node]
    while waiting:  # not recursive, because ``msgpack.packb`` allows at most 511 levels
        part = waiting.pop()
        if isinstance(part, dict):
            packer.pack_map_header(len(part))
            waiting += [side for item in reversed(part.items()) for side in reversed(item)]
        elif isinstance(part, list):
            packer.pack_array_header(len(part))
            waiting += reversed(part)
        else:
            packer.pack(part)
    return pl.Expr.deserialize(io.BytesIO(packer.bytes()), format="binary")


def too_deep(site: Site | None) -> PipelineError:
    """Return the error for an expression that is nested too deeply for Python or MessagePack."""
    return PipelineError(
        "an expression has too many operators, one around the other",
        site=site,
        fix="take several steps of with_columns, or polars.sum_horizontal() and similar",
    )


def literal_value(kind: str, given: Any) -> Any:
    """Return the value of a literal, decoding wide integers from bytes."""
    wide = kind in _WIDE and isinstance(given, bytes)
    return int.from_bytes(given, "big", signed=kind != "UInt128") if wide else given
