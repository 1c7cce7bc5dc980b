"""The parts of the benchmark that need no run."""

from benchmarks.resilient import digests, options
from cedar.trainers.resilient.run import Record


def test_a_worker_that_differs_from_its_peers_shows(tmp_path) -> None:
    ended = {"(0, 0)": {"digest": "a"}, "(0, 1)": {"digest": "a"}, "(1, 0)": {"digest": "b"}}
    assert digests(Record(ended=ended)) == {"0": "a", "1": "b"}
    ended["(0, 1)"] = {"digest": "c"}
    assert len(digests(Record(ended=ended))) == 3


def test_its_options_are_those_of_a_run(tmp_path) -> None:
    made = options(str(tmp_path / "run"), "staggered", steps=3)
    assert (made.pipeline.mode, made.run.steps) == ("staggered", 3)
    assert (tmp_path / "text.txt").exists()
