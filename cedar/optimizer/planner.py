"""Planner: applies rules, searches for the best order and executors, and checks the plan on the first rows."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cedar.core.errors import CedarError
from cedar.optimizer.rewrite import Rewritten, Rule, rewrite
from cedar.optimizer.rules import MOVES, RULES, TRIMS
from cedar.plan import graph
from cedar.plan.data import Budget, Check, Cluster, Decision, Plan, Prediction
from cedar.plan.graph import Node
from cedar.plan.lower import Choice, does
from cedar.plan.places import REMOTE
from cedar.plan.splits import Splits
from cedar.plan.steps.order import may_swap
from cedar.plan.steps.step import CacheLimits, Factors, Facts, Refusal, facts_of
from cedar.profile import Profile

if TYPE_CHECKING:
    from cedar.optimizer.search import SearchResult

_log = logging.getLogger("cedar")
_CHECK_SECONDS = (
    1.0  # maximum seconds for checks; after a failed one, the rule to blame is dropped and the next plan checked
)
ORDER, PLACE = "order", "place"  # rule names of the search's decisions
NAMES = (*(rule.__name__ for rule in RULES), ORDER, PLACE)
_ORDER_REFUSED = Refusal("its results differed on the first rows")


@dataclass
class AutoPlanner:
    """Chooses plans for one pipeline.

    Args:
        root: the pipeline as written.
        skips: returns whether a node has a policy for rows that fail.
        splits: the sources' splits, from their metadata.
        budget: resources that a plan may use.
        executors: names of the executors that a plan may use.
        workers: how many tasks run concurrently.
        most_workers: maximum number of workers if waiting limits a plan; None keeps ``workers``.
        exact: False allows rewrites within an operator's tolerance.
        keeping: the limits of storing rows between epochs; with None, caches stay where they are.
        factors: returns how often rows repeat in the columns of a ``dedup()``; with None, each ``dedup()`` stays.
        cluster: a cluster that a plan may use, with its measured overhead.
        rules: the caller's rules, which run after the built-in rules that move operators.
        refused: names of disabled rules; "order" and "place" disable the search's choice of order and of executors.
    """

    root: Node
    skips: Callable[[Node], bool]
    splits: Splits = field(repr=False)
    budget: Budget = field(default_factory=Budget)
    executors: Sequence[str] = ("threads",)
    workers: int = 1
    most_workers: int | None = None
    exact: bool = True
    rules: tuple[Rule, ...] = ()
    refused: frozenset[str] = frozenset()
    keeping: CacheLimits | None = None
    factors: Factors | None = None
    cluster: Cluster | None = None
    _refusals: list[Decision] = field(default_factory=list, repr=False)
    _broken: bool = field(default=False, repr=False)

    @property
    def limits(self) -> tuple[object, ...]:
        """What determines the plans besides the pipeline; values whose ``repr`` is the same in every process."""
        b, rules = self.budget, [rule.__name__ for rule in self.rules]
        budget = b.cpus, b.memory, b.cache, b.layout_place, b.cluster is not None
        return *budget, tuple(self.executors), self.workers, self.most_workers, self.exact, rules, sorted(self.refused)

    def begin(self) -> Plan:
        """Return the initial plan, which uses only what operators declare; nothing runs."""
        try:
            done = rewrite(self._facts(self.root, None), (*MOVES, *self.rules, *TRIMS))
        except Exception as error:  # noqa: BLE001 - the pipeline as written always runs
            if not isinstance(error, CedarError):  # a CedarError is the pipeline's own, and its run raises it again
                _log.warning("the rules of the optimizer failed: the pipeline runs as written", exc_info=True)
            self._broken = True
            return Plan.as_written(self.root)
        reported = (*done.decisions, *self._refusals)
        return Plan(
            self.root,
            done.root,
            reported,
            method="rules",
            cache_bytes=self.budget.cache_bytes,
            memory_bytes=self.budget.memory_bytes,
            sweeps=done.sweeps,
        )

    def admit(self, plan: Plan, check: Check) -> Plan:
        """Return the initial plan without the rule that changes the first rows; as written if no single rule does."""
        difference = check(plan)
        if difference is None:
            return plan
        culprit = self._culprit(plan, AutoPlanner.begin, check, math.inf)
        if culprit is None:
            decision = Decision("plan", "all of it", applied=False, why=difference.what)
            return replace(Plan.as_written(self.root), decisions=(*plan.decisions, decision))
        self.refused |= {culprit}
        self._refusals.append(Decision(culprit, "all of it", applied=False, why=difference.what))
        return self.begin()

    def candidates(self, profile: Profile) -> tuple[Plan, ...]:
        """Return the best plan each for threads, one thread, processes and a cluster, unchecked.

        One thread may be as fast as several threads that contend for the GIL; per-call measurements cannot show this.
        """
        if self._broken:
            return ()
        here = tuple(place for place in self.executors if place != REMOTE)
        asks: list[dict[str, Any]] = [{"executors": here}] if here else []
        if here and self.most_workers is not None and self.workers > 1:
            asks.append({"executors": here, "workers": 1, "most_workers": None})
        if REMOTE in self.executors and (PLACE not in self.refused or not here):
            asks.append({})
        if self.cluster is not None and PLACE not in self.refused:
            asks.append({"executors": here or self.executors, "cluster": self.cluster})
        moved = self._moved(profile)
        return tuple(self._best(profile, False, moved, **{"cluster": None, **limits}) for limits in asks)

    def checked(self, plan: Plan, profile: Profile, check: Check) -> Plan:
        """Return the plan without rules that change results on the first rows."""
        places = tuple({node.place for node in graph.walk(plan.root) if node.place} | {plan.executor or "threads"})
        cluster = self.cluster if self.cluster is not None and self.cluster.address in places else None
        here = tuple(place for place in self.executors if place in places)

        def again(planner: AutoPlanner) -> Plan:
            workers = plan.workers or self.workers
            limits = {"executors": here or self.executors, "workers": workers, "most_workers": None, "cluster": cluster}
            return planner._best(profile, False, planner._moved(profile), **limits)

        return self._checked(plan, again, check)

    def chosen(self, profile: Profile, check: Check) -> Plan:
        """Return the best plan for a profile, however small its gain, without rules that change the first rows."""
        return self._checked(self.best(profile), lambda planner: planner.best(profile), check)

    def _predicted(self, current: Plan, profile: Profile, more: bool = True) -> Prediction:
        """Predict a plan's performance from a new profile."""
        from cedar.optimizer.search import predict_lowered  # searches begin after the first batch

        places = {node.place for node in graph.walk(current.root) if node.place}
        executors = (*(place for place in self.executors if place not in places), *sorted(places))
        cluster = self.cluster if self.cluster is not None and self.cluster.address in places else None
        facts, workers = self._facts(current.root, profile), current.workers or self.workers
        return predict_lowered(current.root, facts, self.budget, executors, workers, self._lowering, cluster, more)

    def with_prediction(self, plan: Plan, profile: Profile) -> Plan:
        """Return the same plan with a prediction from a new profile."""
        return plan if self._broken else replace(plan, prediction=self._predicted(plan, profile), profile=profile)

    def best(self, profile: Profile) -> Plan:
        """Return the best plan for a profile, unchecked."""
        return self._best(profile, True, self._moved(profile))

    def _moved(self, profile: Profile) -> Rewritten:
        """Return the graph after the rules that move operators, which do not depend on places."""
        return rewrite(self._facts(self.root, profile), (*MOVES, *self.rules))

    def _best(self, profile: Profile, turns: bool, moved: Rewritten, **limits: Any) -> Plan:
        """Return the best plan within ``limits``, which override attributes; ``turns``: whether to try one thread."""
        asks = replace(self, **limits)
        searched = asks._search(moved.root, profile, turns)
        trimmed = rewrite(asks._facts(searched.root, profile), TRIMS)
        plan = Plan(
            self.root,
            trimmed.root,
            (*moved.decisions, *searched.decisions, *trimmed.decisions, *self._refusals),
            None,
            searched.method,
            searched.executor,
            searched.workers,
            profile,
            self.budget.cache_bytes,
            self.budget.memory_bytes,
            sweeps=(*moved.sweeps, *searched.sweeps, *trimmed.sweeps),
        )
        return replace(
            plan, prediction=asks._predicted(plan, profile, more=turns)
        )  # plans for trials do not need ``more`` yet

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _checked(self, plan: Plan, again: Callable[[AutoPlanner], Plan], check: Check) -> Plan:
        """Return the plan without rules that change results on the first rows. Every rewritten plan is checked."""
        if does(plan.root, self.root) == does(self.root, self.root):
            return plan
        end = time.perf_counter() + _CHECK_SECONDS
        while time.perf_counter() < end:
            difference = check(plan)
            if difference is None:
                return plan
            culprit = self._culprit(plan, again, check, end)
            self._refusals.append(Decision(culprit or "plan", "all of it", applied=False, why=difference.what))
            self.refused |= {culprit} if culprit else {*NAMES, *(rule.__name__ for rule in self.rules)} - {PLACE}
            plan = again(self)
            if culprit is None:
                return plan  # this plan only chooses places
        return replace(Plan.as_written(self.root), decisions=tuple(self._refusals), profile=plan.profile)

    def _culprit(self, plan: Plan, again: Callable[[AutoPlanner], Plan], check: Check, end: float) -> str | None:
        """Return the rule that makes the plan deliver different rows; None if no single rule does, or time ran out."""
        for name in dict.fromkeys(d.rule for d in reversed(plan.decisions) if d.applied and d.rule != PLACE):
            # the last rule first, because later rules may depend on earlier ones
            without = replace(self, refused=self.refused | {name}, _refusals=[])
            if time.perf_counter() > end:
                return None
            if check(again(without)) is None:
                return name
        return None

    def _search(self, root: Node, profile: Profile, turns: bool) -> SearchResult:
        from cedar.optimizer.search import search

        here = tuple(place for place in self.executors if place != REMOTE)
        return search(
            root,
            self._facts(root, profile),
            self.budget,
            here or self.executors if PLACE in self.refused else self.executors,
            self.workers,
            most_workers=self.most_workers,
            turns=turns,
            swap=(lambda *_: _ORDER_REFUSED) if ORDER in self.refused else may_swap,
            cluster=None if PLACE in self.refused else self.cluster,
            lowering=self._lowering,
        )

    @property
    def _lowering(self) -> Choice:
        return Choice(self.executors[0], splits=self.splits, settled=self.splits.settled)

    def _facts(self, root: Node, profile: Profile | None) -> Facts:
        return facts_of(
            self.root, root, self.skips, profile, exact=self.exact, refused=self.refused,
            streams=lambda node: self.splits(node).streams, keeping=self.keeping, factors=self.factors,
        )  # fmt: skip
