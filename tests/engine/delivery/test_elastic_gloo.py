"""Ranks in their own processes, whose group of gloo is rebuilt as torchft does: one goes, another joins."""

from __future__ import annotations

import os
import signal
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

import cedar
from tests.engine.delivery.test_elastic import ids, numbers
from tests.toy_crew import each_apart

pytestmark = [pytest.mark.heavy, pytest.mark.waits]

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

LIMIT = 200  # seconds, on a machine that is busy

QUORUMS = [[0, 1, 2], [2, 0], [0, 3, 2]]  # who is there; 1 goes at its fourth step, 3 comes after the eighth


class Member:
    """A process, through all its groups."""

    def __init__(self, me: int, port: int, tell: Any) -> None:
        self.me, self.tell = me, tell
        self.store = dist.TCPStore("127.0.0.1", port, is_master=False)  # as a lighthouse's, it outlives all ranks

    def group(self, name: str, number: int) -> tuple[int, int]:
        """It joins this quorum: its rank, and how many there are."""
        if dist.is_initialized():
            dist.destroy_process_group()
        members = QUORUMS[number]
        rank, world = members.index(self.me), len(members)
        named = dist.PrefixStore(f"{name}{number}", self.store)
        limit = timedelta(seconds=100)
        dist.init_process_group("gloo", store=named, rank=rank, world_size=world, timeout=limit)
        return rank, world

    def run(self, name: str, pipeline: cedar.Pipeline, agree: Any, dies: bool) -> None:
        options: dict[str, Any] = {"executor": "inline", "timeout": 100, "agree": agree}
        quorum, steps = (0, 0) if self.me < 3 else (2, 8)
        if quorum == 0:
            self.group(name, 0)
            loader = pipeline.loader(**options)
        else:
            loader = pipeline.loader(rank=0, world=1, **options)
            loader.reshard(*self.group(name, 2))
        for batch in loader:
            valid = batch.get("valid", [True] * len(batch["id"]))
            self.tell((name, [int(i) for i, v in zip(batch["id"], valid, strict=True) if v]))
            steps += 1
            if self.me == 1 and steps == 4:
                if dies:
                    os.kill(os.getpid(), signal.SIGKILL)
                loader.reshard(None, 2)
                break
            try:
                there = torch.ones(1)
                dist.all_reduce(there)
                assert int(there) == len(QUORUMS[quorum])
            except RuntimeError:
                quorum = 1
                loader.reshard(*self.group(name, quorum))
            if steps == 8:
                quorum = 2
                loader.reshard(*self.group(name, quorum))
        if self.me != 1:
            self.tell((name, {"steps": steps, "quorum": quorum}))
        dist.destroy_process_group()


def both(me: int, port: int, tell: Any) -> None:
    """They meet at the store of each group where counts are known, else at the one given."""
    member = Member(me, port, tell)
    rows = numbers(8)
    member.run("known", rows.shuffle(seed=1).batch(2, last="pad"), None, False)
    kept = rows.filter(lambda x: x != 3, "x").shuffle(seed=1).batch(2, last="pad")
    member.run("unknown", kept, member.store, True)


@pytest.mark.heavy
@pytest.mark.timeout(LIMIT + 60)
def test_survivors_of_a_quorum_go_on_and_another_rank_joins() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    told, codes = each_apart(both, [(me, store.port) for me in range(4)], LIMIT)
    assert codes[1] == -signal.SIGKILL
    for name in ("known", "unknown"):
        parts = [[word for kind, word in lines if kind == name] for lines in told]
        ends = [parts[me].pop() for me in (0, 2, 3)]
        assert len(parts[1]) == 4
        assert all(end == {"steps": ends[0]["steps"], "quorum": 2} for end in ends)  # they end together
        got = Counter(i for part in parts for batch in part for i in batch)
        assert got == Counter(i for i in ids(8) if name == "known" or i % 7 != 3)
