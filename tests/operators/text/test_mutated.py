"""The short form of benchmarks/mutated_text.py."""

import pytest

from benchmarks import mutated_text
from tests.operators.text.toy_tokenizers import tokenizers  # noqa: F401 - skips where the library is missing


@pytest.mark.parametrize("name", mutated_text.transforms())
def test_every_damaged_text_has_a_result_or_is_named(name):
    counts = mutated_text.check(*mutated_text.transforms()[name], seed=7, n=500)
    assert min(counts.values()) > 100


def test_damaged_files_have_lines_or_are_named():
    counts = mutated_text.check_files(seed=8, n=25)
    assert min(counts.values()) > 3
