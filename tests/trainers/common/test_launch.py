"""Ranks that meet, and those that cannot; no process of a run outlives the one that was started."""

import os
import socket
import subprocess
import sys
from contextlib import suppress

import pytest

from cedar.core.errors import CedarError
from cedar.trainers.common import launch
from cedar.trainers.common.launch import connected
from tests.waiting import eventually

pytestmark = [pytest.mark.heavy, pytest.mark.waits]


def gone(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        with suppress(ProcessLookupError):
            os.kill(pid, 0)
            return False
        return True


def test_ranks_that_do_not_know_where_they_meet_are_told(monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(CedarError, match="this is one of several ranks, and MASTER_PORT is not set"), connected():
        pass
    monkeypatch.setenv("MASTER_PORT", "many")
    with pytest.raises(CedarError, match="MASTER_PORT is 'many', which is not an integer"), connected():
        pass
    with socket.socket() as free:  # bound, and nothing listens
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        with (
            pytest.raises(CedarError, match="rank 1 of 2 did not connect to the other ranks at 127.0.0.1"),
            connected(timeout=0.5),
        ):
            pass


def test_tasks_of_slurm_are_ranks_that_meet(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2")):
        monkeypatch.setenv(name, value)
    named = "SLURM_PROCID and SLURM_STEP_NUM_TASKS are set, so this is one of several ranks, and MASTER_PORT"
    with pytest.raises(CedarError, match=named), connected():
        pass
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    with connected() as here:
        assert here == 1


def test_each_rank_takes_a_gpu_of_its_own(monkeypatch):
    import torch

    taken = []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for local in range(2):
        launch._take_gpu(local)
    with pytest.raises(CedarError, match="rank 2 of this machine has no GPU: there are 2"):
        launch._take_gpu(2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")  # any code that started it has given it that one
    launch._take_gpu(3)
    assert taken == [0, 1, 0]


def children(pid):
    """Of a process, and theirs."""
    found = []
    with suppress(OSError), open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
        for child in map(int, file.read().split()):
            found += [child, *children(child)]
    return found


RUN = """
data = {{paths = "{text}", length = 8, batch = 8}}
model = {{layers = 2, width = 8, heads = 2}}
pipeline = {{micro_batches = 2}}
run = {{folder = "{folder}", steps = 100000, save_every = 1, keep = 1}}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_no_process_of_a_run_outlives_the_one_that_was_started(tmp_path):
    from tests.trainers.moe.toy_text import write_text

    folder, path = tmp_path / "run", tmp_path / "run.toml"
    path.write_text(RUN.format(text=write_text(tmp_path / "text.txt", lines=200), folder=folder))
    command = [sys.executable, "-m", "cedar", "train", "resilient", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wrote = folder / "checkpoints/step-00000001"
    try:
        assert eventually(lambda: process.poll() is not None or (wrote.exists() and wrote.stat().st_size > 0))
        assert process.poll() is None
        there = children(process.pid)
        assert len(there) >= 5  # at times, one that makes plans
    finally:
        process.kill()
        process.wait(30)
    assert eventually(lambda: all(map(gone, there)))


RANK = """
import os, pathlib
from cedar.trainers.common import launch
with launch.connected():
    from cedar.trainers.common.group import Group
    group = Group()
    assert group.tell(group.rank) == [0, 1]
threads = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
pathlib.Path(os.environ["FOLDER"], os.environ["RANK"]).write_text(str(sum("gloo" in name for name in threads)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_no_thread_of_gloo_outlives_its_group(tmp_path):
    """One that looked for Python as it ended, ended the rank."""
    (tmp_path / "rank.py").write_text(RANK)
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = dict(os.environ) | {"FOLDER": str(tmp_path)}
    subprocess.run([*ranks, str(tmp_path / "rank.py")], env=environment, check=True, timeout=100)
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["0", "0"]
