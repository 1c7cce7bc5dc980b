"""Some of the mutants of ``python -m benchmarks.mutants``: each is refused before a row is delivered."""

from __future__ import annotations

import pytest

from benchmarks.mutants import mutated, verdict
from benchmarks.mutants_list import MUTANTS, Mutant
from benchmarks.mutants_pipelines import Case, cases

# The mutant, and a pipeline on which it shows.
CHOSEN = {
    "shuffle.Shuffle.row_use: a guard dropped: groups in turns": "shuffle by",
    "order.filter_stays: a guard dropped: operators that count rows": "take and skip",
    "order.filter_stays: a guard dropped: windows above": "two shuffles",
    "order.Cross.apply: one input of a concat alone": "concat",
    "order.Cross.apply: the filter lost": "shuffle",
    "order.Reorder.apply: an operator lost": "a filter behind expressions",
    "pushdown.PushFilter.apply: a filter lost": "a filter behind expressions",
    "pushdown.PushFilter.apply: an earlier filter lost": "filters and functions",
    "pushdown.columns_needed: a column too few": "two shuffles",
}


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folder = tmp_path_factory.mktemp("mutants")
    return {case.name: case for case in cases(str(folder), list(CHOSEN.values()))}


@pytest.mark.heavy
@pytest.mark.parametrize("name", CHOSEN)
def test_a_mutant_is_refused(name: str, pipelines: dict[str, Case]) -> None:
    (mutant,) = (each for each in MUTANTS if each.name == name)
    assert verdict(mutant, [pipelines[CHOSEN[name]]])[0] == "refused"


@pytest.mark.heavy
def test_every_mutant_is_a_line_that_is_there() -> None:
    assert len(MUTANTS) >= 60
    assert len({each.name for each in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        with mutated(mutant):
            pass


def test_mutants_are_undone() -> None:
    before = [_source(mutant) for mutant in MUTANTS[:3]]
    for mutant in MUTANTS[:3]:
        with mutated(mutant):
            pass
    assert [_source(mutant) for mutant in MUTANTS[:3]] == before


def _source(mutant: Mutant) -> object:
    module = __import__(mutant.module, fromlist=["x"])
    return getattr(module, mutant.function.partition(".")[0])
