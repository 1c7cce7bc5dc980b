"""The physical plan as text: the operators and the executor of each stage."""

from __future__ import annotations

from collections.abc import Mapping

from cedar.datasets.base import Read
from cedar.engine.compiler import Compiler
from cedar.engine.nodes import cost_note
from cedar.engine.streams.derived import SharedStream
from cedar.engine.streams.splits import SplitStream
from cedar.operators.base import StreamOperator
from cedar.pipeline.explain_text import join_parts
from cedar.plan.data import Plan
from cedar.plan.physical import Physical, Stage
from cedar.plan.scan import Scan, chosen_fields

_METHODS = {
    "as written": "as written",
    "rules": "by rules, before measuring",
    "exact": "exact search",
    "beam": "beam search",
    "loaded": "loaded",
}


def physical_lines(plan: Plan, compiler: Compiler, words: Mapping[str, str]) -> list[str]:
    """Return one numbered line per stage, in the order in which rows pass through the stages.

    Args:
        plan: the plan that runs.
        compiler: the compiler of its physical plan, which has read the sources' metadata.
        words: maps operator labels to labels as the user wrote them.
    """
    physical = compiler.physical
    shown = [i for i, stage in enumerate(physical.stages) if stage.kind not in ("window", "deal")]
    places = [_place(physical.stages[i], plan) for i in shown]
    width = max(map(len, places), default=0)
    lines = [f"PHYSICAL PLAN ({_title(plan)})"]
    for number, (i, place) in enumerate(zip(shown, places, strict=True), 1):
        stage = physical.stages[i]
        kind = "task" if stage.kind == "group" else stage.kind
        first = f"{number:>3}. {kind:<6}  " + (f"{place:<{width}}  " if width else "")
        nodes = [*(segment.source for segment in stage.segments), *stage.operators]
        lines += join_parts(
            first, [_label_with_scan(physical, each, words) for each in nodes] or ["gather"], _detail(compiler, i)
        )
    return lines


def notes(compiler: Compiler) -> list[str]:
    """Return notes for the user about caches that reading stages fill, and about sources that cannot be split."""
    physical = compiler.physical
    reported = []
    for stage in physical.stages:
        for segment in stage.segments:
            if segment.kept:
                links = [i for i in segment.links[: segment.kept] if isinstance(i, int)]
                works = [i for i in links if physical.nodes[i].storage is None]
                last = physical.works[works[-1] if works else segment.source].label
                splits = compiler.binding.splits(physical.nodes[segment.source])
                state = compiler.keeper(segment).describe(splits)
                cache = physical.nodes[segment.cache].operator.label()
                reported.append(f"{cache} keeps what comes out of {last}, split by split; {state}")
        if any(segment.streaming for segment in stage.segments):
            reported.append(
                "a source cannot be split (compressed, quoted CSV, tar or an iterator): it is read from its beginning "
                "by one task at a time, and a resume reads it again up to its place"
            )
    return reported


def _detail(compiler: Compiler, number: int) -> str:
    """Describe how a stage divides its work into tasks."""
    physical = compiler.physical
    stage = physical.stages[number]
    node = physical.nodes[stage.out]
    if stage.kind == "stream":
        assert isinstance(node.operator, StreamOperator)
        return cost_note(node.operator, [compiler.streams[i] for i in stage.inputs])
    if stage.kind == "group":
        return f"groups of exactly {node.exact_rows} rows"
    if stage.kind == "read":
        stream = compiler.streams[number]
        splits = stream.source if isinstance(stream, SharedStream) else stream
        assert isinstance(splits, SplitStream)
        permuted = ", permuted" if splits.permuted else ""
        total = sum(len(segment.source.splits()) for segment in splits.segments)  # before filters exclude splits
        chosen = f"{splits.splits} of {total}" if splits.splits < total else str(total)
        return f"{chosen} split(s), {len(splits.layout(0).starts)} window(s){permuted}"
    below = physical.stages[stage.inputs[0]].out
    return "a batch a task" if physical.works[below].batched else "small tasks, by measured time" if stage.small else ""


def _title(plan: Plan) -> str:
    workers = "" if plan.workers is None else f", {plan.workers} worker(s)"
    return _METHODS[plan.method] + workers


def _place(stage: Stage, plan: Plan) -> str:
    """Return the executor of a stage; "" for streams, which run where the loader runs."""
    return "" if stage.kind == "stream" else stage.place or plan.executor


def _label_with_scan(physical: Physical, i: int, words: Mapping[str, str]) -> str:
    """Return an operator's label; for a scan also the columns it reads and the filters it applies."""
    label, scan = physical.works[i].label, physical.nodes[i].operator
    label = words.get(label, label)
    if not isinstance(scan, Scan):
        return label
    reported = []
    if scan.columns is not None:
        known = Read(scan.source).schema()
        of = "" if known is None else f" of {len(known)}"
        chosen = chosen_fields(scan.columns, known or ())
        reported.append(f"{len(chosen)}{of} columns")
        reported += [f"of {name} only {', '.join(paths)}" for name, paths in chosen.items() if paths]
    if scan.where:
        filters = [each.operator.label() for each in scan.where]
        reported.append("where " + " and ".join(words.get(each, each)[len("filter(") : -1] for each in filters))
    return f"{label} {{{'; '.join(reported)}}}" if reported else label
