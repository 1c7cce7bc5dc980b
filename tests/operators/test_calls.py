from __future__ import annotations

import asyncio
import functools
import gc
import signal
import sys
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor

import cloudpickle
import numpy as np
import pytest

import cedar
from cedar.core.errors import PipelineError, RowError
from cedar.core.requests import OwnedRequests, Stop
from cedar.operators.base import Env
from cedar.operators.calls import Call
from cedar.operators.draws import keyed_generator
from cedar.operators.functions import fn_name, is_async, makes_instances
from cedar.operators.map import Map
from tests.operators.toy_calls import SKIPS, STOPS, call, reciprocal, reciprocal_later
from tests.operators.toy_maps import XS
from tests.toy_blocks import SITE, bind, block, run
from tests.waiting import LIMIT, eventually


def test_rows_are_plain_python_values_and_arrays():
    given = block(x=[1], f=[1.5], s=["a"], l=[[1, 2]], d=[{"k": None}], a=np.ones((1, 2), dtype=np.float32))
    seen = []
    run(Map(lambda row: seen.append(row) or {"n": 0}), given)
    row = seen[-1]
    assert {k: v for k, v in row.items() if k != "a"} == {"x": 1, "f": 1.5, "s": "a", "l": [1, 2], "d": {"k": None}}
    assert row["a"].tolist() == [1, 1]
    assert not row["a"].flags.writeable


def test_a_misspelled_column():
    with pytest.raises(PipelineError, match="no column 'xx'") as caught:
        bind(Map(abs, ("xx",)), XS)
    assert caught.value.fix == "did you mean 'x'?"


class Doubles:
    made = 0

    def __init__(self):
        type(self).made += 1

    def __call__(self, x):
        return 2 * x


class Times:
    def __init__(self, factor, name=""):
        self.factor = factor

    def __call__(self, x):
        return self.factor * x


class TimesLater(Times):
    async def __call__(self, x):
        await asyncio.sleep(0)
        return self.factor * x


@pytest.mark.parametrize("fn", [reciprocal, reciprocal_later])
@pytest.mark.parametrize("timeout", [None, 60])
def test_every_row_has_its_result_or_its_failure(fn, timeout):
    results, failures = call(fn, [1, 0, 2, 0, 4], timeout=timeout)
    assert results == [1, None, 0.5, None, 0.25]
    assert list(failures) == [1, 3]
    assert failures[1].short == "ZeroDivisionError: division by zero"
    assert isinstance(failures[1].cause, ZeroDivisionError)


@pytest.mark.parametrize("fn", [reciprocal, reciprocal_later])
def test_without_a_policy_the_first_failure_ends_it(fn):
    _, failures = call(fn, [1, 0, 2, 0, *range(1, 500)], blame=STOPS)
    assert min(failures) == 1
    assert call(fn, [0, 0, 1], blame=STOPS, env=Env(sampling=True))[0] == [None, None, 1]


def test_a_row_is_worked_on_once():
    seen = []

    def fn(x):
        seen.append(x)
        return 1 / x

    call(fn, [1, 0, 2, 0])
    assert seen == [1, 0, 2, 0]


@pytest.mark.parametrize("where", [0, 1, 2])
def test_stop_iteration_ends_nothing(where):
    def fn(x):
        if x == where:
            raise StopIteration
        return x

    results, failures = call(fn, [0, 1, 2])
    assert list(failures) == [where]
    assert "StopIteration" in failures[where].short
    assert results == [None if x == where else x for x in range(3)]


class Own(BaseException):
    pass


KINDS = [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Own]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("timeout", [None, 60])
def test_whatever_a_function_raises_is_an_error_of_its_row(kind, timeout):
    def fn(x):
        if x == 2:
            raise kind(3)
        return x

    async def later(x):
        return fn(x)

    with ThreadPoolExecutor(1) as worker:
        for one in (fn, later):
            for results, failures in (
                call(one, [1, 2, 3], timeout=timeout),
                worker.submit(call, one, [1, 2, 3], timeout=timeout).result(60),
            ):
                assert results == [1, None, 3]
                assert failures[1].short == f"{kind.__name__}: 3"


def test_exits_are_errors_of_their_rows():
    results, failures = call(lambda x: sys.exit(3) if x == 2 else x, [1, 2])
    assert (results, failures[1].short) == ([1, None], "SystemExit: 3")


def pressed(handler, fn, x=1):
    """What a call ends with during which a signal comes."""
    before = signal.signal(signal.SIGINT, handler)
    timer = threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(BaseException) as caught:
            call(fn, [x])
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    return caught.type


def spins(_):
    until = time.monotonic() + 30
    while time.monotonic() < until:
        pass


def sleeps(_):
    time.sleep(30)


async def awaits(_):
    await asyncio.sleep(30)


async def runs_out(_):
    spins(_)


def handles(number, frame):
    raise SystemExit(4)


class Handles:
    def __call__(self, number, frame):
        raise Own


@pytest.mark.parametrize("fn", [spins, sleeps, awaits])
def test_a_real_interrupt_interrupts(fn):
    assert pressed(signal.default_int_handler, fn) is KeyboardInterrupt


def test_what_the_handler_of_a_signal_raises_passes():
    assert pressed(handles, spins) is SystemExit
    assert pressed(functools.partial(handles), sleeps) is SystemExit
    assert pressed(Handles(), spins) is Own
    assert pressed(Handles(), runs_out) is BaseExceptionGroup


def test_an_interrupt_in_the_middle_of_a_clean_up_of_the_function_passes():
    def tidies(x):
        try:
            spins(x)
        except KeyboardInterrupt:
            raise
        finally:
            str(x)

    assert pressed(signal.default_int_handler, tidies) is KeyboardInterrupt


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_named_whatever_its_function_raises(executor, kind):
    def fn(x):
        if x == 17:
            raise kind
        return x

    numbers = cedar.from_items([{"x": i} for i in range(30)])
    with pytest.raises(RowError, match=kind.__name__) as caught:
        list(numbers.map(fn, "x", dtype=int).batch(5).loader(executor=executor, workers=1, plan="off"))
    assert caught.value.row.row == 17
    skipped = numbers.map(fn, "x", dtype=int, on_error=cedar.Skip()).batch(30, last="keep")
    with skipped.loader(executor=executor, workers=1, plan="off") as loader:
        assert [len(batch["x"]) for batch in loader] == [29]


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_that_raises_anything_is_named(kind):
    class Source:
        def splits(self):
            return [0, 1]

        def read(self, split):
            yield {"x": [1, 2]}
            if split:
                raise kind

    with pytest.raises(cedar.SourceError, match=kind.__name__):
        list(cedar.from_source(Source()).batch(2).loader(executor="inline"))


def test_a_reader_that_is_left_in_the_middle_ends_without_an_error():
    ended = []

    class Source:
        def splits(self):
            return [cedar.datasets.base.Split(streaming=True)]

        def read(self, split):
            try:
                while True:
                    yield {"x": [1, 2]}
            except GeneratorExit:
                ended.append(True)
                raise

    for executor in ("inline", "threads"):
        with cedar.from_source(Source()).batch(2).loader(executor=executor) as loader:
            next(iter(loader))
    gc.collect()
    assert ended


class Exits:
    def __len__(self):
        return 300

    def __getitem__(self, index):
        return sys.exit() if index == 200 else {"x": index}


def numbers_until_it_exits():
    for number in range(300):
        yield {"x": sys.exit() if number == 200 else number}


@pytest.mark.parametrize("executor", ["threads", "processes"])
@pytest.mark.parametrize("source", ["items", "iterable"])
def test_a_dataset_that_exits_does_not_end_the_training_in_silence(executor, source):
    data = cedar.from_items(Exits()) if source == "items" else cedar.from_iterable(numbers_until_it_exits)
    with pytest.raises(RowError, match="SystemExit") as caught:
        list(data.batch(10).loader(executor=executor, workers=2))
    assert caught.value.row.row == 200


def test_classes_are_made_once_and_kept():
    env = Env()
    before = Doubles.made
    assert call(Doubles, [1, 2], env=env)[0] == call(Doubles, [1, 2], env=env)[0] == [2, 4]
    assert Doubles.made == before + 1
    assert call(functools.partial(Times, 3), [1, 2], env=Env())[0] == [3, 6]
    assert call(functools.partial(functools.partial(TimesLater, 3), name="x"), [1, 2], env=Env())[0] == [3, 6]
    assert call(int, ["1", "2"])[0] == [1, 2], "a class whose instances cannot be called is called like a function"


def test_a_class_that_cannot_be_made_is_no_rows_fault():
    class Model:
        def __init__(self):
            raise OSError("no weights")

        def __call__(self, x):
            return x

    with pytest.raises(PipelineError, match=r"Model\(\) failed: OSError: no weights") as caught:
        call(Model, [1])
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.site == SITE


def test_a_row_that_takes_too_long_fails():
    release = threading.Event()

    def slow(x):
        if x == 1:
            release.wait(LIMIT)
        return x

    async def slow_too(x):
        await asyncio.sleep(10 * (x == 1))
        return x

    for fn in (slow, slow_too):
        results, failures = call(fn, [0, 1, 2], timeout=0.5)
        assert results == [0, None, 2]
        assert failures[1].short == "TimeoutError: no result within timeout=0.5 s"
        assert isinstance(failures[1].cause, TimeoutError)
    release.set()


def test_a_stuck_instance_is_not_used_again():
    release = threading.Event()

    class Model:
        made = 0

        def __init__(self):
            Model.made += 1
            self.stuck = False

        def __call__(self, x):
            assert not self.stuck
            self.stuck = x == 1
            if self.stuck:
                release.wait(LIMIT)
            return x

    assert call(Model, [0, 1, 2], timeout=0.5)[0] == [0, None, 2]
    assert Model.made == 2
    release.set()


async def draw_later(rng):
    await asyncio.sleep(0)
    return float(rng.random())


@pytest.mark.parametrize("timeout", [None, 60])
def test_draws_are_keyed_by_the_row(timeout):
    hashes = np.array([5, 6, 7], dtype=np.uint64)

    def fn(x, rng):
        rng.integers(10, dtype=np.uint32)  # leaves half a word behind
        return float(rng.random()) if x else None

    async def later(x, rng):
        await asyncio.sleep(0)
        return fn(x, rng)

    first = call(fn, [1, 1, 1], hashes=hashes, random=True, timeout=timeout)[0]
    assert len(set(first)) == 3
    assert call(fn, [1, 1, 1], hashes=hashes[::-1], random=True, timeout=timeout)[0] == first[::-1]
    assert call(later, [1, 1, 1], hashes=hashes, random=True, timeout=timeout)[0] == first
    assert call(fn, [1], hashes=hashes[1:2], random=True)[0] == [first[1]]
    assert call(fn, [1], hashes=hashes[1:2], random=True, env=Env(epoch=1))[0] != [first[1]]
    assert call(fn, [1], hashes=hashes[1:2], random=True, draw=9)[0] != [first[1]]
    generator = keyed_generator(6, Env().draw_seed(0))
    assert fn(1, generator) == first[1]


def test_kinds_of_functions():
    assert is_async(reciprocal_later)
    assert is_async(functools.partial(reciprocal_later, 1))
    assert not is_async(reciprocal)
    assert not is_async(int)
    assert is_async(functools.partial(TimesLater, 3))
    assert makes_instances(Doubles)
    assert makes_instances(functools.partial(Times, 3))
    assert not makes_instances(int)
    assert not makes_instances(Doubles())
    assert not makes_instances(functools.partial(Doubles()))
    assert [fn_name(f) for f in (abs, Doubles, Doubles(), functools.partial(abs))] == [
        "abs",
        "Doubles",
        "Doubles",
        "abs",
    ]
    assert fn_name(lambda: 0) == "<lambda>"


def test_calls_are_pickled_by_value():
    factor = 3
    again = cloudpickle.loads(cloudpickle.dumps(Call(lambda x: x * factor, SKIPS)))
    assert again.run(Env(), [[1, 2]], 2)[0] == [3, 6]


def test_helper_threads_end_with_the_block():
    call(reciprocal, [1, 2], timeout=60)
    assert eventually(lambda: not any(t.name == "cedar-timeout" for t in threading.enumerate()))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_calls_end_at_the_next_row_once_the_run_is_over(asynchronous):
    stop, called = Stop(), []

    def fn(x):
        called.append(x)
        time.sleep(0.03)  # as functions that are worth ending do
        if x == 4:
            stop.set()
        return x

    async def later(x):
        return fn(x)

    with OwnedRequests(stop=stop), pytest.raises(CancelledError):
        call(later if asynchronous else fn, list(range(1000)))
    assert called == list(range(5)) or (asynchronous and len(called) <= 4 + 64)
    with OwnedRequests(stop=stop), pytest.raises(CancelledError):
        call(len, ["of another operator of the task"])
