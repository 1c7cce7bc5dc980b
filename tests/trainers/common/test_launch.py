"""Ranks as processes: one that fails ends all; none outlives the process that started them, however that ends."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress

import pytest

from cedar.core.errors import CedarError
from cedar.trainers.common import launch
from cedar.trainers.common.launch import connected, run_ranks
from tests.how_much import LONG
from tests.waiting import eventually

pytestmark = [pytest.mark.heavy, pytest.mark.waits]

RANK = "import os, pathlib; pathlib.Path(os.environ['FOLDER'], str(os.getpid())).touch()\n"


def gone(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        with suppress(ProcessLookupError):
            os.kill(pid, 0)
            return False
        return True


def test_a_rank_that_fails_ends_all_and_is_named():
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL if os.environ['RANK'] == '1' else 0)"
    with pytest.raises(CedarError) as error:
        run_ranks([sys.executable, "-S", "-c", code], 2)
    assert f"rank 1 of 2 was killed by signal {int(signal.SIGKILL)}" in str(error.value)
    assert "start again with --resume" in str(error.value)


def test_ranks_end_with_the_process_that_started_them(tmp_path):
    """Rank 0 sends SIGTERM to that process, as a scheduler would."""
    code = RANK + (
        "import signal, time\nos.environ['RANK'] == '1' or os.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(100)"
    )
    with pytest.raises(SystemExit) as end:
        run_ranks([sys.executable, "-S", "-c", code], 2, dict(os.environ) | {"FOLDER": str(tmp_path)})
    assert end.value.code == 128 + signal.SIGTERM
    assert os.listdir(tmp_path)
    assert all(gone(int(pid)) for pid in os.listdir(tmp_path))


def test_ranks_that_do_not_know_where_they_meet_are_told(monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(CedarError, match="this is one of several ranks, and MASTER_PORT is not set"), connected():
        pass
    monkeypatch.setenv("MASTER_PORT", "many")
    with pytest.raises(CedarError, match="MASTER_PORT is 'many', no whole number"), connected():
        pass
    with socket.socket() as free:  # bound, and nobody listens
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        with (
            pytest.raises(CedarError, match="rank 1 of 2 did not meet the others at 127.0.0.1"),
            connected(timeout=0.5),
        ):
            pass


def test_tasks_of_slurm_are_ranks_that_meet(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CEDAR_STORE"):
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
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")  # whoever started it has given it that one
    launch._take_gpu(3)
    assert taken == [0, 1, 0]


def children(pid):
    """Of a process, and theirs."""
    found = []
    with suppress(OSError), open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
        for child in map(int, file.read().split()):
            found += [child, *children(child)]
    return found


RUNS = {
    "moe": """
data = {paths = "TEXT", length = 12, batch = 6, held_out = 5}
model = {width = 8, heads = 2}
experts = {experts = 5, slots = 4, hidden = 10}
run = {folder = "RUN", steps = 100000, save_every = 0, dtype = "float32", device = "cpu", threads = 1}
""",
    "dlrm": """
features = [{column = "item", rows = 60}]
data = {paths = "LOG", dense = ["d0"], batch = 64, executor = "inline", plan = "off"}
model = {width = 4, bottom = [8], top = [8]}
tables = {backend = "torch"}
run = {folder = "RUN", steps = 100000, device = "cpu", threads = 1}
""",
    "resilient": """
data = {paths = "TEXT", length = 8, batch = 8}
model = {layers = 2, width = 8, heads = 2}
pipeline = {micro_batches = 2}
run = {folder = "RUN", steps = 100000, save_every = 1, keep = 1}
""",
}


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("name", [name for name in RUNS if name == "resilient" or LONG])
def test_no_process_of_a_run_outlives_the_one_that_was_started(tmp_path, name):
    from tests.trainers.dlrm.toy_clicks import write_log
    from tests.trainers.moe.toy_text import write_text

    folder, path = tmp_path / "run", tmp_path / "run.toml"
    text = RUNS[name].replace("RUN", str(folder))
    if "TEXT" in text:
        text = text.replace("TEXT", write_text(tmp_path / "text.txt", lines=200))
    if "LOG" in text:
        text = text.replace("LOG", write_log(tmp_path / "log.parquet", rows=512))
    path.write_text(text)
    more = [] if name == "resilient" else ["--ranks", "2"]
    command = [sys.executable, "-m", "cedar", "train", name, str(path), *more]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wrote = folder / ("checkpoints/step-00000001" if name == "resilient" else "metrics.jsonl")
    try:
        assert eventually(lambda: process.poll() is not None or (wrote.exists() and wrote.stat().st_size > 0))
        assert process.poll() is None
        there = children(process.pid)
        assert len(there) >= (5 if name == "resilient" else 2)  # at times, one that makes plans
    finally:
        process.kill()
        process.wait(30)
    assert eventually(lambda: all(map(gone, there)))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("early", [True, False])
def test_ranks_end_when_that_process_is_killed(tmp_path, early):
    """Also where it is gone before a rank has asked to end with it."""
    pause = "import time\ntime.sleep(1.0)\n" if early else ""
    code = f"{RANK}{pause}from cedar.trainers.common import launch\nlaunch.end_with_launcher()\nimport time\n"
    code += "pathlib.Path(os.environ['FOLDER'], 'on').touch()\ntime.sleep(100)"
    start = (
        f"import sys\nfrom cedar.trainers.common import launch\nlaunch.run_ranks([sys.executable, '-c', {code!r}], 2)"
    )
    launcher = subprocess.Popen([sys.executable, "-c", start], env=dict(os.environ) | {"FOLDER": str(tmp_path)})
    try:
        assert eventually(lambda: len(list(tmp_path.glob("[0-9]*"))) == 2 and (early or (tmp_path / "on").exists()))
    finally:
        launcher.kill()
        launcher.wait(30)
    ranks = [int(path.name) for path in tmp_path.glob("[0-9]*")]
    assert eventually(lambda: all(map(gone, ranks)))
    assert early is not (tmp_path / "on").exists()


LISTENS = """
import os, pathlib, re, stat
from cedar.trainers.common import launch
def listening():
    files = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    own = {os.readlink(file) for file in files if os.path.lexists(file)}
    found = []
    for name in ("tcp", "tcp6"):
        for line in open(f"/proc/self/net/{name}").read().splitlines()[1:]:
            parts = line.split()
            if parts[3] == "0A" and f"socket:[{parts[9]}]" in own:
                found.append(parts[1].split(":")[0])
    return found
with launch.connected():
    import torch, torch.distributed as dist
    from cedar.trainers.common.group import Group
    group = Group()
    assert group.tell(group.rank) == [0, 1]
    folder = os.path.dirname(os.environ["CEDAR_STORE"])
    told = [*listening(), oct(stat.S_IMODE(os.stat(folder).st_mode))]
    group.tell(None)
threads = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
told.append(str(sum("gloo" in name for name in threads)))
pathlib.Path(os.environ["FOLDER"], os.environ["RANK"]).write_text(" ".join(told))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_ranks_of_one_machine_listen_on_loopback_alone_and_meet_in_a_private_folder(tmp_path):
    """The store they met at listened on all interfaces: who reached it could answer for ranks.

    And threads of gloo outlived their group: one that looked for Python as it ended, ended the rank.
    """
    environment = dict(os.environ) | {"FOLDER": str(tmp_path)}
    run_ranks([sys.executable, "-c", LISTENS], 2, environment)
    for rank in range(2):
        *listens, mode, threads = (tmp_path / str(rank)).read_text().split()
        assert listens
        assert set(listens) <= {"0100007F", "0" * 24 + "01000000"}
        assert (mode, threads) == ("0o700", "0")


def test_ranks_do_not_meet_where_others_may_write(monkeypatch, tmp_path):
    tmp_path.chmod(0o777)
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("CEDAR_STORE", str(tmp_path / "store"))):
        monkeypatch.setenv(name, value)
    with pytest.raises(CedarError, match="is not this user's alone"), connected():
        pass
