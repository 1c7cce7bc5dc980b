"""Connects the processes of a job through the environment variables that torchrun and other launchers set."""

from __future__ import annotations

import ctypes
import datetime as dt
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cedar.core.errors import CedarError
from cedar.core.process import find_rank

_LOCAL = {  # names of variables: from those for rank and world size to the one for the local rank
    "RANK and WORLD_SIZE": "LOCAL_RANK",
    "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_RANK",
    "PMI_RANK and PMI_SIZE": "MPI_LOCALRANKID",
    "SLURM_PROCID and SLURM_STEP_NUM_TASKS": "SLURM_LOCALID",
    "SLURM_PROCID and SLURM_NTASKS": "SLURM_LOCALID",
}
_POLL_SECONDS = 0.5  # seconds between checks that the parent is alive


def end_with(parent: int, *, look: bool = True) -> None:
    """Make sure that this process gets SIGKILL when its parent (on Linux, the parent's thread that started it) ends.
    ``parent``: the parent's process id; ``look``: start a thread that polls for it; False if the caller polls.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    if look:
        threading.Thread(target=_watch_parent, args=(parent,), name="parent-watch", daemon=True).start()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def connected(device: str = "cpu", *, timeout: float = 600.0) -> Iterator[int]:
    """Initialize torch.distributed if a launcher started several ranks, as found by ``find_rank``.

    If torchrun restarts ranks, each attempt uses its own key prefix in the store, so ranks do not read addresses of
    dead ranks. ``device``: ``cuda`` uses NCCL for GPU tensors and gloo for CPU tensors; ``timeout``: seconds that a
    rank waits for other ranks.

    Yields:
        The number of ranks on this machine.
    """
    found = find_rank(None, None, False, None)
    rank, world = found.rank, found.world
    if world == 1:
        yield 1
        return
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore

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
            f"rank {rank} of {world} did not connect to the other ranks at {where} within {timeout:g} s: {error}",
            done="nothing was trained",
            fix="check that all ranks have started with the same MASTER_ADDR and MASTER_PORT",
        ) from error
    try:
        yield int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
    finally:
        from cedar.trainers.common.group import release_process_groups

        release_process_groups()
        dist.destroy_process_group()


def _store(rank: int, world: int, limit: dt.timedelta) -> Any:
    from torch._C._distributed_c10d import TCPStore

    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return TCPStore(
        *meeting_place(), world_size=None if hosted else world,
        is_master=rank == 0 and not hosted, timeout=limit, wait_for_workers=False,
    )  # fmt: skip


def meeting_place() -> tuple[str, int]:
    """Return MASTER_ADDR and MASTER_PORT.

    Raises:
        CedarError: one of them is not set, or the port is not an integer.
    """
    port = _required_variable("MASTER_PORT")
    if not port.isdecimal():
        raise CedarError(f"MASTER_PORT is {port!r}, which is not an integer", fix="let torchrun set it")
    return _required_variable("MASTER_ADDR"), int(port)


def _required_variable(name: str) -> str:
    if name in os.environ:
        return os.environ[name]
    raise CedarError(
        f"{find_rank(None, None, False, None).origin} are set, so this is one of several ranks, and {name} is not set",
        fix="start ranks with torchrun, which sets these variables; or set MASTER_ADDR to rank 0's "
        "host, as other ranks reach it, and MASTER_PORT to a free port there",
    )


def _take_gpu(local: int) -> None:
    """Select the GPU for a local rank."""
    import torch

    gpus = torch.cuda.device_count()
    one_each = gpus == 1 and "CUDA_VISIBLE_DEVICES" in os.environ  # the launcher gave each rank its own GPU
    if local >= gpus and not one_each:
        raise CedarError(
            f"rank {local} of this machine has no GPU: there are {gpus}, and each rank needs one",
            fix="start at most one rank per GPU on each machine, or set run.device=cpu",
        )
    torch.cuda.set_device(0 if one_each else local)
