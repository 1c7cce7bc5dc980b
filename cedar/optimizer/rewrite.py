"""Rewrite: applies rules to a graph until none applies any more, and says what they did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from cedar import graph
from cedar.datasets.base import Read
from cedar.errors import CedarError
from cedar.graph import Node
from cedar.operators.base import Schema
from cedar.optimizer.edit import fit, substitute, tidy
from cedar.optimizer.facts import Change, Factors, Facts, Keeping, Refusal, Rule
from cedar.optimizer.live import live_columns
from cedar.optimizer.measure import Measure, measure
from cedar.optimizer.order import restore_order
from cedar.optimizer.rules.cache_place import misplaced
from cedar.optimizer.rules.dead_columns import carried
from cedar.plan.data import Decision
from cedar.profile import Profile

FactsOf: TypeAlias = Callable[[Node], Facts]


def rewrite(root: Node, rules: Sequence[Rule], facts_of: FactsOf) -> tuple[Node, list[Decision]]:
    """The graph after all rules, with its columns in their order as written, and what was done and refused.

    Comes to an end whatever the rules do: a change that does not lower the measure of the graph is not made.

    Args:
        root: the pipeline as written, or a plan's graph.
        rules: in the order in which they are tried; each is applied wherever it applies, and all again after a change.
        facts_of: the facts of a graph under rewriting, as ``facts_of`` below makes them.
    """
    run = Rewriting(facts_of(root), facts_of, rules)
    changed = True
    while changed:
        changed, run.refusals, run.failed = False, {}, {}
        for rule in rules:
            while rule.__name__ not in run.facts.refused and run.apply(rule):
                changed = True
    assert run.facts.root is not None
    ordered = restore_order(tidied := tidy(run.facts.root, run.facts), facts_of(tidied))
    return ordered, run.decisions()


@dataclass
class Rewriting:
    """A graph on its way from rule to rule.

    Args:
        facts: of the graph as it is.
        facts_of: makes those of another one.
        rules: all that are tried; a rule of others may have a ``measure(facts)`` that it lowers and no other raises.
        applied, refusals, failed: what was done, what did not apply, and what was not done, and why.
        measured: the measure of the graph, once somebody asked.
    """

    facts: Facts
    facts_of: FactsOf
    rules: Sequence[Rule]
    applied: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    refusals: dict[tuple[str, str, str], Decision] = field(default_factory=dict)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    measured: Measure | None = None

    def apply(self, rule: Rule) -> bool:
        """The first change that a rule makes; False if it makes none."""
        assert self.facts.root is not None
        for node in graph.walk(self.facts.root):
            label = self.facts.label(node)
            if (rule.__name__, label) in self.failed:
                continue
            outcome = rule(node, self.facts)
            if isinstance(outcome, Refusal):
                refused = Decision(rule.__name__, outcome.what or label, applied=False, why=outcome.reason)
                self.refusals.setdefault((refused.rule, refused.what, refused.why), refused)
            elif outcome is not None and self._take(rule, node, outcome, label):
                return True
        return False

    def _take(self, rule: Rule, node: Node, outcome: Node | Change, label: str) -> bool:
        change = outcome if isinstance(outcome, Change) else Change(outcome, label)
        assert self.facts.root is not None
        try:
            facts = self.facts_of(fit(substitute(self.facts.root, node, change.node, self.facts), self.facts))
        except CedarError as error:  # the pipeline as written is sound, so this is the rule's doing
            self.failed[rule.__name__, label] = str(error).partition("\n")[0]
            return False
        before, after = self.measured or self.measure(self.facts), self.measure(facts)
        if not after < before:
            self.failed[rule.__name__, label] = f"{change.how or 'the change'}: it brings the plan no further"
            return False
        self.facts, self.measured = facts, after
        hows = self.applied.setdefault((rule.__name__, change.what), [])
        if change.how not in hows:
            hows.append(change.how)
        return True

    def measure(self, facts: Facts) -> Measure:
        """Of a graph, which every change lowers: that of our own rules, then what others say of theirs."""
        theirs = (getattr(rule, "measure", None) for rule in self.rules)
        return *measure(facts, misplaced(facts), carried(facts)), *(each(facts) for each in theirs if each is not None)

    def decisions(self) -> list[Decision]:
        """One for each operator and rule that changed it, then one for each thing that did not happen."""
        made = [Decision(rule, _told(what, hows), applied=True) for (rule, what), hows in self.applied.items()]
        broken = [Decision(rule, label, applied=False, why=why) for (rule, label), why in self.failed.items()]
        return [*made, *self.refusals.values(), *broken]


def _told(what: str, hows: Sequence[str]) -> str:
    """Such as "filter(x): below map(f), shuffle"."""
    told: list[str] = []
    for how in filter(None, hows):
        again = bool(told) and how.startswith("below ") and told[-1].startswith("below ")
        told[-1:] = [f"{told[-1]}, {how.removeprefix('below ')}"] if again else [*told[-1:], how]
    return f"{what}: {', '.join(told)}" if told else what


def facts_of(
    logical: Node,
    root: Node,
    skips: Callable[[Node], bool],
    profile: Profile | None = None,
    *,
    exact: bool = True,
    refused: frozenset[str] = frozenset(),
    streams: Callable[[Node], bool] | None = None,
    known: dict[int, tuple[Node, Schema]] | None = None,
    keeping: Keeping | None = None,
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
        known: schemas of earlier graphs, kept from one call to the next: hand in one dict for all of them.
        keeping: what it costs to keep rows between epochs; None where nothing is kept.
        factors: how often rows repeat, of the columns of a ``dedup()``; None where that is not to be found out.
    """
    nodes = list(graph.walk(root))
    schemas = _schemas(nodes, {} if known is None else known)
    return Facts(
        logical=logical,
        ordinals={id(node): i for i, node in enumerate(graph.walk(logical))},
        labels=graph.labels(logical),
        schemas=schemas,
        consumers=Counter(id(child) for node in nodes for child in node.inputs),
        skips=skips,
        profile=profile,
        exact=exact,
        refused=refused,
        root=root,
        live=live_columns(root, schemas),
        batched=graph.batched(root),
        streams=streams or _reads_from_the_beginning,
        keeping=keeping,
        factors=factors,
    )


def _schemas(nodes: Sequence[Node], known: dict[int, tuple[Node, Schema]]) -> dict[int, Schema]:
    found: dict[int, Schema] = {}
    for node in nodes:
        if id(node) not in known:
            with graph.at_site(node):
                known[id(node)] = node, node.operator.schema(*(found[id(child)] for child in node.inputs))
        found[id(node)] = known[id(node)][1]
    return found


def _reads_from_the_beginning(node: Node) -> bool:
    assert isinstance(node.operator, Read)
    try:
        return any(getattr(split, "streaming", False) for split in node.operator.source.splits())
    except Exception:  # noqa: BLE001 - the run lists them again, and says what is wrong
        return True
