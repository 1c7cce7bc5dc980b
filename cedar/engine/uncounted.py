"""Find the operator that makes row counts unknown, and whether ``counts="exact"`` would make them known."""

from __future__ import annotations

from cedar.cache.cached import Store
from cedar.datasets.base import Read
from cedar.datasets.split_table import SplitTable
from cedar.engine.binding import Binding
from cedar.engine.compiler import Compiler
from cedar.engine.metrics import Metrics
from cedar.engine.runner import Runner
from cedar.engine.task_context import Tasks
from cedar.operators.base import Env, RowOperator
from cedar.plan.graph import Node
from cedar.plan.lower import refills
from cedar.plan.splits import passes, uncountable

_ONLY_A_RUN = "how many rows come out of it is known only after a run"


def counted_if_read(binding: Binding) -> tuple[Binding, tuple[Node, str] | None]:
    """Return a binding that assumes counted filters. Also return the node that still makes counts unknown, and why."""
    asked = Binding(binding.root, binding.on_error, Env(sampling=True), counts=lambda _, splits, __: splits.rows)
    compiler = Compiler(asked.written, asked, Tasks(Runner("inline", 1), Env(), Metrics()), Store())
    return asked, None if compiler.assigned.count is not None else _culprit(compiler)


def offer(binding: Binding) -> str:
    """Describe what ``counts="exact"`` would read; "" if counts would still be unknown."""
    asked, culprit = counted_if_read(binding)
    if culprit is not None:
        return ""
    part = share(asked)
    extent = f"{percent(part)} of the bytes" if part < 1 else "the columns of filters"
    return f'loader(counts="exact"), which reads {extent} first'


def share(binding: Binding) -> float:
    """Return the fraction of the source bytes that are read to count rows."""
    part = whole = 0
    for source in binding.sources:
        assert isinstance(source.operator, Read)
        whole += binding.splits(source).known_bytes
        part += _read_for(source, binding.listed.counted(source))
    return part / whole if whole else 0.0


def _read_for(source: Node, filters: tuple[Node, ...]) -> int:
    assert isinstance(source.operator, Read)
    return (
        int(SplitTable.of(source.operator.source.select(columns_of(source, filters)).splits()).known_bytes)
        if filters
        else 0
    )


def columns_of(source: Node, filters: tuple[Node, ...]) -> list[str]:
    """Return the columns of a source that filters use, in the order of the source."""
    reads = frozenset[str]().union(*(each.effects.reads or () for each in filters))
    return [name for name in source.schema or () if name in reads]


def percent(part: float) -> str:
    return f"{part:.0%}" if part >= 0.095 else f"{part:.1%}"


def _culprit(compiler: Compiler) -> tuple[Node, str]:
    physical = compiler.physical
    for stage, stream in zip(physical.stages, compiler.streams, strict=False):
        if stream.count is not None:
            continue
        links = [i for segment in stage.segments for i in (segment.source, *segment.links) if isinstance(i, int)]
        for i in sorted({*links, *stage.operators}):
            node = physical.nodes[i]
            if isinstance(node.operator, Read) and not compiler.binding.splits(node).counted:
                return node, "its metadata do not include row counts"
            if not physical.works[i].preserves_slots:
                return node, _why(node, compiler.binding)
        return physical.nodes[stage.out], _ONLY_A_RUN
    return physical.root, _ONLY_A_RUN


def _why(node: Node, binding: Binding) -> str:
    if refills(node, binding.on_error):
        return "with Skip(refill=True) the next row takes the place of one that fails"
    if not isinstance(node.operator, RowOperator) or not node.filters:
        return _ONLY_A_RUN
    source = node.inputs[0]
    while source.inputs and (source.filters or passes(source)):
        source = source.inputs[0]
    if not isinstance(source.operator, Read):
        return f"it is above {source.operator.label()}, after which rows are not counted"
    return uncountable(node, source) or "other operators read the same rows"
