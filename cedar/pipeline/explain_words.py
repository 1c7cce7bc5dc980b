"""Operator labels as the user wrote them, for printed plans."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Mapping
from contextlib import suppress

from cedar.core.redact import redact
from cedar.plan.graph import Node, walk


def as_written(root: Node, labels: Mapping[int, str]) -> dict[int, str]:
    """Return a label for each node, by node id. Expressions appear as in the user's source file, if it can be read."""
    return {id(node): _label_as_written(node, labels[id(node)]) for node in walk(root)}


def _label_as_written(node: Node, label: str) -> str:
    if node.site is None or "col(" not in label:
        return label
    source, calls = _parse_calls(node.site.file)
    matches = calls.get((node.site.line, node.operator.name), [])
    if len(matches) != 1:  # the file has changed, or the line has two such calls
        return label
    given = [*matches[0].args, *matches[0].keywords]
    words = [" ".join((ast.get_source_segment(source, each) or "").split()) for each in given]
    return redact(f"{node.operator.name}({', '.join(words)})")


@functools.lru_cache(maxsize=16)
def _parse_calls(file: str) -> tuple[str, dict[tuple[int, str], list[ast.Call]]]:
    """Return a file's source, and its method calls by (line, method name)."""
    source = "".join(linecache.getlines(file))
    calls: dict[tuple[int, str], list[ast.Call]] = {}
    with suppress(SyntaxError, ValueError):
        for call in ast.walk(ast.parse(source)):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                calls.setdefault((call.func.end_lineno or 0, call.func.attr), []).append(call)
    return source, calls
