"""Chooses the plan or planner of a run from ``plan=``. This module connects the optimizer and the engine."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from cedar.core.errors import CedarError, PlanError, Skip, nearest, user_site
from cedar.core.packages import extension
from cedar.core.process import cores
from cedar.datasets.base import Read, rows_may_fail
from cedar.datasets.filesource import FileSource
from cedar.engine.binding import Binding
from cedar.engine.dedup import factors_where_read
from cedar.engine.first_rows import FirstRows
from cedar.engine.machine import machine
from cedar.engine.plan_control import Plans
from cedar.engine.profiling import profile as measured
from cedar.operators.base import Env, RowOperator
from cedar.optimizer.planner import NAMES, AutoPlanner
from cedar.optimizer.rewrite import Rule
from cedar.plan import graph
from cedar.plan.data import Budget, Cluster, Decision, Plan
from cedar.plan.splits import TolerantSplits
from cedar.plan.steps.step import CacheLimits, Factors, facts_of, leave_unread, tolerated
from cedar.plan.steps.sweep import replay
from cedar.profile import Profile
from cedar.store.cache import MEMORY_BYTES

if TYPE_CHECKING:
    from cedar.pipeline.core import Pipeline
    from cedar.plan.graph import Node

_log = logging.getLogger("cedar")
_PLACES = ("threads", "processes")  # executors that a plan may choose
_MAX_WORKERS = 32  # maximum for a run that waits for storage or other machines


@dataclass(frozen=True)
class PlanOptions:
    """The caller's settings for the optimizer.

    Args:
        rules: the caller's own rewrite rules.
        without: names of rules to disable; also "order" or "place".
        budget: resources that a plan may use.

    Raises:
        PlanError: an invalid rule, or an unknown name.
    """

    rules: tuple[Rule, ...] = ()
    without: frozenset[str] = frozenset()
    budget: Budget = field(default_factory=Budget)

    @staticmethod
    def of(rules: Iterable[Rule], without: Iterable[str], budget: Budget | None) -> PlanOptions:
        _check("budget", budget, Budget, "cedar.Budget(cpus=..., memory=...)")
        rules = (cast("Rule", rules),) if callable(rules) else tuple(rules)
        without = (without,) if isinstance(without, str) else tuple(without)
        names = [getattr(rule, "__name__", "") for rule in rules if callable(rule)]
        if len(set(names) - {"", *NAMES}) < len(rules):
            raise PlanError(
                f"rules={rules!r:.80}: functions of a node and the facts, with names that no other rule has",
                site=user_site(),
                fix="a rule returns a step, a Refusal, or None: help(cedar.Pipeline.loader)",
            )
        for name in without:
            if name not in (*NAMES, *names):
                raise PlanError(
                    f"without={name!r}: unknown rule",
                    site=user_site(),
                    fix=f"known rules: {', '.join(nearest(str(name), [*NAMES, *names]))}",
                )
        return PlanOptions(rules, frozenset(without), budget or Budget())


def choose_plan(
    node: Node,
    plan: Any,
    executor: str | Executor,
    workers: int | None,
    on_error: Skip | None,
    exact: bool,
    chosen: PlanOptions,
) -> tuple[AutoPlanner | None, Plan | None]:
    """Return (planner, None) for a run that the optimizer plans, or (None, plan) for a fixed plan.

    Raises:
        PlanError: ``plan`` is invalid or belongs to another pipeline.
    """
    if not (isinstance(plan, str) and plan == "auto") and chosen != PlanOptions():
        raise PlanError(
            "rules=, without= and budget= are for the optimizer, which does not run with this plan=",
            site=user_site(),
            fix='plan="auto"; p.optimize(budget) makes a plan for a budget',
        )
    if isinstance(plan, Plan):
        if on_error is not None and on_error.files:
            raise PlanError(
                "a fixed plan may leave columns unread, so on_error=Skip(files=True) could miss damage in them",
                site=user_site(),
                fix='plan="auto" or "off"',
            )
        if plan.logical is not node:
            raise PlanError(
                "plan= is the plan of another pipeline",
                site=user_site(),
                fix="Plan.load(path, pipeline) fits a saved plan to a pipeline; p.optimize() makes one",
            )
        if exact and tolerated(plan.root):
            raise PlanError(
                "plan= gives results within a tolerance", site=user_site(), fix="give exact=False, or another plan"
            )
        return None, _fit_to_policy(plan, on_error, exact)
    if not isinstance(plan, str) or plan not in ("auto", "off"):
        raise PlanError(f"plan={plan!r:.80} is not a plan", site=user_site(), fix='"auto", "off", or a cedar.Plan')
    if plan == "off":
        return None, None
    planner = planner_for(node, chosen.budget, executor, workers, on_error, exact)
    return replace(planner, rules=chosen.rules, refused=chosen.without), None


def _fit_to_policy(plan: Plan, on_error: Skip | None, exact: bool) -> Plan:
    """Return the plan, or the plan as written if ``on_error`` forbids one of its rewrites."""
    if on_error is None or not plan.sweeps:
        return plan
    try:
        replay(facts_of(plan.logical, plan.logical, partial(_skips, on_error), exact=exact), plan.sweeps)
    except PlanError as error:
        _log.warning("the pipeline runs as written, because the plan does not fit on_error=: %s", error.what)
        decision = Decision("plan", "all of it", applied=False, why=error.what)
        return replace(Plan.as_written(plan.logical), decisions=(*plan.decisions, decision))
    return plan


def planner_for(
    node: Node, budget: Budget, executor: str | Executor, workers: int | None, on_error: Skip | None, exact: bool
) -> AutoPlanner:
    """Return the planner of a pipeline, for a run with these arguments."""
    cluster = budget.cluster
    cache_bytes = MEMORY_BYTES if budget.cache_bytes is None else min(budget.cache_bytes, MEMORY_BYTES)
    return AutoPlanner(
        node,
        skips=partial(_skips, on_error),
        splits=TolerantSplits(node, on_error=on_error),
        budget=budget,
        executors=_PLACES if executor == "auto" else (executor,) if isinstance(executor, str) else ("threads",),
        workers=workers or cores(),
        most_workers=_MAX_WORKERS if workers is None and executor == "auto" else None,
        exact=exact,
        keeping=CacheLimits(cache_bytes, bool(budget.cache_bytes), budget.layout_place),
        factors=_factors(node, on_error),
        cluster=None if cluster is None else Cluster(*extension("cluster.dask.costs").ship_costs(cluster)),
    )


def _factors(root: Node, on_error: Skip | None) -> Factors:
    """Return a function that estimates how often rows repeat, from a sample read at the first call."""
    known: dict[int, Mapping[str, float]] = {}

    def factors(node: Node) -> Mapping[str, float]:
        logical = node.logical
        if id(logical) not in known:
            try:
                known[id(logical)] = factors_where_read(Binding(root, on_error, Env(sampling=True)), logical)
            except CedarError:  # the run raises the same error
                known[id(logical)] = {}
        return known[id(logical)]

    return factors


def best_plan(pipeline: Pipeline, budget: Budget | None, profile: Profile | None) -> Plan:
    """Return the best plan for a profile, checked on the first rows. Measure a profile if none is given."""
    node = pipeline.node
    _check("budget", budget, Budget, "cedar.Budget(cpus=..., memory=...)")
    _check("profile", profile, Profile, "p.profile(), or Profile.load(path, p)")
    if profile is None:
        profile = measured(node)
    profile.check(pipeline.subject)
    planner = planner_for(node, budget or Budget(), "auto", None, None, exact=True)
    first_rows = FirstRows(Binding(node, None, Env()))
    return _note_other_machine(planner.chosen(profile, first_rows.difference), profile)


def _check(name: str, value: object, kind: type, fix: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise PlanError(f"{name}= must be a {kind.__name__}, got {value!r:.80}", site=user_site(), fix=fix)


def _note_other_machine(plan: Plan, profile: Profile) -> Plan:
    """Add a decision that warns if the plan's profile was measured on another machine; return the plan."""
    other = profile.differences(machine(measure=False))
    if not other:
        return plan
    _log.warning("the profile was measured on another machine (%s); its timings may not apply here", ", ".join(other))
    why = f"{', '.join(other)}: its timings may not apply here"
    return replace(plan, decisions=(*plan.decisions, Decision("profile", "of another machine", applied=True, why=why)))


def initial_plan(node: Node) -> Plan:
    """Return the plan that a run starts with, before anything is measured."""
    return planner_for(node, Budget(), "auto", None, None, exact=True).begin()


def explain_run(root: Node, plans: Plans) -> str:
    """Return the text of ``loader.explain()``."""
    from cedar.pipeline.explain import explain

    profile = plans.profile()
    return explain(
        root,
        plans.describe(),
        profile=profile if profile.operators else None,
        measured=plans.measured(),
        run=str(plans.metrics) if plans.metrics.batches else "",  # the run so far
        achieved=plans.metrics.factors,
        listed=plans.binding.splits,
    )


def _skips(on_error: Skip | None, node: Node) -> bool:
    """Return whether a node has a policy for rows that fail."""
    operator = node.logical.operator
    if isinstance(operator, RowOperator):
        return on_error is not None or operator.on_error is not None
    return on_error is not None and isinstance(operator, Read) and rows_may_fail(operator.source)


def skipping_damaged(pipeline: Pipeline, on_error: Skip | None) -> Node:
    """Return the root to run; with ``Skip(files=True)``, sources skip unreadable parts of damaged files."""
    if not isinstance(on_error, Skip) or not on_error.files:  # the loader rejects other types
        return pipeline.node

    def tolerant(node: Node) -> Node | None:
        if not isinstance(node.operator, Read) or not isinstance(node.operator.source, FileSource):
            return None
        with graph.at_site(node):
            return replace(node, operator=Read(node.operator.source.skipping_damaged()))

    return leave_unread(graph.replace(pipeline.given, tolerant))
