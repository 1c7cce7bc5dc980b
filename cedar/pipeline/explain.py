"""explain(): a pipeline's operators, its physical plan, the costs and the optimizer's reasons, on one screen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cedar.cache.cached import Store
from cedar.core.errors import CedarError
from cedar.core.printable import printable
from cedar.core.stream import Count
from cedar.engine.binding import Binding
from cedar.engine.compiler import Compiler, min_run_units
from cedar.engine.dedup import found_groups
from cedar.engine.metrics import Metrics
from cedar.engine.nodes import deal_mode, over_ranks
from cedar.engine.runner import Runner
from cedar.engine.streams.assigned import AssignedStream, Share
from cedar.engine.task_context import Tasks
from cedar.engine.uncounted import offer
from cedar.operators.base import Env
from cedar.pipeline.explain_logical import logical_lines
from cedar.pipeline.explain_physical import notes, physical_lines
from cedar.pipeline.explain_text import with_heading
from cedar.pipeline.explain_words import as_written
from cedar.plan.data import Decision, Plan, Prediction
from cedar.plan.graph import Node, walk
from cedar.plan.lower import Choice, lower
from cedar.plan.splits import Splits
from cedar.profile import Profile

_MAX_RULES = 6  # maximum lines for decisions
_MAX_CACHES = 2
_MAX_COSTLY = 4  # maximum number of expensive operators to name
_COUNTABLE = "row counts are unknown; known with {}"
_UNMEASURED = 'not measured yet: p.profile() measures, or a run under plan="auto" (then loader.explain())'


def explain(
    root: Node,
    plan: Plan | None = None,
    *,
    profile: Profile | None = None,
    cache: Sequence[str] = (),
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
        cache: one line per ``cache()``: whether it is a hit or a miss, and why.
        measured: rows read per second under the plan while it runs.
        run: one line about the run's progress.
        achieved: for each group of deduplicated columns, the number of rows delivered per row stored.
        listed: the splits that the run has listed; by default the splits in the sources' metadata.
    """
    shown = plan if plan is not None else Plan.as_written(root)
    profile = profile if profile is not None else shown.profile
    binding = Binding(root, None, Env(sampling=True))
    binding.listed = listed or binding.listed
    compiler, assigned = _compile(binding, shown)
    unit = "batches" if binding.batched[id(root)] else "rows"
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
    lines += with_heading("CACHE", cache, _MAX_CACHES)
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
    physical = lower(plan.root, Choice(splits=binding.splits, settled=binding.listed.settled), binding.root)
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
    if compiler.counted:
        least = min_run_units(compiler.binding)
        end = " up to the last step" if deal_mode(compiler.binding.root) is None else ""
        return f"contiguous runs of at least {least:,} units, the same at any number of ranks{end}"
    if why := compiler.unshared(2):
        return f"every rank computes the stream and keeps its turns: {why}"
    few = compiler.by_key(2)
    whole = f"; all read {few} whole, a single split, and share its rows by their keys" if few else ""
    return f"row counts are unknown before a run: each rank reads splits of its own{whole}"
