"""Mutants of rules and of what compiles plans: is each refused before a row is delivered, or found by an audit?

    python -m benchmarks.mutants            # all of them
    python -m benchmarks.mutants --quick    # a dozen

A mutant is one changed line of source. For each pipeline whose plan, or whose rows, it changes: the audit of the first
rows should refuse it; where it does not, and the rows of the run would be others, the audit of windows should find
them, or the oracle of the tests. What changes no row of any pipeline here is counted separately.
"""

from __future__ import annotations

import argparse
import inspect
import logging
import os
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.mutants_list import MUTANTS, Mutant
from benchmarks.mutants_pipelines import Case, cases
from cedar.core.errors import CedarError
from cedar.engine.binding import Binding
from cedar.engine.first_rows import FirstRows
from cedar.operators.base import Env
from cedar.plan.data import Plan
from cedar.plan.lower import does
from tests.oracle.check import Unclear, check_effects

SHOWN = 6  # plans that a mutant changes: more are not tried
QUICK = 6  # one mutant in so many


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one mutant in six")
    parser.add_argument("--only", default="", help="mutants whose name holds this")
    options = parser.parse_args()
    logging.getLogger("cedar").setLevel(logging.ERROR)
    chosen = [m for m in MUTANTS if options.only in m.name][:: QUICK if options.quick else 1]
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        pipelines, found = cases(folder), {}
        for mutant in chosen:
            found[mutant.name] = how, why = verdict(mutant, pipelines)
            print(f"{how:<10} {mutant.name}" + (f"   [{why}]" if why else ""), flush=True)
    counts = Counter(how for how, _ in found.values())
    wrong = sum(counts[how] for how in ("refused", "audited", "tested", "silent"))
    share = counts["refused"] / max(wrong, 1)
    print(
        f"{len(found)} mutants, {wrong} of which change rows: {counts['refused']} refused before a row is delivered "
        f"({share:.0%}), {counts['audited']} found by the audit, {counts['tested']} by the oracle, "
        f"{counts['silent']} silent; {counts['harmless']} change no row here; "
        f"{time.process_time() - began:.0f} CPU seconds"
    )
    sys.exit(counts["silent"] > 0)


def verdict(mutant: Mutant, pipelines: Sequence[Case]) -> tuple[str, str]:
    """The worst that becomes of a mutant, and where."""
    worst, where, shown = "harmless", "", 0
    order = ("harmless", "refused", "audited", "tested", "silent")
    for case in pipelines:
        unmutated = case.unmutated
        with mutated(mutant):
            try:
                plans = case.plans()
            except CedarError:  # no such plan is created: the pipeline runs as written
                worst, where, shown = max(worst, "refused", key=order.index), where or case.name, shown + 1
                continue
            for number, plan in enumerate(plans):
                before = unmutated[min(number, len(unmutated) - 1)]
                if str(plan) == str(before) and mutant.module.startswith("cedar.optimizer"):
                    continue  # the fault does not show in this plan
                how = _of_plan(case, plan)
                shown += how != "harmless"
                if order.index(how) > order.index(worst):
                    worst, where = how, f"{case.name}, plan {number}"
        if worst == "silent" or shown >= SHOWN:
            break
    return worst, where


def _of_plan(case: Case, plan: Plan) -> str:
    if does(plan.root, plan.logical) == does(plan.logical, plan.logical):
        return "harmless"
    binding = Binding(case.pipeline.node, case.policy, Env())
    if FirstRows(binding).difference(plan) is not None:
        return "refused"
    given = case.rows(plan, audits=0.0, checked=False)
    if given == case.written:
        return "harmless"
    loud: list[str] = []
    case.rows(plan, audits=1.0, checked=False, differences=loud)
    return "audited" if loud else "tested" if _tested(binding, plan) else "silent"


def _tested(binding: Binding, plan: Plan) -> bool:
    """The oracle finds it, which tests ask of random pipelines."""
    try:
        return check_effects(binding, plan) is not None
    except Unclear:
        return False


# ---- one changed line ------------------------------------------------------------------------------------------------


@contextmanager
def mutated(mutant: Mutant) -> Iterator[None]:
    """With the fault, wherever the function is held."""
    module = sys.modules[mutant.module]
    owner: Any = module
    *classes, name = mutant.function.split(".")
    for each in classes:
        owner = getattr(owner, each)
    original = inspect.unwrap(owner.__dict__[name])
    function: Any = original.fget if isinstance(original, property) else original
    source = textwrap.dedent(inspect.getsource(function))
    if classes:  # what stands outside its class does not know it
        source = source.replace("super()", f"super({classes[-1]}, self)")
    assert source.count(mutant.old) == 1, f"{mutant.name}: the line is not there"
    space: dict[str, Any] = {**vars(module), **_MORE()}
    exec(compile(source.replace(mutant.old, mutant.new), f"<mutant of {mutant.module}>", "exec"), space)
    changed = space[name]
    restore = list(_replaced(owner if classes else None, name, original, changed))
    try:
        yield
    finally:
        for held, key, value in reversed(restore):
            setattr(held, key, value)


def _MORE() -> dict[str, Any]:  # noqa: N802
    from cedar.operators.take import Take

    return {"Take": Take}


def _replaced(owner: Any, name: str, original: Any, changed: Any) -> Iterator[tuple[Any, str, Any]]:
    if owner is not None:
        yield owner, name, owner.__dict__[name]
        setattr(owner, name, changed)
        return
    for module in [m for key, m in sys.modules.items() if key.partition(".")[0] in ("cedar", "benchmarks", "tests")]:
        for key, value in list(vars(module).items()):
            if value is original:
                yield module, key, value
                setattr(module, key, changed)
            elif isinstance(value, tuple) and any(each is original for each in value):
                yield module, key, value
                setattr(module, key, tuple(changed if each is original else each for each in value))
    # a function calls others of its module by that module's names
    changed.__globals__.clear()
    changed.__globals__.update(vars(sys.modules[original.__module__]), **_MORE())


if __name__ == "__main__":
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    main()
