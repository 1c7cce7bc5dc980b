"""What runs is the physical plan: lowered once, compiled once for the rows of an epoch, and compared as it runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import cedar
from cedar import col
from cedar.engine import binding as binding_module
from cedar.engine.binding import Binding
from cedar.engine.compiler import Compiler
from cedar.engine.first_rows import FirstRows
from cedar.operators.base import Env
from cedar.pipeline.planning import initial_plan
from cedar.plan.lower import lower


def pipeline() -> cedar.Pipeline:
    p = cedar.from_items([{"x": i, "y": i % 7} for i in range(90)]).map(lambda x: x + 1, "x", dtype=int)
    return p.filter(col("y") > 2).shuffle(window=20).batch(4)


@pytest.mark.parametrize("plan", ["off", "auto"])
def test_a_plan_is_lowered_once_for_all_epochs(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()
    roots: list[Any] = []
    made = Compiler.__init__

    def compiled(self: Compiler, *args: Any) -> None:
        counts["compiled"] += 1
        made(self, *args)

    def lowered(*args: Any) -> Any:
        roots.append(args[0])
        return lower(*args)

    monkeypatch.setattr(FirstRows, "difference", lambda *_: None)  # which compiles twins
    monkeypatch.setattr(Compiler, "__init__", compiled)
    monkeypatch.setattr(binding_module, "lower", lowered)
    loader = pipeline().loader(executor="inline", plan=plan, seed=1)
    for _ in range(3):
        assert sum(1 for _ in loader)
    assert len({id(root) for root in roots}) == len(roots)
    assert counts["compiled"] == 3


def test_a_plan_is_compared_in_the_stages_in_which_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    p = pipeline()
    plan, binding = initial_plan(p.node), Binding(p.node, None, Env())
    seen: list[Any] = []
    made = Compiler.top

    def top(self: Compiler, *args: Any) -> Any:
        seen.append(self.physical.stages)
        return made(self, *args)

    monkeypatch.setattr(Compiler, "top", top)
    assert FirstRows(binding).difference(plan) is None
    pairs = len(seen) // 2
    assert seen == [binding.lowered(p.node).stages, binding.lowered(plan.root).stages] * pairs
    assert seen[0] != seen[1]


def test_a_plan_that_cannot_be_compiled_runs_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    p = pipeline()
    made = Compiler.__init__

    def compiled(self: Compiler, physical: Any, *args: Any) -> None:
        if physical.nodes[-1] is not p.node:
            raise RuntimeError("no such stage")
        made(self, physical, *args)

    with p.loader(executor="inline", plan="off", seed=1) as loader:
        written = [batch["x"].tolist() for batch in loader]
    plan = initial_plan(p.node)
    assert plan.root is not p.node
    monkeypatch.setattr(FirstRows, "difference", lambda *_: None)
    monkeypatch.setattr(Compiler, "__init__", compiled)
    with p.loader(executor="inline", seed=1) as loader:
        assert [batch["x"].tolist() for batch in loader] == written
        assert "RuntimeError" in str(loader.report())
