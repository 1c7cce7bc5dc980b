"""Functions that are awaited: many rows at a time, in order, in their own loop."""

from __future__ import annotations

import asyncio

from cedar.operators.base import Env
from tests.operators.toy_calls import call, reciprocal_later


def test_connections_of_an_async_class_keep_their_loop():
    class Client:
        def __init__(self):
            self.loops = set()

        async def __call__(self, x):
            self.loops.add(asyncio.get_running_loop())
            return len(self.loops)

    env = Env()
    assert call(Client, [1, 2], env=env)[0] == [1, 1]
    assert call(Client, [1, 2], env=env)[0] == [1, 1]


def test_many_rows_are_in_flight_and_order_is_kept():
    flying, most = 0, 0

    async def fn(x):
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0.001 * (x % 3))
        flying -= 1
        return x

    assert call(fn, list(range(200)))[0] == list(range(200))
    assert 1 < most <= 64


def test_async_functions_run_inside_a_running_loop():
    async def notebook():
        return call(reciprocal_later, [1, 2])[0]

    assert asyncio.run(notebook()) == [1, 0.5]


def test_a_timeout_of_the_users_own_keeps_its_text():
    async def fn(x):
        raise TimeoutError("the server is down")

    assert call(fn, [1], timeout=60)[1][0].short == "TimeoutError: the server is down"


def test_items_are_collected_within_the_call():
    def fails_late(x):
        yield x
        yield 1 / x

    async def later(x):
        for i in range(x):
            await asyncio.sleep(0)
            yield i

    results, failures = call(fails_late, [1, 0], items=True)
    assert results == [[1, 1.0], None]
    assert list(failures) == [1]
    assert call(later, [2, 0], items=True)[0] == [[0, 1], []]
    assert "async generator" in call(later, [1])[1][0].short
    for wrong in ("text", b"bytes", {"a": 1}, None, 5):
        assert "not an iterable of rows" in call(lambda x, wrong=wrong: wrong, [1], items=True)[1][0].short
