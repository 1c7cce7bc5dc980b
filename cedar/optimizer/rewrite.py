"""Rewrite: applies rules to a graph until none applies any more, and says what they did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cedar.core.errors import CedarError
from cedar.datasets.base import Read
from cedar.datasets.split_table import SplitTable
from cedar.optimizer.edit import fitted, restore_order, tidy
from cedar.optimizer.facts import CacheCosts, Change, Factors, Facts, Refusal, Rule
from cedar.optimizer.live import all_of, spread, union
from cedar.optimizer.measure import Measure, measure
from cedar.optimizer.rules.cache_place import misplaced
from cedar.optimizer.rules.dead_columns import carried
from cedar.plan import graph
from cedar.plan.data import Decision
from cedar.plan.graph import Node
from cedar.profile import Profile


def rewrite(facts: Facts, rules: Sequence[Rule]) -> tuple[Node, list[Decision]]:
    """The graph after all rules, with its columns in their order as written, and what was done and refused.

    Comes to an end whatever the rules do: changes that do not lower the measure of the graph are not made.

    Args:
        facts: of the pipeline as written, or of a plan's graph.
        rules: in the order in which they are tried; each is applied wherever it applies, and all again after a change.
    """
    run = Rewriting(facts, rules)
    changed = True
    while changed:
        changed, run.refusals, run.failed = False, {}, {}
        for rule in rules:
            while rule.__name__ not in run.facts.refused and run.apply(rule):
                changed = True
    tidied = tidy(run.facts.root, run.facts)
    return restore_order(tidied, run.facts.at(tidied)), run.decisions()


@dataclass
class Rewriting:
    """A graph on its way from rule to rule.

    A rule is asked about every node in one pass, and the graph is built anew once for all that it changes; the measure
    is taken of the whole. So the work of a rewriting grows with the graph, not with its square for each change.

    Args:
        facts: of the graph as it is.
        rules: all that are tried; a rule of others may have a ``measure(facts)`` that it lowers and no other raises.
        applied, refusals, failed: what was done, what did not apply, and what was not done, and why.
        measured: the measure of the graph, once somebody asked.
    """

    facts: Facts
    rules: Sequence[Rule]
    applied: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    refusals: dict[tuple[str, str, str], Decision] = field(default_factory=dict)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    measured: Measure | None = None

    def apply(self, rule: Rule) -> bool:
        """All changes that a rule makes in a pass; one alone where together they do no good; False for none."""
        most = len(self.facts.consumers)
        while made := (sweep := Pass(self, rule, most)).run():
            why = sweep.why or self._take(rule, sweep)
            if not why:
                return True
            if len(made) > 1:
                most = 1
            else:
                self.failed[rule.__name__, made[0].label] = why
        return False

    def _take(self, rule: Rule, sweep: Pass) -> str:
        """Go on with the graph after a pass; else why not."""
        try:
            facts = self.facts.at(sweep.root)
        except CedarError as error:  # the pipeline as written is sound, so this is the rule's doing
            return _first_line(error)
        before, after = self.measured or self.measure(self.facts), self.measure(facts)
        if not after < before:
            return f"{sweep.made[0].change.how or 'the change'}: it brings the plan no further"
        self.facts, self.measured = facts, after
        for each in sweep.made:
            hows = self.applied.setdefault((rule.__name__, each.change.what), [])
            if each.change.how not in hows:
                hows.append(each.change.how)
        return ""

    def measure(self, facts: Facts) -> Measure:
        """Of a graph, which every change lowers: that of our own rules, then what others say of theirs."""
        theirs = (getattr(rule, "measure", None) for rule in self.rules)
        return *measure(facts, misplaced(facts), carried(facts)), *(each(facts) for each in theirs if each is not None)

    def decisions(self) -> list[Decision]:
        """One for each operator and rule that changed it, then one for each thing that did not happen."""
        made = [Decision(rule, _told(operator, hows), applied=True) for (rule, operator), hows in self.applied.items()]
        broken = [Decision(rule, label, applied=False, why=why) for (rule, label), why in self.failed.items()]
        return [*made, *self.refusals.values(), *broken]


@dataclass(frozen=True)
class AppliedChange:
    """A change of a pass, and the operator that the rule looked at."""

    change: Change
    label: str


class Pass:
    """One rule asked about every node of a graph: inputs first, or outputs first where the rule goes by what is read.

    Args:
        most: changes after which the rest stays as it is.
    """

    def __init__(self, run: Rewriting, rule: Rule, most: int) -> None:
        self.run_, self.rule, self.most = run, rule, most
        self.facts = run.facts.moving()
        self.root = run.facts.root
        self.made: list[AppliedChange] = []
        self.why = ""  # the graph cannot be, if set

    def run(self) -> list[AppliedChange]:
        """The changes made; ``root`` is the graph after them."""
        nodes = list(graph.walk(self.root))
        try:
            self.root = (self._downward if getattr(self.rule, "downward", False) else self._upward)(nodes)
        except CedarError as error:
            self.why = _first_line(error)
        return self.made

    def _upward(self, nodes: list[Node]) -> Node:
        """Each node stands on what became of its inputs when it is asked about."""
        done: dict[int, Node] = {}
        for node in nodes:
            current = node
            if self.made:
                current = fitted(node, tuple(done.get(id(child), child) for child in node.inputs), self.facts)
                self.facts.stands_for(current, node)
            changed = self._asked(current)
            if changed is not node:
                self.facts.stands_for(changed, current)
                done[id(node)] = changed
        return done.get(id(nodes[-1]), nodes[-1])

    def _downward(self, nodes: list[Node]) -> Node:
        """What each node has to give is known from what became of those above it."""
        live, schemas = self.facts.live, self.facts.schemas
        live.clear()
        live[id(self.root)] = all_of(schemas[id(self.root)])
        old = {id(node) for node in nodes}
        tops: dict[int, Node] = {}
        for node in reversed(nodes):
            top = tops[id(node)] = self._asked(node)
            if top is not node:
                live[id(top)] = union(live[id(top)], live[id(node)]) if id(top) in live else live[id(node)]
            for each in [node] if top is node else [*graph.walk(top, old)][::-1]:
                spread(each, live, schemas)
        if not self.made:
            return self.root
        done: dict[int, Node] = {}
        for node in nodes:
            for each in [node] if tops[id(node)] is node else graph.walk(tops[id(node)], old):
                done[id(each)] = fitted(each, tuple(done[id(child)] for child in each.inputs), self.facts)
            done[id(node)] = done[id(tops[id(node)])]
        return done[id(nodes[-1])]

    def _asked(self, node: Node) -> Node:
        """What the rule makes of a node; the node itself where that is nothing."""
        run, rule = self.run_, self.rule.__name__
        if len(self.made) >= self.most or (run.failed and (rule, self.facts.label(node)) in run.failed):
            return node
        outcome = self.rule(node, self.facts)
        if outcome is None:
            return node
        label = self.facts.label(node)
        if isinstance(outcome, Refusal):
            refused = Decision(rule, outcome.what or label, applied=False, why=outcome.reason)
            run.refusals.setdefault((refused.rule, refused.what, refused.why), refused)
            return node
        change = outcome if isinstance(outcome, Change) else Change(outcome, label)
        self.made.append(AppliedChange(change, label))
        self.facts.learn(change.node)
        return change.node


def _first_line(error: CedarError) -> str:
    return str(error).partition("\n")[0]


def _told(operator: str, hows: Sequence[str]) -> str:
    """Such as "filter(x): below map(f), shuffle"."""
    told: list[str] = []
    for how in filter(None, hows):
        again = bool(told) and how.startswith("below ") and told[-1].startswith("below ")
        told[-1:] = [f"{told[-1]}, {how.removeprefix('below ')}"] if again else [*told[-1:], how]
    return f"{operator}: {', '.join(told)}" if told else operator


def facts_of(
    logical: Node,
    root: Node,
    skips: Callable[[Node], bool],
    profile: Profile | None = None,
    *,
    exact: bool = True,
    refused: frozenset[str] = frozenset(),
    streams: Callable[[Node], bool] | None = None,
    keeping: CacheCosts | None = None,
    factors: Factors | None = None,
) -> Facts:
    """The facts of a graph under rewriting.

    Args:
        logical: the pipeline as written.
        root: the graph.
        skips: whether a node has a policy for rows that fail.
        profile: what was measured.
        exact: False allows rewrites within an operator's tolerance.
        refused: names of rules not to try.
        streams: whether a source is read from its beginning only; by default its splits tell, which are listed here.
        keeping: what it costs to keep rows between epochs; None where nothing is kept.
        factors: how often rows repeat, of the columns of a ``dedup()``; None where that is not to be found out.
    """
    return Facts(
        logical=logical,
        ordinals={id(node): i for i, node in enumerate(graph.walk(logical))},
        labels=graph.labels(logical),
        skips=skips,
        profile=profile,
        exact=exact,
        refused=refused,
        root=root,
        streams=streams or _reads_from_the_beginning,
        keeping=keeping,
        factors=factors,
    ).at(root)


def _reads_from_the_beginning(node: Node) -> bool:
    assert isinstance(node.operator, Read)
    try:
        return SplitTable.of(node.operator.source.splits()).streams
    except Exception:  # noqa: BLE001 - the run lists them again, and says what is wrong
        return True
