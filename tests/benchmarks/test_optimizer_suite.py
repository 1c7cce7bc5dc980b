import numpy as np
import pytest

import cedar
from benchmarks import optimizer_orders, optimizer_run
from benchmarks.harness import Form
from benchmarks.optimizer_run import stream_digest
from benchmarks.suite.cases import CASES
from cedar.core.jagged import JaggedTensor

pytest.importorskip("PIL")
NAMES = list(CASES)
PERMUTED = [name for name, case in CASES.items() if case.permuted]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("suite")


def place(name, folder):
    return CASES[name].data(folder, CASES[name].tiny)


def test_there_are_enough_pipelines():
    assert len(CASES) >= 14


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_the_stream_is_the_same_with_a_plan_and_without(name, folder):
    case, directory = CASES[name], place(name, folder)
    ways = [["off", "inline", ""], ["off", "threads", "small"], ["auto", "threads", ""], ["auto", "threads", "large"]]
    found = optimizer_run.digests(name, directory, case.tiny, ways)()
    assert found == dict.fromkeys(found, found["off inline"])
    assert len(set(found["off inline"])) == (2 if name in _RANDOM else 1)


_RANDOM = {"simclr", "ssd", "random_middle", "cached", "recommend", "inflate"}  # or shuffled: epochs differ


@pytest.mark.heavy
@pytest.mark.parametrize("name", PERMUTED)
def test_steps_in_the_order_as_written_are_the_pipeline(name, folder):
    case, directory = CASES[name], place(name, folder)
    made = stream_digest(case.make(directory, case.tiny).loader(executor="inline"))
    assert made == stream_digest(case.ordered(directory, tuple(case.module.STEPS)).loader(executor="inline"))


@pytest.mark.heavy
def test_orders_that_change_the_stream_or_fail_are_not_legal(folder):
    case = CASES["map_then_filter"]
    legal = list(optimizer_orders.legal_orders(case, place("map_then_filter", folder)))
    assert legal == [
        ("stretched", "modulo", "chosen"), ("stretched", "chosen", "modulo"), ("chosen", "stretched", "modulo"),
    ]  # fmt: skip
    assert ("tokenize", "look_up", "long", "truncate", "good") in optimizer_orders.legal_orders(
        CASES["text"], place("text", folder)
    )


@pytest.mark.heavy
def test_inputs_are_written_once_and_are_the_same_each_time(tmp_path):
    case = CASES["text"]
    first = case.data(tmp_path / "a", 50)
    assert case.data(tmp_path / "a", 50) == first
    again = case.data(tmp_path / "b", 50)
    assert stream_digest(case.make(first, 50)) == stream_digest(case.make(again, 50))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"x": np.arange(4)}, {"x": np.arange(4, dtype=np.int32)}),
        ({"x": np.arange(4)}, {"y": np.arange(4)}),
        ({"x": np.zeros((2, 3))}, {"x": np.zeros((3, 2))}),
        ({"x": np.array([0.0])}, {"x": np.array([-0.0])}),
        ({"x": 1, "y": 2}, {"y": 2, "x": 1}),
        ({"x": np.array(["ab", "c"], dtype=object)}, {"x": np.array(["a", "bc"], dtype=object)}),
        ({"x": np.array([None], dtype=object)}, {"x": np.array(["None"], dtype=object)}),
        (
            {"x": JaggedTensor(np.arange(3), np.array([0, 1, 3]))},
            {"x": JaggedTensor(np.arange(3), np.array([0, 2, 3]))},
        ),
    ],
)
def test_the_digest_sees_names_types_shapes_bits_and_order(one, other):
    assert stream_digest([one]) != stream_digest([other])
    assert stream_digest([one]) == stream_digest([dict(one)])
    assert stream_digest([one, other]) != stream_digest([other, one])


def test_block_sizes_are_put_back():
    from cedar.engine.streams import stage

    before = stage._MOST_ROWS
    with optimizer_run.block_size("small"):
        assert before > stage._MOST_ROWS
    assert before == stage._MOST_ROWS


def test_a_pipeline_that_fails_is_a_missed_figure(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("benchmarks.optimizer_runs.DATA", tmp_path)
    monkeypatch.setattr("benchmarks.optimizer_runs.fresh", None)
    from benchmarks.optimizer_runs import Scale, each

    def fails(case):
        raise RuntimeError("it ended with code 1")

    (figure,) = each(Scale(Form.QUICK, (CASES["wide"],)), fails, "whole run")
    assert figure.met is False
    assert "code 1" in figure.note
    assert cedar.__name__ == "cedar"
