"""explain: a pipeline's logical and physical plan as text."""

from __future__ import annotations

import math
from html import escape

from cedar.execution.binding import Binding
from cedar.execution.cached import Store
from cedar.execution.compile import Compiler
from cedar.execution.dealt import Share
from cedar.execution.metrics import Metrics
from cedar.execution.runner import Runner
from cedar.execution.splits import Tasks
from cedar.graph import Node
from cedar.operators.base import Env
from cedar.stream import Count


def explain(root: Node) -> str:
    """The text of ``Pipeline.explain()``."""
    binding = Binding(root, None, Env(sampling=True))
    compiler = Compiler(binding, Tasks(Runner("inline", 1), Env(), Metrics()), Store(), dry=True)
    _, dealt = compiler.top(Share())
    lines = ["LOGICAL PLAN"]
    lines += _tree(root, binding, "", set())
    lines.append("PHYSICAL PLAN (as written)")
    lines += [f"  {i}. {stage}" for i, stage in enumerate(compiler.plan.stages, 1)]
    lines.append(f"UNITS  {_units(dealt.count)} {'batches' if binding.batched[id(root)] else 'rows'} in an epoch")
    lines.append(f"RANKS  {_ranks(dealt.source.count, compiler)}")
    lines += [f"NOTE   {note}" for note in dict.fromkeys(compiler.plan.notes)]
    return "\n".join(lines)


def explain_html(root: Node) -> str:
    """For notebooks."""
    return f"<pre>{escape(explain(root))}</pre>"


def _tree(node: Node, binding: Binding, indent: str, seen: set[int]) -> list[str]:
    """The operators, last first; a shared one is printed once."""
    lines: list[str] = []
    while True:
        label = binding.labels[id(node)]
        if id(node) in seen and node.inputs:
            return [*lines, f"  {indent}{label}  (shared, see above)"]
        seen.add(id(node))
        lines.append(f"  {indent}{label:<48}  {_effects(node)}{_site(node)}".rstrip())
        if len(node.inputs) != 1:
            break
        node = node.inputs[0]
    for child in node.inputs:
        lines += _tree(child, binding, indent + "    ", seen)
    return lines


def _effects(node: Node) -> str:
    effects = node.operator.effects()
    if effects.rows == "stream" or not node.inputs:
        return ""
    reads = "row" if effects.reads is None else ", ".join(sorted(effects.reads)) or "-"
    writes = "row" if effects.writes is None else ", ".join(sorted(effects.writes)) or "-"
    text = f"{_short(reads)} => {_short(writes)}"
    return text + (" random" if effects.random else "")


def _short(names: str) -> str:
    return names if len(names) <= 40 else names[:37] + "..."


def _site(node: Node) -> str:
    return f"  {node.site.file.rsplit('/', 1)[-1]}:{node.site.line}" if node.site else ""


def _units(count: Count) -> str:
    if count is None:
        return "unknown before a run:"
    return "endless" if count == math.inf else f"{int(count):,}"


def _ranks(count: Count, compiler: Compiler) -> str:
    if count is None:
        return "every rank computes the stream and keeps its turns (row counts are unknown before a run)"
    return f"contiguous runs of at least {compiler.chunk():,} units, the same units at any number of ranks"
