"""Polars expressions as nested dicts and lists: lossless conversion and back, and what an expression reads.

The conversion uses polars' binary format, which is MessagePack. Polars' JSON format is not suitable: it has no NaN or
infinity, rounds numbers when it is read, and allows at most 64 nested operators.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import msgpack

from cedar.core.errors import PipelineError, Site, user_site

if TYPE_CHECKING:
    import polars as pl

Json: TypeAlias = Any  # a dict with the node's kind as its only key, or a string if the node has no parts

_WIDE = frozenset({"Int", "Int128", "UInt128"})  # encoded as 16 bytes, regardless of the value
_OPAQUE = frozenset({"Literal", "StructExpr"})  # nodes that contain no expressions
_MAX_TREES = 1024
_trees: dict[int, tuple[pl.Expr, Json]] = {}  # by id(expr); a reference to the expression keeps the id unique


def tree(expr: pl.Expr) -> Json:
    """Return an expression as nested dicts and lists, which callers must not change.

    Raises:
        PipelineError: the expression nests many hundreds of operators.

    Examples:
        >>> import polars as pl
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


def expression(node: Json) -> pl.Expr:
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


def kind_of(node: Json) -> tuple[str, Json]:
    """Return the kind and the parameters of a node, which is a string (``"Len"``) or a dict (``{"Cast": {...}}``)."""
    if isinstance(node, dict) and len(node) == 1:
        return next(iter(node.items()))
    return str(node), None


def find(node: Json, *kinds: str) -> Iterator[Json]:
    """Yield the parameters of each node of these kinds in an expression, except in struct functions and literals."""
    waiting: list[tuple[str, Json]] = [("", node)]
    while waiting:  # not recursive, because expressions nest deeply
        name, part = waiting.pop()
        if name in kinds:
            yield part
        if name in _OPAQUE:
            continue
        if isinstance(part, dict):
            waiting += reversed(part.items())
        elif isinstance(part, list):
            waiting += [("", child) for child in reversed(part)]


def rewritten(node: Json, change: Callable[[Json], Json | None]) -> Json:
    """Return the node with some nodes replaced: ``change`` returns a replacement, or None to look inside the node."""
    changed = change(node)
    if changed is not None:
        return changed
    if isinstance(node, list):
        return [rewritten(part, change) for part in node]
    if isinstance(node, dict):
        return {name: part if name in _OPAQUE else rewritten(part, change) for name, part in node.items()}
    return node


# ---- what an expression reads ----------------------------------------------------------------------------------------


def columns_of(expr: pl.Expr) -> frozenset[str] | None:
    """Return the columns that an expression reads; None if they depend on the schema (``col("^a.*$")``).

    Examples:
        >>> import polars as pl
        >>> sorted(columns_of(pl.col("a") + pl.col("b")))
        ['a', 'b']
    """
    return None if any(True for _ in find(tree(expr), "Selector")) else named_columns(expr)


def named_columns(expr: pl.Expr) -> frozenset[str]:
    """Return the columns that an expression reads, once ``resolve_selectors`` has resolved its selectors."""
    node, named = tree(expr), set(expr.meta.root_names())
    if "" in named and any(True for _ in find(node, "Eval")):  # inside a list, col("") is an item
        named.discard("")
    for selector in find(node, "Selector"):
        named.update(selector["ByName"]["names"])
    return frozenset(named)


def fields_of(expr: pl.Expr) -> dict[str, frozenset[tuple[str, ...]] | None]:
    """Return the struct fields that an expression reads, as paths by column; None means the whole column.

    Examples:
        >>> import polars as pl
        >>> read = fields_of(pl.col("a").struct.field("b").struct.field("c") + pl.col("d"))
        >>> read["a"], read["d"]
        (frozenset({('b', 'c')}), None)
    """
    fields: dict[str, frozenset[tuple[str, ...]] | None] = {}
    for name, path in _paths(tree(expr)):
        known = fields.get(name, frozenset[tuple[str, ...]]())
        fields[name] = known | {path} if path and known is not None else None
    return fields


def _paths(node: Json, inside: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the columns in an expression, each with the path of the struct field that the expression extracts."""
    if isinstance(node, list):
        for child in node:
            yield from _paths(child)
    if not isinstance(node, dict):
        return
    for key, child in node.items():
        if key == "Column":
            yield child, inside
        elif key == "Function" and (field := _field(child)) is not None:
            yield from _paths(child["input"][0], (field, *inside))
        elif key not in _OPAQUE:
            yield from _paths(child)


def _field(body: Json) -> str | None:
    """Return the name of the struct field that a function node extracts; None for other functions."""
    kind, inner = kind_of(body["function"])
    part, name = kind_of(inner) if kind == "StructExpr" else ("", None)
    return name if part == "FieldByName" and isinstance(name, str) else None


def selects_by_type(expr: pl.Expr) -> bool:
    """Return True if a selector in the expression picks columns by type."""
    return any(True for chosen in find(tree(expr), "Selector") for _ in find(chosen, "ByDType"))


def resolve_selectors(expr: pl.Expr, frame: pl.LazyFrame) -> pl.Expr:
    """Return the expression with each selector replaced by the names that it selects in ``frame``."""

    def named(node: Json) -> Json | None:
        if kind_of(node)[0] != "Selector":
            return None
        names = frame.select(expression(node)).collect_schema().names()
        return {"Selector": {"ByName": {"names": names, "strict": True}}}

    return expression(rewritten(tree(expr), named))


def node_per_column(node: Json) -> list[Json]:
    """Return one copy of the node for each column that its selectors name (see ``resolve_selectors``)."""
    chosen = [selector["ByName"]["names"] for selector in find(node, "Selector")]
    copies = []
    for number in range(max(map(len, chosen), default=0) if all(chosen) else 0):

        def column(part: Json, number: int = number) -> Json | None:
            kind, body = kind_of(part)
            return (
                {"Column": body["ByName"]["names"][number % len(body["ByName"]["names"])]}
                if kind == "Selector"
                else None
            )

        copies.append(rewritten(node, column))
    return copies


def format_expr(expr: pl.Expr, limit: int = 80) -> str:
    """Format an expression on one line, truncated to ``limit`` characters."""
    line = re.sub(r"\bdyn (int|float|str): ", "", " ".join(str(expr).split()))
    return line if len(line) <= limit else line[: limit - 3] + "..."
