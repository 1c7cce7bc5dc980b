"""The short form of the benchmark: what depends on no clock, and pipelines that give the same rows."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import recommendation_storage as bench


@pytest.mark.heavy
def test_pipelines_that_are_compared_give_the_same_rows(tmp_path):
    paths, clustered = bench._files(str(tmp_path), 8192)
    smallest = min(map(bench._size, paths.values()))
    assert bench._size(clustered["zstd"]) < smallest / 2
    assert bench._size(clustered["zstd"]) < bench._size(clustered["lz4"]) < smallest
    with (
        bench.pipeline(clustered["zstd"], False).loader(format="numpy", executor="inline") as plain,
        bench.pipeline(clustered["lz4"], True).loader(format="numpy", executor="inline") as once,
    ):
        for one, other in zip(once, plain, strict=True):
            assert bench._out(one) * 4 < bench._out(other)
            expanded = one["list0"].expand()
            for name in (*bench._USER, "buckets"):
                assert expanded[name] == other[name]
            for name in (*bench._ITEM, "d0", "label"):
                assert np.array_equal(one[name], other[name])
