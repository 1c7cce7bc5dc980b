"""The benchmark's language model and its arithmetic, in a form of seconds."""

import math

import pytest

from benchmarks import harness, moe_language


def test_iterations_are_compared_seed_by_seed():
    found = lambda *reached: [{"reached": at} for at in reached]
    saved, interval = moe_language.to_target(found(90, 80, 85), found(100, 100, 100), 200, 2.0)
    assert saved.measured == pytest.approx(0.15)
    assert saved.met
    half = 4.303 * 0.05 / math.sqrt(3)
    assert (interval.low, interval.high) == (pytest.approx(0.15 - half), pytest.approx(0.15 + half))
    assert interval.met
    never, _ = moe_language.to_target(found(None, 80), found(100, 100), 200, 2.0)
    assert never.measured == pytest.approx((1 - 2 + 0.2) / 2)
    assert "1 runs never got there" in never.note


@pytest.mark.heavy
def test_policies_train_on_the_same_text_in_the_same_order(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "OUT", tmp_path)
    corpus = tmp_path / "text.txt"
    corpus.write_text("all the world's a stage, and all the men and women merely players\n" * 1000)
    first = {p: moe_language.train(p, 0, 2, str(corpus)) for p in ("static", "symi", "no drops")}
    assert first["static"]["survival"] < 1
    assert first["no drops"]["survival"] == 1
    assert first["symi"]["moved"] > 0 == first["static"]["moved"]
