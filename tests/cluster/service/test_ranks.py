"""What a service knows of ranks that meet at it: little, and for as long as they are there."""

from __future__ import annotations

import json
import random
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cedar
from cedar.cluster.dask.clients import reached
from cedar.cluster.service import ranks
from cedar.cluster.service.line import ServiceLine
from cedar.cluster.service.ranks import Connection, Hub
from tests.engine.delivery.test_elastic import Job, ids, numbers, random_changes
from tests.toy_runs import run


class Toy:
    """A connection to a hub, without a network."""

    def __init__(self, hub: Hub) -> None:
        self.heard: list[Any] = []
        self.closed = False
        self.connection = Connection(hub)
        self.connection.connection_made(self)

    def get_extra_info(self, _name: str) -> None:
        return None

    def write(self, data: bytes) -> None:
        self.heard += [json.loads(line) for line in data.splitlines()]

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.connection.connection_lost(None)

    def say(self, message: Any) -> None:
        self.connection.data_received(json.dumps(message).encode() + b"\n")

    def join(self, rank: int, world: int, name: str = "job/run/1") -> Toy:
        self.say({"join": [name, rank, world]})
        return self


def begun(hub: Hub) -> list[Toy]:
    """Two ranks that are in an epoch."""
    members = [Toy(hub).join(rank, 2) for rank in range(2)]
    for member in members:
        member.say({"say": [member.heard[-1]["session"], 0, None]})
    assert all(member.heard[-1] == {"block": 0, "ends": []} for member in members)
    return members


def test_a_run_goes_with_its_last_rank() -> None:
    hub = Hub()
    for member in begun(hub):
        assert hub.runs
        member.close()
    assert not hub.runs
    assert hub.connections == 0


def test_another_job_of_the_same_name_waits_and_hears_why() -> None:
    hub = Hub()
    members = begun(hub)
    others = [Toy(hub).join(rank, 2) for rank in range(2)]
    assert not any(other.heard for other in others)
    others[0].say({"missing": 0})
    assert "rank(s) 0, 1 of 2" in others[0].heard[-1]["missing"]
    assert "cedar.job" in others[0].heard[-1]["missing"]
    for member in members:
        member.close()
    assert all("session" in other.heard[-1] for other in others)


def test_who_takes_the_place_of_a_rank_that_has_not_begun_is_told_to_that_one() -> None:
    hub = Hub()
    before = Toy(hub).join(0, 2)
    now = Toy(hub).join(0, 2)
    assert "another process came as rank 0 of 2" in before.heard[-1]["error"]
    other = Toy(hub).join(1, 2)
    assert other.heard == now.heard
    before.close()
    assert [run.members.keys() for runs in hub.runs.values() for run in runs] == [{0, 1}]


@pytest.mark.parametrize(
    "message",
    [
        b"{", b"[" * 100_000, b"7", b"{}", b'{"join": ["a", 2, 2]}', b'{"join": ["a", 0, 1000000000]}',
        b'{"join": [1, 0, 2]}', b'{"say": [0, 0, null]}', b'{"say": [0, 0, -1]}', b'{"missing": 0}',
        b'{"set": ["a", 1]}',
        b'{"join": ["' + b"a" * 2000 + b'", 0, 2]}', b"\xff\xfe",
    ],
)  # fmt: skip
def test_what_no_rank_says_ends_the_connection(message: bytes) -> None:
    hub = Hub()
    toy = Toy(hub)
    toy.connection.data_received(message + b"\n")
    assert toy.closed
    assert "error" in toy.heard[-1]
    assert (hub.connections, hub.unread, hub.runs) == (0, 0, {})


def test_a_rank_cannot_speak_far_ahead() -> None:
    toy, _ = begun(Hub())
    for block in range(1, 20):
        toy.say({"say": [2, block, None]})
        if toy.closed:
            break
    assert block < 8


def test_messages_without_an_end_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub()
    one = Toy(hub)
    while not one.closed:
        one.connection.data_received(b"x" * 100_000)
        assert hub.unread <= ranks._LINE + 100_000
    monkeypatch.setattr(ranks, "_UNREAD", 1000)
    many = [Toy(hub) for _ in range(20)]
    for toy in many:
        toy.connection.data_received(b"x" * 100)
    assert hub.unread <= 1000
    monkeypatch.setattr(ranks, "MEMBERS", 5)
    assert Toy(hub).closed


def test_there_is_room_for_the_states_of_as_many_ranks_as_may_come() -> None:
    hub, member = Hub(), ranks.Member(lambda _: None)
    for rank in range(ranks.MEMBERS):
        hub.hear(member, {"set": [f"job/cedar/hello/{rank}", "a state that grew: " + "7" * 5000]})
    assert len(hub._words) == ranks.MEMBERS


words = st.tuples(st.sampled_from(["set", "get", "drop"]), st.text(max_size=3), st.text(max_size=300))


@given(st.lists(words, max_size=60))
def test_words_are_kept_up_to_a_size(said: list[tuple[str, str, str]]) -> None:
    hub = Hub(words_bytes=5000)
    toy = Toy(hub)
    model: dict[str, str] = {}
    for kind, name, word in said:
        toy.say({kind: [name, word] if kind == "set" else name})
        if kind == "set":
            model[name] = word
        elif kind == "drop":
            model.pop(name, None)
        else:
            assert toy.heard[-1]["got"] in (model.get(name), None)
        held = sum(ranks._size(*each) for each in hub._words.items())
        assert held == hub._words_bytes <= 5000
    if sum(ranks._size(*each) for each in model.items()) <= 1000:
        assert len(hub._words) <= len(model)


joins = st.tuples(st.integers(0, 5), st.sampled_from(["join", "leave", "say"]), st.integers(0, 2), st.integers(0, 3))


@given(st.lists(joins, max_size=40))
def test_whoever_comes_and_goes_nothing_stays(said: list[tuple[int, str, int, int]]) -> None:
    hub = Hub()
    toys = [Toy(hub) for _ in range(6)]
    for number, kind, rank, block in said:
        toy = toys[number]
        if toy.closed:
            toys[number] = toy = Toy(hub)
        if kind == "join":
            toy.join(rank, 3)
        elif kind == "leave":
            toy.close()
        else:
            sessions = [each["session"] for each in toy.heard if "session" in each]
            toy.say({"say": [sessions[-1] if sessions else 0, block, None]})
        members = [member for runs in hub.runs.values() for run in runs for member in run.members.values()]
        assert len({id(member) for member in members}) == len(members) <= 6
        assert all(run.members for runs in hub.runs.values() for run in runs)
    for toy in toys:
        toy.close()
    assert (hub.runs, hub.connections, hub.unread) == ({}, 0, 0)


# ---- a service -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with cedar.Service(workers=1) as service:
        yield service.address


def test_nobody_connects_without_the_key(address: str) -> None:
    ServiceLine(address)
    where = reached(address).run_on_scheduler(ranks.listening)
    with socket.create_connection(where, 5) as plain:
        plain.sendall(b'{"get": "a"}\n')
        try:
            answer = plain.recv(100)
        except ConnectionError:
            answer = b""
    assert b"got" not in answer


def test_ranks_that_read_through_a_service_agree_there(address: str) -> None:
    p = numbers(8).filter(lambda x: x != 3, "x").batch(4)
    loaders = [p.loader(rank=rank, world=2, executor=address, timeout=60) for rank in range(2)]
    assert "each of the 2 ranks reads" not in loaders[0].explain()
    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(lambda loader: run(loader)[0], loaders))
    assert len(parts[0]) == len(parts[1]) > 10
    rows = [i for part in parts for batch in part for i in batch["id"]]
    assert len(rows) == len(set(rows))


@pytest.mark.heavy
def test_ranks_that_come_and_go_meet_at_a_service(address: str) -> None:
    p = numbers(12).filter(lambda x: x != 3, "x").batch(2, last="keep")
    job = Job(p, address, 3)
    random_changes(job, random.Random(1), 6, 4)
    assert job.finish() == Counter(i for i in ids(12) if i % 7 != 3)
