"""Ranks for tests: a few processes that import torch once and then run one function after the other."""

import multiprocessing
import os
import pickle
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import wait

PRELOAD = ["torch", "torch.distributed", "numpy", "cedar", "cedar.trainers.common.group"]
LIMIT = 100.0  # seconds that a job may take on a slow machine


class Crew:
    """Processes 0 to n - 1, with a group for every first few of them; ``run`` gives back what each returns."""

    def __init__(self, size, folder):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self.size, self.pipes, self.processes = size, [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, str(folder / "store"), theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, job, *args, ranks=None, lost=()):
        """``job(group, *args)`` on the first few ranks; those of ``lost`` die of it, and answer None.

        Raises:
            AssertionError: a rank failed, died or took too long; the crew is gone then.
        """
        ranks = ranks or self.size
        for pipe in self.pipes[:ranks]:
            pipe.send((job, args, ranks, bool(lost)))
        answers, missing = [None] * ranks, set(range(ranks))
        deadline = time.monotonic() + LIMIT
        while missing:
            ready = wait([self.pipes[rank] for rank in missing], timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                self.stop()
                raise AssertionError(f"ranks {sorted(missing)} of {ranks} did not answer within {LIMIT} s")
            for rank in [rank for rank in missing if self.pipes[rank] in ready]:
                try:
                    good, answers[rank] = pickle.loads(self.pipes[rank].recv_bytes())
                except EOFError:
                    good, answers[rank] = (True, None) if rank in lost else (False, "it died")
                if not good:
                    self.stop()
                    raise AssertionError(f"rank {rank} of {ranks}: {answers[rank]}")
                missing.discard(rank)
        return answers

    @property
    def alive(self):
        return all(process.is_alive() for process in self.processes)

    def stop(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        for pipe in self.pipes:
            pipe.close()


def each_apart(work, arguments, seconds=120, lost=()):
    """``work(*arguments, tell)`` in their own processes, one for each of the arguments; what each told, in order.

    Those of ``lost`` are not waited for. All are gone then.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    pipes = [context.Pipe(False) for _ in arguments]
    started = [
        context.Process(target=_tell, args=(work, given, pipe), daemon=True)
        for given, (_, pipe) in zip(arguments, pipes, strict=True)
    ]
    deadline = time.monotonic() + seconds
    try:
        for process, (_, pipe) in zip(started, pipes, strict=True):
            process.start()
            pipe.close()
        for number, process in enumerate(started):
            if number not in lost:
                process.join(max(0.0, deadline - time.monotonic()))
    finally:
        for process in started:
            process.kill()
            process.join()
    return [list(_heard(pipe)) for pipe, _ in pipes], [process.exitcode for process in started]


def _tell(work, arguments, pipe):
    try:
        work(*arguments, pipe.send)
    finally:
        os._exit(0)  # whatever threads there are


def _heard(pipe):
    with pipe, suppress(EOFError):
        while True:
            yield pipe.recv()


def _serve(rank, size, store, pipe):
    import datetime as dt

    import torch
    import torch.distributed as dist

    from cedar.trainers.common.group import Group

    torch.set_num_threads(1)
    limit = dt.timedelta(seconds=LIMIT)
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size, timeout=limit)
    firsts = [list(range(n)) for n in range(1, size + 1)]
    groups = {len(f): Group(dist.new_group(f, timeout=limit), dist.new_group(f, timeout=limit)) for f in firsts}
    while True:
        try:
            job, args, ranks, last = pipe.recv()
        except EOFError:
            return
        try:
            answer = True, job(groups[ranks], *args)
        except BaseException:  # noqa: BLE001 - the parent tells it
            answer = False, traceback.format_exc()
        pipe.send_bytes(pickle.dumps(answer))
        if last:  # a rank that has lost others ends, so that those who wait for it see it
            return
