"""explain(): a pipeline's operators, its physical plan, the costs and the optimizer's reasons, on one screen."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from cedar.core.errors import CedarError
from cedar.core.printable import printable
from cedar.core.stream import Count
from cedar.datasets.base import Read
from cedar.engine.binding import Binding
from cedar.engine.compiler import Compiler, min_run_units
from cedar.engine.dedup import found_groups
from cedar.engine.metrics import Metrics
from cedar.engine.nodes import deal_mode, over_ranks
from cedar.engine.notes import cost_note, offer
from cedar.engine.runner import Runner
from cedar.engine.streams.assigned import AssignedStream, Share
from cedar.engine.streams.derived import SharedStream
from cedar.engine.streams.splits import SplitStream
from cedar.engine.task_context import Tasks
from cedar.operators.base import Env, StreamOperator
from cedar.pipeline.explain_logical import as_written, logical_lines
from cedar.plan.data import Decision, Plan, Prediction
from cedar.plan.graph import Node, Scan, chosen_fields, walk
from cedar.plan.lower import Choice, lower
from cedar.plan.physical import Physical
from cedar.plan.splits import Splits
from cedar.profile import Profile
from cedar.profile.figures import WIDTH
from cedar.store.cache import Store

_MAX_RULES = 6  # maximum lines for decisions
_MAX_COSTLY = 4  # maximum number of expensive operators to name
_COUNTABLE = "row counts are unknown; known with {}"
_UNMEASURED = 'not measured yet: p.profile() measures, or a run under plan="auto" (then loader.explain())'


def explain(
    root: Node,
    plan: Plan | None = None,
    *,
    profile: Profile | None = None,
    measured: float | None = None,
    run: str = "",
    achieved: Mapping[tuple[str, ...], float] | None = None,
    listed: Splits | None = None,
) -> str:
    """Return the text of ``Pipeline.explain()`` and ``Loader.explain()``.

    cedar lists storage but runs nothing, except that ``dedup()`` reads a sample of rows.

    Args:
        root: the pipeline as written.
        plan: the plan that runs; None means as written.
        profile: measured costs; by default the profile from which the plan was chosen.
        measured: rows read per second under the plan while it runs.
        run: one line about the run's progress.
        achieved: for each group of deduplicated columns, the number of rows delivered per row stored.
        listed: the splits that the run has listed; by default the splits in the sources' metadata.
    """
    shown = plan if plan is not None else Plan.as_written(root)
    profile = profile if profile is not None else shown.profile
    binding = Binding(root, None, Env(sampling=True))
    binding.splits = listed or binding.splits
    compiler, assigned = _compile(binding, shown)
    unit = "batches" if root.batched else "rows"
    words = as_written(root, binding.labels)
    unknown = compiler.assigned.count is None
    lines = with_heading(
        "NOTE", [*notes(compiler), *(_COUNTABLE.format(way) for way in [unknown and offer(binding)] if way)]
    )
    lines += with_heading(
        "COST", [_name_costliest(root, words, profile)] if profile is not None and profile.operators else []
    )
    lines += logical_lines(root, words, profile)
    if profile is None and shown.prediction is None:
        lines += with_heading("COST", [_UNMEASURED])
    written = {binding.labels[id(node)]: words[id(node)] for node in binding.nodes}
    lines += physical_lines(shown, compiler, written)
    if plan is not None:
        lines += _rule_lines(plan.decisions, written)
    if shown.prediction is not None:
        lines += with_heading("PREDICTION", [_format_prediction(shown.prediction, measured)])
    lines += with_heading("RUN", [run] if run else [])
    lines += with_heading("DEDUP", _dedup_lines(binding, achieved or {}))
    lines += with_heading("UNITS", [f"{_format_count(assigned.count)} {unit} in an epoch"])
    lines += with_heading("RANKS", [_describe_ranks(compiler)])
    return printable("\n".join(lines))


def _name_costliest(root: Node, words: Mapping[int, str], profile: Profile) -> str:
    """Name the most expensive operators, highest share first."""
    labels = [words[id(node)] for node in walk(root)]
    shares = sorted(profile.shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{labels[i]} {share:.0%}" for i, share in shares[:_MAX_COSTLY] if share >= 0.005)


def _compile(binding: Binding, plan: Plan) -> tuple[Compiler, AssignedStream]:
    """Return a compiler that is only used for display, and the stream that is divided among ranks."""
    tasks = Tasks(Runner("inline", 1), Env(), Metrics())
    physical = lower(plan.root, Choice(splits=binding.splits, settled=binding.splits.settled), binding.root)
    compiler = Compiler(physical, binding, tasks, Store())
    return compiler, compiler.top(Share())[1]


def _rule_lines(decisions: Sequence[Decision], words: Mapping[str, str]) -> list[str]:
    """List decisions: changes that checks and audits refused, then applied ones, then those that did not apply."""
    ordered = sorted(
        decisions, key=lambda d: d.applied if d.rule == "audit" or d.what == "all of it" else 2 - d.applied
    )
    reported = [str(decision) for decision in ordered]
    for label, word in words.items():
        reported = [each.replace(label, word) for each in reported]
    return with_heading("RULES", reported or ["none applied, none refused"], _MAX_RULES, ": print(plan)")


def _dedup_lines(binding: Binding, achieved: Mapping[tuple[str, ...], float]) -> list[str]:
    """Describe each group of deduplicated columns: the ratio estimated from a sample, and the ratio achieved."""
    lines: list[str] = []
    try:
        for _, sampled in found_groups(binding):
            for group in sampled.groups:
                came = f"; achieved {achieved[group.names]:.3g}" if group.names in achieved else ""
                lines.append(f"{group}{came}")
            lines += [f"{'+'.join(one.names)} left out: {why}" for one, why in sampled.refused]
            lines += [sampled.note] if sampled.note else []
    except CedarError as error:
        lines.append(f"no sample: {error.what}")
    return lines


def _format_prediction(prediction: Prediction, measured: float | None) -> str:
    rate = prediction.rows_per_second
    text = f"{_format_rate(rate)} rows/s; bottleneck: {prediction.bottleneck or 'none'}"
    if measured is not None:
        text += f"; measured: {measured / rate - 1:+.0%}" if rate else ""
    more = sorted(prediction.more.items(), key=lambda item: -item[1])
    gains = [f"{resource}: {gain:+.0%}" for resource, gain in more if gain >= 0.005]
    return text + ("; " + ", ".join(gains) if gains else "; more hardware would not help" if more else "")


def _format_rate(rows: float) -> str:
    """Format a rate with three significant digits."""
    return f"{float(f'{rows:.3g}'):,.0f}" if rows >= 100 else f"{rows:.3g}"


def _format_count(count: Count) -> str:
    if count is None:
        return "an unknown number of"
    return "endless" if count == math.inf else f"{int(count):,}"


def _describe_ranks(compiler: Compiler) -> str:
    if over_ranks(compiler.binding.nodes) is not None:
        return "in turns; a step has the same rows at the same number of ranks, and who gets which follows their costs"
    if compiler.counted and compiler.binding.scheduled:
        return "in turns, and every rank reads all rows, because weights of a mixture depend on the step"
    if compiler.counted:
        least = min_run_units(compiler.binding)
        end = " up to the last step" if deal_mode(compiler.binding.root) is None else ""
        return f"contiguous runs of at least {least:,} units, the same at any number of ranks{end}"
    if why := compiler.unshared(2):
        return f"every rank computes the stream and keeps its turns: {why}"
    few = compiler.by_key(2)
    whole = f"; all read {few} whole, a single split, and share its rows by their keys" if few else ""
    return f"row counts are unknown before a run: each rank reads splits of its own{whole}"


_METHODS = {
    "as written": "as written",
    "rules": "by rules, before measuring",
    "exact": "exact search",
    "local": "local search",
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
    stages = [physical.stages[i] for i in shown]
    places = ["" if each.kind == "stream" else each.place or plan.executor for each in stages]  # streams: as the loader
    width = max(map(len, places), default=0)
    workers = "" if plan.workers is None else f", {plan.workers} worker(s)"
    lines = [f"PHYSICAL PLAN ({_METHODS[plan.method]}{workers})"]
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
    """Return notes for the user: caches that reading stages fill, sources that cannot be split, and narrow shuffles."""
    physical = compiler.physical
    reported = []
    for number, stage in enumerate(physical.stages):
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
        elif stage.kind == "read":
            read = _splits(compiler, number)
            windows = len(read.layout(0).starts)
            if read.permuted and 1 < windows <= read.splits:
                reported.append(
                    f"the shuffle mixes rows of about {round(read.splits / windows)} of {read.splits} splits at a "
                    "time; if rows of one kind are stored together, give a larger window= in rows"
                )
    return reported


def _splits(compiler: Compiler, number: int) -> SplitStream:
    """Return the stream that reads splits for a stage."""
    stream = compiler.streams[number]
    splits = stream.source if isinstance(stream, SharedStream) else stream
    assert isinstance(splits, SplitStream)
    return splits


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
        splits = _splits(compiler, number)
        permuted = ", permuted" if splits.permuted else ""
        total = sum(len(segment.source.splits()) for segment in splits.segments)  # before filters exclude splits
        chosen = f"{splits.splits} of {total}" if splits.splits < total else str(total)
        return f"{chosen} split(s), {len(splits.layout(0).starts)} window(s){permuted}"
    below = physical.stages[stage.inputs[0]].out
    return "a batch a task" if physical.works[below].batched else "small tasks, by measured time" if stage.small else ""


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


_INDENT = 7  # characters: a heading of five letters and two spaces


def with_heading(head: str, items: Iterable[str], room: int | None = None, more: str = "") -> list[str]:
    """Wrap items into at most ``room`` lines after a heading. The last line may state how many items were omitted.

    Examples:
        >>> with_heading("NOTE", ["one", "two", "three"], room=2)
        ['NOTE   one', '       ... 2 more']
    """
    width = WIDTH - max(_INDENT, len(head) + 2)
    wrapped = [textwrap.wrap(item, width, break_on_hyphens=False) for item in dict.fromkeys(items)]
    shown: list[str] = []
    for number, lines in enumerate(wrapped):
        left = len(wrapped) - number
        if room is not None and shown and len(shown) + len(lines) + (left > 1) > room:
            shown.append(f"... {left} more{more}")
            break
        shown += lines
    return [f"{head if not i else '':<{_INDENT - 2}}  {line}" for i, line in enumerate(shown)]


def join_parts(first: str, parts: Sequence[str], detail: str) -> list[str]:
    """Return ``first`` and the parts joined by arrows, then a detail in brackets, on as many lines as needed.

    Examples:
        >>> join_parts("  1. read  ", ["a", "b"], "2 splits")
        ['  1. read  a -> b   [2 splits]']
    """
    indent = " " * len(first)
    lines = [first]
    for i, part in enumerate(parts):
        arrow = " -> " if i else ""
        whole = textwrap.wrap(
            part, WIDTH - len(indent) - len(arrow), subsequent_indent=" " * len(arrow), break_on_hyphens=False
        )
        if i and len(lines[-1]) + len(arrow) + len(part) > WIDTH:
            lines.append(indent + arrow + whole[0])
        else:
            lines[-1] += arrow + whole[0]
        lines += [indent + line for line in whole[1:]]
    if detail and len(lines[-1]) + len(detail) + 5 <= WIDTH:
        lines[-1] += f"   [{detail}]"
    elif detail:
        lines += textwrap.wrap(
            f"[{detail}]", WIDTH, initial_indent=indent, subsequent_indent=indent + " ", break_on_hyphens=False
        )
    return lines
