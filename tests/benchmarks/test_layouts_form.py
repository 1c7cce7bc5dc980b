"""The short form of the benchmark: what depends on no clock."""

from __future__ import annotations

import pytest

from benchmarks import layouts as bench


@pytest.mark.heavy
def test_figures_of_a_small_log_have_names_and_the_small_layout_is_small():
    found = {figure.what: figure for figure in bench.figures(quick=True)}
    assert found["Parquet, small, against zstd"].met
    assert "later epochs, laid out, against as they are" in found
