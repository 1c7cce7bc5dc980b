"""Predictions: what limits a plan, and what would help."""

from __future__ import annotations

import pytest

from cedar.optimizer.cost import as_written
from cedar.optimizer.predict import predict
from tests.optimizer.toy_costs import measured, two_maps
from tests.optimizer.toy_profiles import facts_of, figures, model_of


def test_a_prediction_names_what_limits_it_and_what_would_help():
    root = two_maps()
    model = model_of(root, facts_of(root, measured(o2=figures(40e-6, gil=0.0))))
    found = predict(model, [as_written(model.costs[0], 0)])
    assert found.bottleneck == "cores"
    assert 0.9 * 4 / 15.5e-6 < found.rows_per_second < 4 / 15.5e-6  # now and then two wait for the GIL
    assert found.more == {"one more core": pytest.approx(0.2, abs=0.05)}


def test_a_slow_source_is_named():
    root = two_maps()
    model = model_of(root, facts_of(root, measured(o0=figures(1e-6, wall=1e-3))))
    found = predict(model, [as_written(model.costs[0], 0)])
    assert found.bottleneck == "storage"
    assert set(found.more) == {"storage twice as fast", "one more core", "one more worker"}
    assert found.more["storage twice as fast"] == pytest.approx(1, rel=0.05)
