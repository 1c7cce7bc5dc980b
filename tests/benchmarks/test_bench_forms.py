import json

import pytest

from benchmarks import core, harness

KEYS = {"what", "target", "measured", "unit", "met", "how", "low", "high", "note"}


@pytest.fixture
def out(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "OUT", tmp_path)
    return tmp_path


def test_written_rows_have_the_form_that_every_benchmark_shares(out):
    figures = [
        harness.at_most("a", 2.0, [1.0, 3.0, 1.5], "s"),
        harness.at_least("b", 2.0, [1.0, 3.0, 1.5], "x", how="emulated", note="why"),
        harness.reported("c", [4.0], "rows/s"),
    ]
    rows = json.loads(harness.write("some", figures).read_text())
    assert [set(row) for row in rows] == [KEYS] * 3
    assert [(row["measured"], row["target"], row["met"]) for row in rows] == [
        (1.5, "<= 2", True), (1.5, ">= 2", False), (4.0, None, None),
    ]  # fmt: skip
    assert [row["how"] for row in rows] == ["measured", "emulated", "measured"]
    assert (rows[0]["low"], rows[0]["high"]) == (1.0, 3.0)
    assert "packages" in json.loads((out / "some.machine.json").read_text())


def test_rounds_are_interleaved_and_warm_up_is_dropped():
    order = []
    runs = {name: lambda name=name: order.append(name) or len(order) for name in "ab"}
    found = harness.interleaved(runs, rounds=2, warm_up=1)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert found == {"a": [4, 5], "b": [3, 6]}


def test_contenders_run_in_their_own_process_and_may_be_run_again():
    with harness.Contender("benchmarks.core_threads:plain_threads", 4) as contender:
        samples = [contender.run(), contender.run()]
    assert [s.result["rows"] for s in samples] == [4, 4]
    assert all(s.wall > 0 and s.cpu >= 0 and s.rate > 0 for s in samples)


def test_a_contender_that_fails_is_an_error_not_a_hang():
    with harness.Contender("benchmarks.core_threads:nothing") as contender, pytest.raises(RuntimeError, match="ended"):
        contender.run()


def test_core_refuses_parts_that_do_not_exist():
    with pytest.raises(SystemExit):
        core.main(["--only", "nothing"])
