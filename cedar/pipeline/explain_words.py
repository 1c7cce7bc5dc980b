"""Labels of operators in the user's own words, for people to read."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Mapping
from contextlib import suppress

from cedar.core.redact import redact
from cedar.plan.graph import Node, walk


def as_written(root: Node, labels: Mapping[int, str]) -> dict[int, str]:
    """The labels, those of expressions as they stand in the user's file where that can be read."""
    return {id(node): _worded(node, labels[id(node)]) for node in walk(root)}


def _worded(node: Node, label: str) -> str:
    if node.site is None or "col(" not in label:
        return label
    source, calls = _calls(node.site.file)
    matches = calls.get((node.site.line, node.operator.name), [])
    if len(matches) != 1:  # another file by now, or two on one line
        return label
    given = [*matches[0].args, *matches[0].keywords]
    words = [" ".join((ast.get_source_segment(source, each) or "").split()) for each in given]
    return redact(f"{node.operator.name}({', '.join(words)})")


@functools.lru_cache(maxsize=16)
def _calls(file: str) -> tuple[str, dict[tuple[int, str], list[ast.Call]]]:
    """A file, and its calls of methods by line and name."""
    source = "".join(linecache.getlines(file))
    calls: dict[tuple[int, str], list[ast.Call]] = {}
    with suppress(SyntaxError, ValueError):
        for call in ast.walk(ast.parse(source)):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                calls.setdefault((call.func.end_lineno or 0, call.func.attr), []).append(call)
    return source, calls
