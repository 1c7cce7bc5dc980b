"""An operator, a filter, a source, a rule and an executor of a third party get what ours get."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cedar
from cedar.plan import graph

CODE = """
import cedar, sys
cedar.from_items([{'x': 1}]).batch(1).explain()
print(any('cedar_extension' in name for name in sys.modules))
"""
FOLDER = Path(__file__).parents[1] / "examples" / "extension"


@pytest.fixture(scope="module")
def ext() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module("cedar_extension")
        for name in [name for name in sys.modules if name.partition(".")[0] == "cedar_extension"]:
            del sys.modules[name]


def rows(p: cedar.Pipeline, **options: Any) -> list[Any]:
    with p.loader(**{"executor": "inline"} | options) as loader:
        return [{name: column.tolist() for name, column in batch.items()} for batch in loader]


def planned(p: cedar.Pipeline, **options: Any) -> Any:
    return p.loader(executor="inline", **options)._epochs.job.plans.current


def names(plan: Any) -> list[str]:
    return [node.operator.name for node in graph.walk(plan.root)]


def test_cedar_knows_nothing_of_it() -> None:
    found = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, cwd=FOLDER.parents[1]
    )
    assert found.stdout.strip() == "False"


def test_a_filter_by_its_condition_becomes_part_of_reading_and_whole_splits_are_left_out(ext: Any) -> None:
    read = []

    class Watched(ext.Squares):  # type: ignore[misc, name-defined]
        def read(self, split: Any) -> Any:
            read.append(split.start)
            return super().read(split)

    p = cedar.from_source(Watched(10)).apply(ext.Scale("square", 0.5)).apply(ext.AtLeast("n", 800)).batch(50)
    written = rows(p, plan="off")
    assert "at_least" not in names(planned(p)), "it runs inside the scan, below what it was written above"
    read.clear()
    assert rows(p) == written
    assert set(read) <= {0, 800, 900}, "of the first one, types are found"


def test_columns_that_nobody_reads_are_not_asked_of_the_source(ext: Any) -> None:
    p = cedar.from_source(ext.Squares(4)).apply(ext.Scale("square", 2.0)).select("square").batch(50)
    scan: Any = next(n.operator for n in graph.walk(planned(p).root) if not n.inputs)
    assert scan.columns == ("square",)
    assert rows(p) == rows(p, plan="off")


def test_equal_operators_are_computed_once(ext: Any) -> None:
    base = cedar.from_source(ext.Squares(2))
    both = cedar.zip(
        base.apply(ext.Scale("n", 3.0)).select("n"), base.apply(ext.Scale("n", 3.0)).rename({"n": "m"}).select("m")
    ).batch(20)
    assert names(planned(both)).count("scale") == 1
    assert rows(both) == rows(both, plan="off")
    other = cedar.zip(
        base.apply(ext.Scale("n", 3.0)).select("n"), base.apply(ext.Scale("n", 4.0)).rename({"n": "m"}).select("m")
    ).batch(20)
    assert names(planned(other)).count("scale") == 2


def test_its_rule_is_applied_and_refused_by_name(ext: Any) -> None:
    p = cedar.from_source(ext.Squares(2)).apply(ext.Scale("n", 3.0)).apply(ext.Scale("n", 4.0)).batch(20)
    assert names(planned(p, rules=(ext.one_scale,))).count("scale") == 1
    assert rows(p, rules=(ext.one_scale,)) == rows(p, plan="off")
    odd = cedar.from_source(ext.Squares(2)).apply(ext.Scale("n", 4.0)).apply(ext.Scale("n", 3.0)).batch(20)
    decisions = planned(odd, rules=(ext.one_scale,)).decisions
    assert any(d.rule == "one_scale" and not d.applied and "last bit" in str(d.why) for d in decisions)


def test_its_executor_runs_every_place(ext: Any) -> None:
    p = cedar.from_source(ext.Squares(4)).apply(ext.Scale("n", 3.0)).shuffle().batch(20)
    with ext.OneThread() as executor:
        assert rows(p, executor=executor) == rows(p, plan="off")
        assert executor.submitted >= 4


def test_plans_are_saved_and_loaded_and_blocks_are_kept(ext: Any, tmp_path: Path) -> None:
    p = cedar.from_source(ext.Squares(4)).apply(ext.Scale("n", 3.0)).apply(ext.AtLeast("n", 600)).batch(20)
    plan = planned(p)
    plan.save(tmp_path / "plan.json")
    assert rows(p, plan=cedar.Plan.load(tmp_path / "plan.json", p)) == rows(p, plan="off")
    kept = cedar.from_source(ext.Squares(4)).apply(ext.Scale("n", 3.0)).cache("memory").batch(20)
    with kept.loader(executor="inline") as loader:
        first = [batch["n"].tolist() for batch in loader]
        assert [batch["n"].tolist() for batch in loader] == first
