"""Damaged files, the short form of benchmarks/mutated_audio.py: each is refused with a reason, or decoded."""

import pytest

from benchmarks.mutated_audio import FORMATS, mutated, originals, outcome, run


@pytest.mark.heavy
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_damaged_files_are_refused_or_decoded(name):
    wholes = originals(name)
    assert [outcome(whole) for whole in wholes] == ["decoded"] * 2
    told = [outcome(mutated(wholes[number % 2], 77_000 + number)) for number in range(60)]
    assert set(told) <= {"refused", "decoded"}, told
    assert "refused" in told


def test_in_a_process_of_its_own():
    tally = run("flac", 200, seed=1)
    assert sum(tally.outcomes.values()) == 200
    assert tally.outcomes["refused"] > 100
    assert not tally.died
    assert not tally.odd
    assert not tally.slow
