"""The logical plan as text: operators as the user wrote them, the columns they read and write, and their costs."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from cedar.core.printable import redact
from cedar.plan.graph import Node, walk
from cedar.profile import Profile
from cedar.profile.figures import WIDTH, byte_size, cut, micros

_TITLE = "LOGICAL PLAN"
_COST = ("us/row", "keep", "bytes", "share")
_NAMES = 20  # maximum characters for the list of columns read, and for the list of columns written
_GAP = 2


@dataclass(frozen=True)
class _OperatorLine:
    """One operator's line of the logical plan."""

    indent: str
    label: str
    effects: str
    costs: tuple[str, ...]
    site: str


def logical_lines(root: Node, labels: Mapping[int, str], profile: Profile | None) -> list[str]:
    """Return one line per operator, sources first, as in the physical plan. An operator with two readers appears once.

    Args:
        root: the pipeline's root node.
        labels: the nodes' labels, by node id.
        profile: measured costs, or None to omit them. The columns are "us/row" per input row, "keep" (output rows per
            input row), "bytes" per output row, and "share" (the operator's share of all operators' time).
    """
    costs = {} if profile is None else _cost_cells(root, profile)
    blank = ("",) * len(_COST) if costs else ()
    lines = [
        _OperatorLine(indent, f"{labels[id(node)]} (shared, see above)", "", blank, "")
        if again
        else _OperatorLine(indent, labels[id(node)], _effects_text(node), costs.get(id(node), blank), _site_text(node))
        for node, indent, again in _sources_first(root, "", set())
    ]
    heads = _COST if costs else ()
    fixed = [max(len(head), *(len(line.costs[i]) for line in lines)) for i, head in enumerate(heads)]
    label, effects = _column_widths(lines, WIDTH - _GAP - sum(width + _GAP for width in fixed))
    shown = [_join_cells((_TITLE, "", *heads), (label + _GAP, effects, *fixed))]
    for line in lines:
        name = line.indent + cut(line.label, label - len(line.indent))
        cells = (name, cut(line.effects, effects), *line.costs, line.site)
        shown.append("  " + _join_cells(cells, (label, effects, *fixed, 0)))
    return shown


def _sources_first(node: Node, indent: str, seen: set[int]) -> Iterator[tuple[Node, str, bool]]:
    """Yield (node, indentation, whether it was shown before), with inputs before the nodes that read them."""
    chain: list[tuple[Node, str, bool]] = []
    again = False
    while not again:
        again = id(node) in seen and bool(node.inputs)
        seen.add(id(node))
        chain.append((node, indent, again))
        if len(node.inputs) != 1:
            break
        node = node.inputs[0] if not again else node
    if not again:
        for child in node.inputs:
            yield from _sources_first(child, indent + "    ", seen)
    yield from reversed(chain)


def _column_widths(lines: Sequence[_OperatorLine], room: int) -> tuple[int, int]:
    """Return the widths of the label column and of the effects column."""
    sites = max(len(line.site) for line in lines)
    room -= sites + _GAP if sites else 0
    label = max(len(_TITLE), *(len(line.indent) + len(line.label) for line in lines))
    effects = max(len(line.effects) for line in lines)
    if label + _GAP + effects > room:
        effects = min(effects, max(room - label - _GAP, room // 3))
    return min(label, max(room - effects - _GAP, len(_TITLE))), effects


def _join_cells(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Join cells into a line. The first two cells are left-aligned, figures right-aligned; the last is not padded."""
    padded = [
        cell.ljust(width) if i < 2 or not width else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return (" " * _GAP).join(padded).rstrip()


def _effects_text(node: Node) -> str:
    effects = node.effects
    if effects.rows == "stream" or not node.inputs:
        return ""
    reads = "row" if effects.reads is None else ", ".join(sorted(effects.reads)) or "-"
    written = None if effects.writes is None else effects.writes | (effects.survivors or frozenset())
    writes = "row" if written is None else ", ".join(sorted(written)) or "-"
    text = f"{cut(reads, _NAMES)} => {cut(writes, _NAMES)}"
    return text + (" random" if effects.random else "")


def _site_text(node: Node) -> str:
    return f"{node.site.file.rsplit('/', 1)[-1]}:{node.site.line}" if node.site else ""


def _cost_cells(root: Node, profile: Profile) -> dict[int, tuple[str, ...]]:
    """Return the measured figures of each operator as cells, by node id."""
    shares = profile.shares
    costs: dict[int, tuple[str, ...]] = {}
    for ordinal, node in enumerate(walk(root)):
        figures = profile.operators.get(ordinal)
        if figures is not None and figures.rows:
            cells = (
                micros(figures.wall),
                f"{figures.keep:.3g}",
                byte_size(figures.bytes_out),
                f"{shares[ordinal]:.0%}",
            )
            costs[id(node)] = cells
    return costs


def as_written(root: Node, labels: Mapping[int, str]) -> dict[int, str]:
    """Return a label for each node, by node id. Expressions appear as in the user's source file, if it can be read."""
    return {id(node): _label_as_written(node, labels[id(node)]) for node in walk(root)}


def _label_as_written(node: Node, label: str) -> str:
    if node.site is None or "col(" not in label:
        return label
    lines, calls = _parse_calls(node.site.file)
    matches = calls.get((node.site.line, node.operator.name), [])
    if len(matches) != 1:  # the file has changed, or the line has two such calls
        return label
    given: list[ast.expr | ast.keyword] = [*matches[0].args, *matches[0].keywords]
    words = ", ".join(_source_text(lines, each) for each in given)
    return redact(f"{node.operator.name}({words})")


def _source_text(lines: Sequence[str], part: ast.expr | ast.keyword) -> str:
    """Return a part of a file on one line; unlike ``ast.get_source_segment``, split the file into lines only once."""
    own = [line.encode() for line in lines[part.lineno - 1 : part.end_lineno]]
    own[-1] = own[-1][: part.end_col_offset]
    return " ".join(b"".join(own)[part.col_offset :].decode().split())


@functools.lru_cache(maxsize=16)
def _parse_calls(file: str) -> tuple[list[str], dict[tuple[int, str], list[ast.Call]]]:
    """Return a file's lines, and its method calls by (line, method name)."""
    lines = linecache.getlines(file)
    calls: dict[tuple[int, str], list[ast.Call]] = {}
    with suppress(SyntaxError, ValueError):
        for call in ast.walk(ast.parse("".join(lines))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                calls.setdefault((call.func.end_lineno or 0, call.func.attr), []).append(call)
    return lines, calls
