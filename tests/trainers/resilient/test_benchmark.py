"""The parts of the benchmark that need no run."""

import pytest

from benchmarks import harness, kept, resilient
from benchmarks.kept import Kept
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


def test_a_benchmark_that_was_stopped_goes_on_where_it_was(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(harness, "OUT", tmp_path)
    made: list[int] = []

    def make(number: int) -> int:
        if number == 2 and len(made) == 2:
            raise KeyboardInterrupt
        made.append(number)
        return 10 * number

    runs = {f"run {number}": lambda number=number: make(number) for number in range(4)}
    with pytest.raises(KeyboardInterrupt):
        Kept("long").some(runs)
    with (tmp_path / "long_runs.jsonl").open("a") as file:
        file.write('{"what": "run 3", "res')  # cut off
    made.append(-1)
    assert Kept("long").some(runs) == [0, 10, 20, 30]
    assert made == [0, 1, -1, 2, 3]
    assert Kept("other", minutes=0).some(runs) == [0]  # time is up: one, so that there is a figure
    assert Kept("long", minutes=0).some(runs) == [0, 10, 20, 30]
    assert Kept("long", fresh=True).found == {}


def test_parts_are_kept_and_shown_together(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(harness, "OUT", tmp_path)
    parts = {
        "one": lambda: [harness.at_most("this", 1, [0.5], "s")],
        "two": lambda: [harness.at_least("that", 1, [0.5], "s")],
    }  # fmt: skip
    assert kept.measure("both", "both", parts, ["one"]) == 0
    assert kept.measure("both", "both", parts, ["two"]) == 1  # one of the table missed its target
    told = capsys.readouterr().out
    assert "this" in told.split("both.json")[1]
    assert "missed" in told
    assert not list(tmp_path.glob("both_quick*"))


def test_killed_runs_of_other_modes_and_numbers_are_other_runs(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(harness, "OUT", tmp_path)
    seen: list[tuple[str, int]] = []
    one = dict.fromkeys(("fired", "kept", "join", "replay", "restore", "move"), 1)
    monkeypatch.setattr(resilient, "_killed", lambda mode, n, *_: seen.append((mode, n)) or one | {"wrong": "x" * n})
    results = Kept("resilient")
    results.found["kills: whole"] = {}
    sync, staggered = resilient.kills(results, harness.Form.QUICK, str(tmp_path))
    assert len(set(seen)) == 12
    assert (sync.measured, sync.met) == (1, False)
    assert "NOT: xx" in sync.note
    assert "6 times a lost stage restored alone" in staggered.note
