"""Ranks as processes of this machine, and how a process finds the others: by the environment that torchrun sets, too.

Ranks that are started here meet in a file that only their user can reach, and talk over loopback. What ranks of
torchrun listen at is torchrun's and torch's, as its user set it up.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from cedar.core.errors import CedarError
from cedar.core.ranks import find_rank

LAUNCHER = "CEDAR_LAUNCHER"  # the process that started the ranks
STORE = "CEDAR_STORE"  # the file that ranks of one machine meet in
_LOCAL = {  # where on its machine a rank is, by what its launcher sets beside the rank
    "RANK and WORLD_SIZE": "LOCAL_RANK",
    "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_RANK",
    "PMI_RANK and PMI_SIZE": "MPI_LOCALRANKID",
    "SLURM_PROCID and SLURM_STEP_NUM_TASKS": "SLURM_LOCALID",
    "SLURM_PROCID and SLURM_NTASKS": "SLURM_LOCALID",
}
_GRACE = 20.0  # seconds for ranks to see that one is gone, and to say so
_LOOK = 0.05


def run_ranks(command: Sequence[str], ranks: int, environment: Mapping[str, str] | None = None) -> None:
    """Run a command once for each rank, and wait for all; for the main thread. ``command``: program and arguments; it
    calls ``end_with_launcher`` early, and ``connected``; ``environment``: of the processes; default: this one's.
    """
    folder = tempfile.mkdtemp(prefix="cedar-ranks-")  # of mode 0700: nobody else meets these ranks
    base = dict(os.environ if environment is None else environment) | {
        "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "GLOO_SOCKET_IFNAME": _loopback(),
        "NCCL_SOCKET_IFNAME": _loopback(), STORE: os.path.join(folder, "store"), LAUNCHER: str(os.getpid()),
    }  # fmt: skip
    started: list[subprocess.Popen[bytes]] = []
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the ranks end, too
    try:
        for rank in range(ranks):
            own = base | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            started.append(subprocess.Popen(list(command), env=own))  # noqa: S603 - what the caller asked for
        _watch(started)
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()
        signal.signal(signal.SIGTERM, before)
        shutil.rmtree(folder, ignore_errors=True)


def _watch(started: Sequence[subprocess.Popen[bytes]]) -> None:
    while True:
        codes = [process.poll() for process in started]
        failed = [(rank, code) for rank, code in enumerate(codes) if code]
        if failed:
            break
        if None not in codes:
            return
        time.sleep(_LOOK)
    end = time.monotonic() + _GRACE
    while any(process.poll() is None for process in started) and time.monotonic() < end:
        time.sleep(_LOOK)
    rank, code = failed[0]
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    raise CedarError(
        f"rank {rank} of {len(started)} {how}",
        done="the other ranks were stopped; checkpoints are as they were",
        fix="see what it said above; start again with --resume, on as many ranks or on fewer",
    )


def end_with_launcher() -> None:
    """Let this process end when the one that started it as a rank is gone, however that ended.

    The kernel sees to it on Linux; a thread looks, too, elsewhere and for what happened before this call.
    """
    launcher = os.environ.pop(LAUNCHER, None)  # what this process starts is no rank
    if launcher is not None:
        end_with(int(launcher))


def end_with(parent: int, *, look: bool = True) -> None:
    """Let this process get SIGKILL when its parent ends: the parent's thread that started it, on Linux. ``parent``: the
    process that should be this one's parent; ``look``: start a thread that looks; False where the caller does so.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    if look:
        threading.Thread(target=_look_for, args=(parent,), name="launcher-watch", daemon=True).start()


def _look_for(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK * 10)
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def connected(device: str = "cpu", *, timeout: float = 600.0) -> Iterator[int]:
    """torch.distributed among the ranks that a launcher started, as ``find_rank`` has it; alone, where there are none.

    Where torchrun starts ranks again in place, each attempt meets under names of its own, so that no rank finds the
    addresses of dead ones. ``device``: ``cuda`` uses NCCL for tensors there, and gloo for those on the CPU;
    ``timeout``: seconds that a rank waits for the others before it gives up.

    Yields:
        How many ranks there are on this machine.
    """
    found = find_rank(None, None, False, None)
    rank, world = found.rank, found.world
    if world == 1:
        yield 1
        return
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore

    where = "a file of its launcher"
    if STORE not in os.environ:
        where = "{}:{}".format(*meeting_place())
    if device == "cuda":
        _take_gpu(int(os.environ.get(_LOCAL.get(found.origin, ""), rank)))
    limit = dt.timedelta(seconds=timeout)
    try:
        store = _store(rank, world, limit)
        attempt = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, store=attempt, rank=rank, world_size=world, timeout=limit)
    except RuntimeError as error:
        raise CedarError(
            f"rank {rank} of {world} did not meet the others at {where} within {timeout:g} s: {error}",
            done="nothing was trained",
            fix="see that all ranks are started, and that MASTER_ADDR and MASTER_PORT are the same for all",
        ) from error
    try:
        yield int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
    finally:
        from cedar.trainers.common.group import let_go

        let_go()
        dist.destroy_process_group()


def _store(rank: int, world: int, limit: dt.timedelta) -> Any:
    from torch._C._distributed_c10d import FileStore, TCPStore

    if STORE in os.environ:
        path = os.environ[STORE]
        status = os.stat(os.path.dirname(path))
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise CedarError(f"{os.path.dirname(path)} is not this user's alone", fix="start ranks with --ranks N")
        store: Any = FileStore(path, world)
        store.set_timeout(limit)
        return store
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return TCPStore(
        *meeting_place(), world_size=None if hosted else world,
        is_master=rank == 0 and not hosted, timeout=limit, wait_for_workers=False,
    )  # fmt: skip


def meeting_place() -> tuple[str, int]:
    """MASTER_ADDR and MASTER_PORT.

    Raises:
        CedarError: one of them is not set, or the port is not an integer.
    """
    port = _told("MASTER_PORT")
    if not port.isdecimal():
        raise CedarError(f"MASTER_PORT is {port!r}, no whole number", fix="let torchrun set it")
    return _told("MASTER_ADDR"), int(port)


def _loopback() -> str:
    """The name of the interface that no other machine reaches."""
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")


def _told(name: str) -> str:
    if name in os.environ:
        return os.environ[name]
    raise CedarError(
        f"{find_rank(None, None, False, None).origin} are set, so this is one of several ranks, and {name} is not set",
        fix="start ranks with --ranks N or with torchrun, which set all of it; or set MASTER_ADDR to rank 0's "
        "machine, as the others reach it, and MASTER_PORT to a free port there",
    )


def _take_gpu(local: int) -> None:
    """A GPU of its own for the rank with this number on this machine."""
    import torch

    gpus = torch.cuda.device_count()
    one_each = gpus == 1 and "CUDA_VISIBLE_DEVICES" in os.environ  # whoever started the ranks has dealt them
    if local >= gpus and not one_each:
        raise CedarError(
            f"rank {local} of this machine has no GPU: there are {gpus}, and each rank takes one",
            fix="start as many ranks on a machine as it has GPUs, or set run.device=cpu",
        )
    torch.cuda.set_device(0 if one_each else local)


def this_command(*arguments: str) -> list[str]:
    """The command line of ``cedar`` with these arguments, by this interpreter.

    Example:
        >>> this_command("train", "moe")[1:]
        ['-m', 'cedar', 'train', 'moe']
    """
    return [sys.executable, "-m", "cedar", *arguments]
