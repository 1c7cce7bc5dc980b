"""Polars' expressions as nested dicts and lists, and back, to the last bit.

In polars' binary form, which is MessagePack: its JSON has no NaN and no infinity, rounds numbers when it is read, and
takes no more than 64 operators around one another.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, TypeAlias

import msgpack

from cedar.core.errors import PipelineError, Site, user_site

if TYPE_CHECKING:
    import polars as pl

Node: TypeAlias = Any  # a dict of one key, the node's kind; or a text, the kind of one without parts

_WIDE = frozenset({"Int", "Int128", "UInt128"})  # of 16 bytes, whatever their value
_MOST_TREES = 1024
_trees: dict[int, tuple[pl.Expr, Node]] = {}  # by the id of an expression, which is held so that no other gets it


def tree(expr: pl.Expr) -> Node:
    """An expression as nested dicts and lists, which are not to be changed.

    Raises:
        PipelineError: one of many hundreds of operators around one another.

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
        if len(_trees) >= _MOST_TREES:
            _trees.clear()
        known = _trees[id(expr)] = expr, made
    return known[1]


def expression(node: Node) -> pl.Expr:
    """The expression of a node."""
    import polars as pl

    packer = msgpack.Packer(autoreset=False)
    waiting = [node]
    while waiting:  # msgpack's own way goes no deeper than 511 levels
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
    """The error for an expression that is nested beyond what Python, or MessagePack, follows."""
    return PipelineError(
        "an expression has too many operators, one around the other",
        site=site,
        fix="take several steps of with_columns, or polars.sum_horizontal() and similar",
    )


def literal_value(kind: str, given: Any) -> Any:
    """What a literal of a kind holds: integers may be bytes."""
    wide = kind in _WIDE and isinstance(given, bytes)
    return int.from_bytes(given, "big", signed=kind != "UInt128") if wide else given
