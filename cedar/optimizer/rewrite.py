"""Rewrite: applies the steps that rules propose until none applies, and records applied and refused steps."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from cedar.core.errors import CedarError
from cedar.optimizer.facts import Change, Facts, Refusal, Rule, Step
from cedar.optimizer.flow import core_seconds
from cedar.plan.data import Decision
from cedar.plan.graph import Node
from cedar.plan.steps.columns import KeepOrder
from cedar.plan.steps.sweep import Pass, Sweep, first_line, key_of, one_step

_NOISE = 1.01  # estimated costs of two graphs within this factor count as equal


@dataclass(frozen=True)
class Rewritten:
    """The graph after all rules, the steps that produced it, and the applied and refused changes."""

    root: Node
    sweeps: tuple[Sweep, ...]
    decisions: tuple[Decision, ...]


def rewrite(facts: Facts, rules: Sequence[Rule]) -> Rewritten:
    """Apply all rules, then restore the column order of the pipeline as written.

    A rewrite never returns to an earlier graph, so it terminates whatever the rules do.

    Args:
        facts: facts of the pipeline as written, or of a plan's graph.
        rules: applied in this order, each as often as possible. After a change, all rules are applied again.
    """
    run = Rewriting(facts, rules)
    changed = True
    while changed:
        changed, run.refusals, run.failed = False, {}, {}
        for rule in rules:
            while rule.__name__ not in run.facts.refused and run.apply(rule):
                changed = True
    root, last = one_step(run.facts, KeepOrder())
    sweeps = run.sweeps if root is run.facts.root else [*run.sweeps, last]
    return Rewritten(root, tuple(sweeps), tuple(run.decisions()))


@dataclass
class Rewriting:
    """The state of a rewrite in progress.

    Args:
        facts: facts of the current graph.
        rules: all rules to try.
        applied, refusals, failed: changes that were made, refused, or undone, with reasons.
        sweeps: the steps so far.
    """

    facts: Facts
    rules: Sequence[Rule]
    applied: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    refusals: dict[tuple[str, str, str], Decision] = field(default_factory=dict)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    sweeps: list[Sweep] = field(default_factory=list)
    _seen: set[Hashable] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._seen.add(key_of(self.facts.root, self.facts.ordinals))

    def apply(self, rule: Rule) -> bool:
        """Apply a rule's steps in one pass, or one step if all together do not help. Return whether any applied."""
        most = len(self.facts.consumers)
        while (rule_pass := RulePass(self, rule, most)).run():
            why = rule_pass.why or self._accept(rule, rule_pass)
            if not why:
                return True
            if len(rule_pass.changes) > 1:
                most = 1
            else:
                self.failed[rule.__name__, rule_pass.changes[0].label] = why
        return False

    def _accept(self, rule: Rule, rule_pass: RulePass) -> str:
        """Continue with the graph after a pass and return "", or return why the graph is rejected."""
        try:
            facts = self.facts.at(rule_pass.root)
        except CedarError as error:  # the pipeline as written is valid, so the rule is to blame
            return first_line(error)
        key = key_of(facts.root, facts.ordinals)
        if key in self._seen:
            return f"{rule_pass.changes[0].change.how or 'the change'}: it leads back to an earlier plan"
        self._seen.add(key)
        before, after = core_seconds(self.facts), core_seconds(facts)
        if after > before * _NOISE:
            return f"{rule_pass.changes[0].change.how or 'the change'}: it would cost {after / before - 1:.0%} more"
        self.facts = facts
        self.sweeps.append(rule_pass.sweep)
        for each in rule_pass.changes:
            hows = self.applied.setdefault((rule.__name__, each.change.what), [])
            if each.change.how not in hows:
                hows.append(each.change.how)
        return ""

    def decisions(self) -> list[Decision]:
        """Return a decision for each change, then one for each change that was refused or failed."""
        applied = [
            Decision(rule, _format_change(operator, hows), applied=True)
            for (rule, operator), hows in self.applied.items()
        ]
        broken = [Decision(rule, label, applied=False, why=why) for (rule, label), why in self.failed.items()]
        return [*applied, *self.refusals.values(), *broken]


@dataclass(frozen=True)
class AppliedChange:
    """A change made in a pass, and the label of the operator at which the rule proposed it."""

    change: Change
    label: str


class RulePass:
    """A pass of one rule over every node of a graph. Each step is checked before it is applied.

    Args:
        most: the maximum number of changes.
    """

    def __init__(self, run: Rewriting, rule: Rule, most: int) -> None:
        self._run, self._rule, self._most = run, rule, most
        self.root = run.facts.root
        self.sweep = Sweep(())
        self.changes: list[AppliedChange] = []
        self.why = ""  # why the new graph is invalid, if it is

    def run(self) -> list[AppliedChange]:
        """Run the pass and return its changes; afterwards ``root`` is the new graph."""
        graph_pass = Pass(self._run.facts, self._step, getattr(self._rule, "downward", False))
        try:
            self.root = graph_pass.run()
            self.sweep = graph_pass.sweep
        except CedarError as error:
            self.why = first_line(error)
        return self.changes

    def _step(self, _number: int, node: Node, facts: Facts) -> Step | None:
        """Return the step that the rule proposes at a node, if it passes its check."""
        run, rule = self._run, self._rule.__name__
        if len(self.changes) >= self._most or (run.failed and (rule, facts.label(node)) in run.failed):
            return None
        outcome = self._rule(node, facts)
        if outcome is None:
            return None
        label = facts.label(node)
        change = Change(outcome, label) if isinstance(outcome, Step) else outcome
        if not isinstance(change, Refusal | Change) or (
            isinstance(change, Change) and not isinstance(change.step, Step)
        ):
            change = Refusal(f"it returned {type(outcome).__name__}; expected a step from cedar.plan.steps")
        if isinstance(change, Change):
            refusal = change.step.check(node, facts)
            if refusal is None:
                self.changes.append(AppliedChange(change, label))
                return change.step
            refusal = Refusal(refusal.reason, refusal.what or change.what)
        else:
            refusal = change
        refused = Decision(rule, refusal.what or label, applied=False, why=refusal.reason)
        run.refusals.setdefault((refused.rule, refused.what, refused.why), refused)
        return None


def _format_change(operator: str, hows: Sequence[str]) -> str:
    """Format an operator and what happened to it, such as "filter(x): below map(f), shuffle"."""
    reported: list[str] = []
    for how in filter(None, hows):
        again = bool(reported) and how.startswith("below ") and reported[-1].startswith("below ")
        reported[-1:] = [f"{reported[-1]}, {how.removeprefix('below ')}"] if again else [*reported[-1:], how]
    return f"{operator}: {', '.join(reported)}" if reported else operator
