"""Rewrite: what rules propose, and a pass that applies the proposed steps until none applies and records each."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from cedar.core.boundary import first_line
from cedar.core.errors import CedarError
from cedar.optimizer.flow import core_seconds
from cedar.plan.data import Decision
from cedar.plan.graph import Node
from cedar.plan.steps.pushdown import KeepOrder
from cedar.plan.steps.step import Facts, Refusal, Step
from cedar.plan.steps.sweep import Sweep, key_of, one_step, run_pass

_NOISE = 1.01  # estimated costs of two graphs within this factor count as equal


@dataclass(frozen=True)
class Change:
    """A step that a rule proposes at a node, with a description for users.

    Args:
        step: the step, which is checked before it is applied; ``explain()`` shows why a step was refused.
        what: label of the operator that moves or changes, for messages.
        how: a description such as "below map(f)".
        also: the labels and descriptions of other operators that the step moves.
    """

    step: Step
    what: str
    how: str = ""
    also: tuple[tuple[str, str], ...] = ()


class Rule(Protocol):
    """A function of a node and the facts. It returns a step, Refusals with reasons, or None if it does not apply.

    The function's ``__name__`` is the rule's name. cedar calls a rule for inputs before outputs, or in reverse order if
    it is marked with ``downward``. A rewrite never returns to an earlier graph, so it ends if rules undo each other.
    """

    __name__: str

    def __call__(self, node: Node, facts: Facts, /) -> Outcome: ...


Outcome: TypeAlias = "Step | Change | Refusal | tuple[Refusal, ...] | None"


def downward(rule: Rule) -> Rule:
    """Mark a rule to be called for outputs first, so that ``facts.live`` reflects earlier changes to nodes above."""
    vars(rule)["downward"] = True
    return rule


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
    run = Rewriting(facts, seen={key_of(facts.root, facts.ordinals)})
    changed = True
    while changed:
        changed, run.refusals, run.failed = False, {}, {}
        for rule in rules:
            while rule.__name__ not in run.facts.refused and run.apply(rule):
                changed = True
    root, last = one_step(run.facts, KeepOrder())
    sweeps = run.sweeps if root is run.facts.root else [*run.sweeps, last]
    applied = [Decision(rule, _format_change(what, hows), applied=True) for (rule, what), hows in run.applied.items()]
    failed = [Decision(rule, label, applied=False, why=why) for (rule, label), why in run.failed.items()]
    return Rewritten(root, tuple(sweeps), (*applied, *run.refusals, *failed))


@dataclass
class Rewriting:
    """The state of a rewrite in progress.

    Args:
        facts: facts of the current graph.
        seen: keys of the graphs so far.
        applied: descriptions of the changes, by rule and operator.
        refusals: the refused changes, in order.
        failed: why a rule's change at an operator was undone.
        sweeps: the steps so far.
    """

    facts: Facts
    seen: set[Hashable]
    applied: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    refusals: dict[Decision, None] = field(default_factory=dict)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    sweeps: list[Sweep] = field(default_factory=list)

    def apply(self, rule: Rule) -> bool:
        """Apply a rule's steps in one pass, or one step if all together do not help. Return whether any applied."""
        alone = False
        while True:
            changes, why = self.run_pass(rule, alone)
            if not changes or not why:
                return bool(changes)
            if alone or (len(changes) == 1 and not changes[0][1].also):
                self.failed[rule.__name__, changes[0][0]] = why
            alone = True

    def run_pass(self, rule: Rule, alone: bool) -> tuple[list[tuple[str, Change]], str]:
        """Run a pass of a rule over every node.

        Returns:
            The changes (with ``alone``, at most one) with the label of the node at which the rule proposed each, and
            why the new graph is rejected, or "".
        """
        name = rule.__name__
        changes: list[tuple[str, Change]] = []

        def ask(_number: int, node: Node, facts: Facts) -> Step | None:
            if (alone and changes) or (self.failed and (name, facts.label(node)) in self.failed):
                return None
            outcome = rule(node, facts)
            change = None if outcome is None else self._checked(outcome, rule, node, facts)
            if change is None:
                return None
            changes.append((facts.label(node), change))
            return change.step

        try:
            root, sweep = run_pass(replace(self.facts, alone=alone), ask, getattr(rule, "downward", False))
            if not changes:
                return changes, ""
            facts = self.facts.at(root)
        except CedarError as error:  # the pipeline as written is valid, so the rule is to blame
            return changes, first_line(error)
        key, how = key_of(facts.root, facts.ordinals), changes[0][1].how or "the change"
        if key in self.seen:
            return changes, f"{how}: it leads back to an earlier plan"
        self.seen.add(key)
        if self.facts.profile is not None:
            before, after = core_seconds(self.facts), core_seconds(facts)
            if after > before * _NOISE:
                return changes, f"{how}: it would cost {after / before - 1:.0%} more"
        self.facts = facts
        self.sweeps.append(sweep)
        for _, change in changes:
            for what, how in ((change.what, change.how), *change.also):
                hows = self.applied.setdefault((name, what), [])
                if how not in hows:
                    hows.append(how)
        return changes, ""

    def _checked(self, outcome: Outcome, rule: Rule, node: Node, facts: Facts) -> Change | None:
        """Return the change that a rule proposes at a node if its step may be applied; otherwise record why not."""
        label = facts.label(node)
        change = Change(outcome, label) if isinstance(outcome, Step) else outcome
        if isinstance(change, Change) and isinstance(change.step, Step):
            refusal = change.step.check(node, facts)
            if refusal is None:
                return change
            refusals: tuple[Refusal, ...] = (Refusal(refusal.reason, refusal.what or change.what),)
        elif isinstance(change, Refusal | tuple):
            refusals = change if isinstance(change, tuple) else (change,)
        else:
            refusals = (Refusal(f"it returned {type(outcome).__name__}; expected a step from cedar.plan.steps"),)
        for each in refusals:
            self.refusals[Decision(rule.__name__, each.what or label, applied=False, why=each.reason)] = None
        return None


def _format_change(operator: str, hows: Sequence[str]) -> str:
    """Format an operator and what happened to it, such as "filter(x): below map(f), shuffle"."""
    reported: list[str] = []
    for how in filter(None, hows):
        again = bool(reported) and how.startswith("below ") and reported[-1].startswith("below ")
        reported[-1:] = [f"{reported[-1]}, {how.removeprefix('below ')}"] if again else [*reported[-1:], how]
    return f"{operator}: {', '.join(reported)}" if reported else operator
