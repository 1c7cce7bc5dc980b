"""Ranks in processes of their own, whose group of gloo is made anew as torchft does: one goes, another joins."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.engine.delivery.test_elastic import ids

LIMIT = 200  # seconds, on a machine that is busy

SCRIPT = """
import json, os, signal, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
from tests.engine.delivery.test_elastic import numbers

me, port = map(int, sys.argv[1:])
store = dist.TCPStore("127.0.0.1", port, is_master=False)  # as that of a lighthouse, it outlives all ranks
QUORUMS = [[0, 1, 2], [2, 0], [0, 3, 2]]  # who is there; 1 goes at its fourth step, 3 comes after the eighth


def group(name, number):
    if dist.is_initialized():
        dist.destroy_process_group()
    members = QUORUMS[number]
    rank, world = members.index(me), len(members)
    named = dist.PrefixStore(f"{name}{number}", store)
    dist.init_process_group("gloo", store=named, rank=rank, world_size=world, timeout=timedelta(seconds=100))
    return rank, world


def run(name, pipeline, agree, dies):
    options = {"executor": "inline", "timeout": 100, "agree": agree}
    quorum, steps = (0, 0) if me < 3 else (2, 8)
    if quorum == 0:
        group(name, 0)
        loader = pipeline.loader(**options)
    else:
        loader = pipeline.loader(rank=0, world=1, **options)
        loader.reshard(*group(name, 2))
    for batch in loader:
        rows = [int(i) for i, valid in zip(batch["id"], batch.get("valid", [True] * len(batch["id"]))) if valid]
        print(json.dumps([name, rows]), flush=True)
        steps += 1
        if me == 1 and steps == 4:
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
            loader.reshard(*group(name, quorum))
        if steps == 8:
            quorum = 2
            loader.reshard(*group(name, quorum))
    if me != 1:
        print(json.dumps([name, {"steps": steps, "quorum": quorum}]), flush=True)
    dist.destroy_process_group()


p = numbers(8).shuffle(seed=1).batch(2, last="pad")
run("known", p, None, False)  # they meet at the store of each group
p = numbers(8).filter(lambda x: x != 3, "x").shuffle(seed=1).batch(2, last="pad")
run("unknown", p, store, True)
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.timeout(LIMIT + 60)
def test_survivors_of_a_quorum_go_on_and_another_rank_joins() -> None:
    distributed = pytest.importorskip("torch.distributed")
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(me), str(store.port)],
            stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3],
        )
        for me in range(4)
    ]  # fmt: skip
    try:
        for process in started:
            process.wait(LIMIT)
    finally:
        for process in started:
            process.kill()
    told: list[list[Any]] = [[json.loads(line) for line in each.communicate()[0].splitlines()] for each in started]
    assert started[1].returncode == -signal.SIGKILL
    for name in ("known", "unknown"):
        parts = [[word for kind, word in lines if kind == name] for lines in told]
        ends = [parts[me].pop() for me in (0, 2, 3)]
        assert len(parts[1]) == 4
        assert all(end == {"steps": ends[0]["steps"], "quorum": 2} for end in ends)  # they end together
        got = Counter(i for part in parts for batch in part for i in batch)
        assert got == Counter(i for i in ids(8) if name == "known" or i % 7 != 3)
